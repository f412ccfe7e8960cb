"""Write Python's own documentation as two files in Prodigy's form, train.jsonl and dev.jsonl, with its code as CODE.

To train on texts of your own, put your files in their place: `spacy torchopt convert` reads those of other tools, too.
"""

import sys
from pathlib import Path

import spacy
import srsly

from thinc_torchopt.corpora import PythonDocs


def main(folder: Path) -> None:
    nlp = spacy.blank("en")
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "dev"):
        docs = [example.reference for example in PythonDocs(split)(nlp)]
        rows = [
            {
                "text": doc.text,
                "spans": [{"start": e.start_char, "end": e.end_char, "label": e.label_} for e in doc.ents],
                "answer": "accept",
            }
            for doc in docs
        ]
        srsly.write_jsonl(folder / f"{split}.jsonl", rows)
        print(f"{len(rows)} texts in {folder / split}.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
