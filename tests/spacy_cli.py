"""Run spaCy's command line, and write a small corpus for it."""

import io
import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import spacy
from spacy.cli import app
from spacy.errors import setup_default_warnings
from spacy.tokens import Doc, DocBin, Span
from spacy.util import logger_stream_handler
from thinc.api import get_current_ops, set_current_ops
from typer.main import get_command

from .conftest import CONFIGS
from .models import toy_examples, toy_pipeline

# Small and quick: what every test overrides.
QUICK = {"training.max_steps": 6, "training.eval_frequency": 3, "training.batcher.size": 40}

Run = subprocess.CompletedProcess[str]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def spacy_process(*args: object, check: bool = True) -> Run:
    """Run `python -m spacy ...` as a user would: in a process of its own. It takes seconds to import everything."""
    command = [sys.executable, "-m", "spacy", *map(str, args)]
    run = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    )
    assert not check or run.returncode == 0, run.stdout + run.stderr
    return run


def spacy_cli(*args: object, check: bool = True) -> Run:
    """Run `spacy ...` in this process: the same commands, arguments, output and exit code."""
    spacy.registry.cli.get_all()
    arguments = [str(arg) for arg in args]
    code = 0
    with as_in_a_new_process() as (stdout, stderr):
        try:
            _command()(args=arguments, prog_name="python -m spacy")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:
            traceback.print_exc()
            code = 1
    run = Run(arguments, code, *(stream.buffer.getvalue().decode("utf8") for stream in (stdout, stderr)))  # type: ignore[attr-defined]
    assert not check or run.returncode == 0, run.stdout + run.stderr
    return run


def refusal(*args: object) -> str:
    """Run `spacy ...`, which has to end with an error that is told. RETURNS: what it says, in one line."""
    run = spacy_cli(*args, check=False)
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode == 1 and "Traceback" not in said, said
    return said


def torchopt(folder: Path, *args: object, check: bool = True, run: Callable[..., Run] = spacy_cli) -> Run:
    """Run a command of `spacy torchopt` with the toy corpus in a folder."""
    paths = [part for name in ("train", "dev") for part in (f"--paths.{name}", folder / f"{name}.spacy")]
    return run("torchopt", *args, *paths, check=check)


@cache
def _command() -> Any:
    """Typer makes it of all signatures."""
    return get_command(app)


@contextmanager
def as_in_a_new_process() -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    """Inside, output and warnings go to the two streams, and no terminal; afterwards, what a command sets for its
    process is as before.
    """
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf8", write_through=True) for _ in range(2))

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        stderr.write(warnings.formatwarning(message, category, filename, lineno, line))

    ops, level = get_current_ops(), spacy.util.logger.level
    old = logger_stream_handler.setStream(stderr)
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr), warnings.catch_warnings():
            # Python's own filters, and then spaCy's. pytest's would make errors of warnings.
            warnings.resetwarnings()
            for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                warnings.simplefilter("ignore", category)
            setup_default_warnings()
            warnings.showwarning = show
            yield stdout, stderr
    finally:
        logger_stream_handler.setStream(old)
        spacy.util.logger.setLevel(level)
        set_current_ops(ops)


def flags_of(settings: dict[str, Any]) -> list[str | Path]:
    """Overrides of a config as a command line has them."""
    return [
        part
        for key, value in settings.items()
        for part in (f"--{key}", value if isinstance(value, (str, Path)) else json.dumps(value))
    ]


def toy_corpus(folder: Path) -> dict[str, Path]:
    """Write a small corpus: train.spacy, dev.spacy, raw.jsonl, texts.jsonl (entities, as Prodigy writes them), and
    new.spacy, in which only COLOR is annotated. Each label 30 times at least: less is no label to the parser.
    """
    for name, content in _toy_files().items():
        (folder / name).write_bytes(content)
    return {"train": folder / "train.spacy", "dev": folder / "dev.spacy", "raw_text": folder / "raw.jsonl"}


@cache
def _toy_files() -> dict[str, bytes]:
    docs = [example.reference for example in toy_examples(toy_pipeline(["tagger"]), 90)]
    new = [Doc(doc.vocab, words=[token.text for token in doc]) for doc in docs[:72]]
    for doc in new:
        doc.set_ents([Span(doc, token.i, token.i + 1, "COLOR") for token in doc if token.text in ("red", "blue")])
    raw = [json.dumps({"text": f"Raw text number {i} in plain English ."}) + "\n" for i in range(40)]
    texts = [
        {
            "text": doc.text,
            "spans": [{"start": ent.start_char, "end": ent.end_char, "label": ent.label_} for ent in doc.ents],
        }
        for doc in docs[:72]
    ]
    return {
        "texts.jsonl": "".join(json.dumps(text) + "\n" for text in texts).encode(),
        "train.spacy": DocBin(docs=docs[:72], store_user_data=True).to_bytes(),
        "dev.spacy": DocBin(docs=docs[72:], store_user_data=True).to_bytes(),
        "new.spacy": DocBin(docs=new).to_bytes(),
        "raw.jsonl": "".join(raw).encode(),
    }


def train(config, output: Path, corpus: dict[str, Path], *, check=True, **overrides):
    """Run `spacy train` for a few steps. `overrides`: config paths with __ for dots."""
    config = CONFIGS / config if isinstance(config, str) else config
    settings = {f"paths.{name}": corpus[name] for name in ("train", "dev")}
    settings |= QUICK | {key.replace("__", "."): value for key, value in overrides.items()}
    return spacy_cli("train", config, "--output", output, *flags_of(settings), check=check)
