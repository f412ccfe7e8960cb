"""Write the texts of the project, from Python's own documentation: a few are annotated, most are not.

Each line of the files is an object with a "text"; in annotated.jsonl and dev.jsonl also with "spans", as tools for
annotation write them. Put your own files in their place, and remove this step.
"""

import sys
from pathlib import Path

import spacy
import srsly

from thinc_torchopt.corpora import PythonDocs

ANNOTATED = 150


def main(folder: Path) -> None:
    nlp = spacy.blank("en")
    train, dev = ([example.reference for example in PythonDocs(split)(nlp)] for split in ("train", "dev"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, docs in {"annotated": train[:ANNOTATED], "dev": dev, "raw": train[ANNOTATED:]}.items():
        lines = [{"text": doc.text} | ({} if name == "raw" else {"spans": spans_of(doc)}) for doc in docs]
        srsly.write_jsonl(folder / f"{name}.jsonl", lines)
        print(f"{len(lines)} texts in {folder / name}.jsonl")


def spans_of(doc: spacy.tokens.Doc) -> list[dict[str, object]]:
    return [{"start": ent.start_char, "end": ent.end_char, "label": ent.label_} for ent in doc.ents]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
