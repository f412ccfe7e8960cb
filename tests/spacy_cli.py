"""Run spaCy's command line as a user would: in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from spacy.tokens import DocBin

from .conftest import CONFIGS
from .models import toy_examples, toy_pipeline

# Small and quick: what every test overrides.
QUICK = {"training.max_steps": 6, "training.eval_frequency": 3, "training.batcher.size": 40}


def spacy_cli(*args, check=True):
    """Run `python -m spacy ...`."""
    command = [sys.executable, "-m", "spacy", *map(str, args)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"})
    assert not check or run.returncode == 0, run.stdout + run.stderr
    return run


def toy_corpus(folder: Path) -> dict[str, Path]:
    """Write a small corpus: train.spacy, dev.spacy, raw.jsonl. Each label 30 times at least: less is no label to the parser."""
    docs = [example.reference for example in toy_examples(toy_pipeline(["tagger"]), 90)]
    for name, part in (("train", docs[:72]), ("dev", docs[72:])):
        DocBin(docs=part, store_user_data=True).to_disk(folder / f"{name}.spacy")
    (folder / "raw.jsonl").write_text("".join(json.dumps({"text": f"Raw text number {i} in plain English ."}) + "\n" for i in range(40)))
    return {"train": folder / "train.spacy", "dev": folder / "dev.spacy", "raw_text": folder / "raw.jsonl"}


def train(config, output: Path, corpus: dict[str, Path], *, check=True, **overrides):
    """Run `spacy train` for a few steps. `overrides`: config paths with __ for dots."""
    config = CONFIGS / config if isinstance(config, str) else config
    settings = {f"paths.{name}": corpus[name] for name in ("train", "dev")}
    settings |= QUICK | {key.replace("__", "."): value for key, value in overrides.items()}
    flags = [
        part for key, value in settings.items() for part in (f"--{key}", value if isinstance(value, (str, Path)) else json.dumps(value))
    ]
    return spacy_cli("train", config, "--output", output, *flags, check=check)
