"""Write Python's own documentation as two corpora, train.spacy and dev.spacy, with its code as entities CODE.

To train on texts of your own, write these two files from them, for example with `spacy convert`.
"""

import sys
from pathlib import Path

import spacy
from spacy.tokens import DocBin

from thinc_torchopt.corpora import PythonDocs


def main(folder: Path) -> None:
    nlp = spacy.blank("en")
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "dev"):
        docs = DocBin(docs=[example.reference for example in PythonDocs(split)(nlp)])
        docs.to_disk(folder / f"{split}.spacy")
        print(f"{len(docs)} texts in {folder / split}.spacy")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
