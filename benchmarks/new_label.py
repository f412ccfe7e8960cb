"""What it is worth that state follows its param: a parser gets a label in mid-training, and goes on with the
optimizer's state or without.

    python benchmarks/new_label.py --train train.spacy --dev dev.spacy

Trains a parser on trees in which one label is unknown ("dep" stands there); then adds the label, and goes on with the
true trees, from the same point in several ways. Prints the labelled attachment score on dev, of all words and of those
with the new label, after so many steps
more: the mean over seeds, and the lowest and the highest.
"""

import argparse
import random
import tempfile
from pathlib import Path
from statistics import mean

import spacy
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.util import minibatch
from thinc.api import fix_random_seed

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW

ARMS = {
    'state kept, on_growth = "mean"': "mean",
    'state kept, on_growth = "zero"': "zero",
    'params that grow start anew ("reset")': "reset",
    "a new optimizer": None,
}


def read(path: str, nlp: spacy.Language, limit: int) -> list[Doc]:
    return list(DocBin().from_disk(path).get_docs(nlp.vocab))[:limit]


def examples_of(nlp: spacy.Language, docs: list[Doc], *, without: str | None = None) -> list[Example]:
    found = []
    for doc in docs:
        deps = ["dep" if token.dep_ == without else token.dep_ for token in doc]
        words, spaces = [token.text for token in doc], [bool(token.whitespace_) for token in doc]
        heads = [token.head.i for token in doc]
        reference = Doc(
            nlp.vocab,
            words=words,
            spaces=spaces,
            heads=heads,
            deps=deps,
        )
        found.append(Example(Doc(nlp.vocab, words=words, spaces=spaces), reference))
    return found


def build(on_growth: str) -> TorchOptimizer:
    return TorchOptimizer(AdamW(), 0.001, on_growth=on_growth)  # type: ignore[arg-type]


def train(nlp: spacy.Language, optimizer: TorchOptimizer, examples: list[Example], steps: int, seed: int) -> None:
    random.seed(seed)
    done = 0
    while done < steps:
        random.shuffle(examples)
        for batch in minibatch(examples, size=4):
            nlp.update(batch, sgd=optimizer, drop=0.1)
            done += 1
            if done == steps:
                return


def scores(nlp: spacy.Language, dev: list[Doc], label: str) -> tuple[float, float]:
    found = nlp.evaluate(examples_of(nlp, dev))
    return 100 * found["dep_las"], 100 * found["dep_las_per_type"][label]["f"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="training corpus with trees, .spacy")
    parser.add_argument("--dev", required=True, help="dev corpus, .spacy")
    parser.add_argument("--label", default="obj", help="the label that comes late")
    parser.add_argument("--before", type=int, default=600, help="steps before the label comes")
    parser.add_argument("--after", type=int, nargs="+", default=[50, 100, 200], help="steps after it at which to look")
    parser.add_argument("--limit", type=int, default=600, help="documents to train on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    print("|  | " + " | ".join(f"{what} +{step}" for step in args.after for what in ("all", args.label)) + " |")
    print("| --- |" + " --- |" * (2 * len(args.after)))
    found: dict[str, list[list[float]]] = {label: [] for label in ARMS}
    for seed in args.seeds:
        fix_random_seed(seed)
        nlp = spacy.blank("en")
        nlp.add_pipe("parser")
        docs, dev = read(args.train, nlp, args.limit), read(args.dev, nlp, 60)
        before = examples_of(nlp, docs, without=args.label)
        nlp.initialize(lambda examples=before: examples)
        first = build("mean")
        first.initialize(nlp)
        train(nlp, first, before, args.before, seed)
        with tempfile.TemporaryDirectory() as name:
            nlp.to_disk(Path(name) / "model")
            first.to_disk(Path(name) / "optimizer")
            for label, on_growth in ARMS.items():
                fix_random_seed(seed)
                nlp = spacy.load(Path(name) / "model")
                optimizer = build(on_growth or "mean")
                optimizer.initialize(nlp)
                if on_growth is not None:
                    optimizer.from_disk(Path(name) / "optimizer")
                nlp.get_pipe("parser").add_label(args.label)  # type: ignore[attr-defined]
                optimizer.initialize(nlp)
                examples, done, cells = examples_of(nlp, docs), 0, []
                for step in args.after:
                    train(nlp, optimizer, examples, step - done, seed)
                    done = step
                    cells += scores(nlp, dev, args.label)
                found[label].append(cells)
    for label, runs in found.items():
        print(
            f"| {label} | "
            + " | ".join(f"{mean(column):.1f} ({min(column):.1f} to {max(column):.1f})" for column in zip(*runs))
            + " |"
        )


if __name__ == "__main__":
    main()
