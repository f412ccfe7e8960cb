"""Make a .spacy file of texts with spans: convert.py LANG texts.jsonl corpus.spacy"""

import sys
from pathlib import Path

import spacy
import srsly
from spacy.tokens import DocBin


def main(lang: str, source: Path, target: Path) -> None:
    nlp = spacy.blank(lang)
    docs = DocBin()
    for number, line in enumerate(srsly.read_jsonl(source), start=1):
        doc = nlp.make_doc(line["text"])
        spans = [doc.char_span(span["start"], span["end"], span["label"]) for span in line["spans"]]
        if None in spans:
            sys.exit(f"Line {number} of {source} has a span that does not begin and end with words.")
        doc.set_ents(spans)
        docs.add(doc)
    target.parent.mkdir(parents=True, exist_ok=True)
    docs.to_disk(target)
    print(f"{len(docs)} texts in {target}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
