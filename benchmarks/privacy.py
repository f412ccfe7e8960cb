"""What it costs to clip the gradient of each example: updates of a tagger, plain and by book-keeping, in turns.

    python benchmarks/privacy.py train.spacy > costs.jsonl

One line of JSON for each size of batch: the median seconds of a plain update and of a clipped one, and the median of
their ratios. The gradients only; noise and optimizer cost the same for both, but for the random numbers.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import spacy
import torch
import typer
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example

from thinc_torchopt.addons.privacy.book import Book


def read(nlp: Language, path: Path, by_sentence: bool) -> list[Example]:
    docs = list(DocBin().from_disk(path).get_docs(nlp.vocab))
    gold = [sentence.as_doc() for doc in docs for sentence in doc.sents] if by_sentence else docs
    return [Example(Doc(nlp.vocab, words=[token.text for token in doc]), doc) for doc in gold]


def main(path: Path, sizes: str = "16,64,256", repeats: int = 15, width: int = 96, depth: int = 4) -> None:
    torch.set_num_threads(1)
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy.HashEmbedCNN.v2", "width": width, "depth": depth, "embed_size": 2000}
    rest = {"window_size": 1, "maxout_pieces": 3, "subword_features": True, "pretrained_vectors": None}
    tagger = {"@architectures": "spacy.Tagger.v2", "tok2vec": {**model, **rest}}
    nlp.add_pipe("tagger", config={"model": tagger})
    sentences = read(nlp, path, True)
    nlp.initialize(lambda: sentences)
    book, rng = Book(1.0), random.Random(0)
    for what, examples in (("sentences", sentences), ("docs", read(nlp, path, False))):
        for size in map(int, sizes.split(",")):
            seconds: dict[str, list[float]] = {"plain": [], "private": []}
            for _ in range(repeats + 2):  # the first two are not counted
                batch = rng.sample(examples, min(size, len(examples)))
                for name in rng.sample(list(seconds), 2):
                    start = time.perf_counter()
                    with book.recording(nlp, len(batch)) if name == "private" else nullcontext():
                        nlp.update(batch, drop=0.0, sgd=False)
                    seconds[name].append(time.perf_counter() - start)
            ratios = [private / plain for plain, private in zip(seconds["plain"], seconds["private"])][2:]
            line = {"examples": size, "of": what, "tokens": sum(map(len, batch)), "width": width, "depth": depth}
            line |= {name: round(statistics.median(found[2:]), 5) for name, found in seconds.items()}
            print(json.dumps({**line, "ratio": round(statistics.median(ratios), 3)}), flush=True)


if __name__ == "__main__":
    typer.run(main)
