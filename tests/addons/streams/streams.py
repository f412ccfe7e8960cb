"""A small pipeline and a stream for it."""

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import spacy
from spacy.language import Language
from spacy.training import Example
from thinc.api import fix_random_seed

from thinc_torchopt.addons.streams import LearnSettings, StreamLearner
from thinc_torchopt.addons.streams.source import LineReader
from thinc_torchopt.core.optimizer import TorchOptimizer

from ...models import ready_pipeline, toy_examples

OPTIMIZER = {
    "@optimizers": "thinc-torchopt.TorchOptimizer.v1",
    "learn_rate": 0.005,
    "algorithm": {"@torch_optimizers": "torch.AdamW.v1"},
}


@cache
def initialized(*components: str) -> Language:
    fix_random_seed(0)
    nlp, _ = ready_pipeline(components, n=30)
    return nlp


def make_model(folder: Path, components=("tagger", "ner"), **settings: Any) -> Path:
    """A pipeline with a shared tok2vec, on disk."""
    nlp = initialized(*components)
    nlp.config["training"]["optimizer"] = {**OPTIMIZER, **settings}
    folder.parent.mkdir(parents=True, exist_ok=True)
    nlp.to_disk(folder)
    return folder


def record(example: Example) -> dict[str, Any]:
    doc = example.reference
    return {
        "words": [token.text for token in doc],
        "tags": [token.tag_ for token in doc],
        "entities": [(span.start_char, span.end_char, span.label_) for span in doc.ents],
    }


def write_stream(path: Path, n: int, *, start: int = 0, changed=lambda i, found: found) -> Path:
    """n texts. changed (Callable): `changed(i, record)` returns another one."""
    examples = toy_examples(spacy.blank("xx"), start + n)[start:]
    lines = [json.dumps(changed(start + i, record(example))) for i, example in enumerate(examples)]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf8")
    return path


def load(model: Path) -> tuple[Language, TorchOptimizer]:
    nlp = spacy.load(model)
    return nlp, spacy.registry.resolve({"o": nlp.config.interpolate()["training"]["optimizer"]})["o"]


def learn(model: Path, stream: Path, output: Path, *, is_stopped=None, old=None, watched=None, **settings):
    """Learn in this process. RETURNS (tuple): The rows, and what was told."""
    told: list[str] = []
    is_stopped = is_stopped or stops(400, AssertionError)
    nlp, optimizer = load(model)
    chosen = LearnSettings(**{"every": 5, "save_every": 10, **settings})
    with StreamLearner(
        nlp, optimizer, output, chosen, old=old, watched=watched, notify=told.append, is_stopped=is_stopped
    ) as learner:
        return list(learner.learn(LineReader(stream, is_stopped=is_stopped))), told


def stops(after: int, error: type[BaseException] | None = None):
    """An `is_stopped` that says so when it was asked so many times before; or raises an error instead."""
    asked = itertools.count()

    def is_stopped() -> bool:
        n = next(asked)
        assert n < after + 400, "the run does not end"
        if n >= after and error is not None:
            raise error
        return n >= after

    return is_stopped


def files(folder: Path) -> dict[str, bytes]:
    """The pipeline that was learned."""
    model = folder / "model-last"
    return {str(path.relative_to(model)): path.read_bytes() for path in sorted(model.rglob("*")) if path.is_file()}


def rows(folder: Path) -> list[dict[str, Any]]:
    """The log, without times."""
    found = [json.loads(line) for line in (folder / "learn.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found]
