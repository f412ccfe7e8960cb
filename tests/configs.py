"""The configs in configs/, and the commands that their first lines show."""

import re
import shlex
from pathlib import Path

import pytest
from confection import Config

from thinc_torchopt.core.compat import has_opacus, has_pytorch_optimizer, has_tensorboard, has_torchao

from .conftest import CONFIGS, HAS_MUON
from .forks import python
from .models import TOK2VEC, WIDTH
from .spacy_cli import Run, flags_of, spacy_cli, toy_corpus

NAMES = sorted(path.name for path in CONFIGS.glob("*.cfg"))
TRANSFORMERS = ("fine_tuning.cfg", "transformer.cfg")


def skip_without(name: str) -> None:
    """Skip the test where the libraries of a config are not installed."""
    if name == "pytorch_optimizer.cfg" and not has_pytorch_optimizer:
        pytest.skip("pytorch-optimizer is not installed")
    if name == "muon.cfg" and not HAS_MUON:
        pytest.skip("this torch has no Muon")
    if name == "loggers.cfg" and not has_tensorboard:
        pytest.skip("tensorboard is not installed")
    if name == "privacy.cfg" and not has_opacus:
        pytest.skip("opacus is not installed")
    if name == "torchao.cfg" and not has_torchao:
        pytest.skip("torchao is not installed")
    if name in TRANSFORMERS:
        pytest.importorskip("spacy_transformers", reason="spacy-transformers is not installed")


def smaller(text: str, *, depth: int = 2) -> str:
    """A config of configs/, as text, with a tok2vec that takes no time to train."""
    model = Config({"model": {**TOK2VEC, "depth": depth}}).to_str().replace("[model]", "[components.tok2vec.model]")
    text = text.replace("width = 96", f"width = {WIDTH}")
    return text.replace('factory = "tok2vec"\n', f'factory = "tok2vec"\n\n{model}\n')


def small_tagger() -> str:
    """configs/cnn.cfg, as text, with a tagger alone, which takes no time to train."""
    text = smaller((CONFIGS / "cnn.cfg").read_text()).replace('"tagger", "parser"]', '"tagger"]')
    return text.replace('lang = "en"', 'lang = "xx"')


def commands_in_head(name: str) -> list[list[str]]:
    """The commands that a config's first lines show, word by word: ["spacy", "train", ...]."""
    head = (CONFIGS / name).read_text().split("\n[")[0]
    lines = re.sub(r"\\\n#", " ", head).splitlines()
    return [shlex.split(line.strip("# ")) for line in lines if line.strip("# ").startswith("spacy ")]


def run_head(name: str, folder: Path, *, steps: int, process: bool = False) -> Run:
    """Run the commands that a config's first lines show, as they stand, in a folder with a small corpus. Training ends
    after a few steps.

    RETURNS (Run): The last one of them, which is `spacy train`.
    """
    toy_corpus(folder)
    (folder / "configs").symlink_to(CONFIGS)
    text = (CONFIGS / name).read_text()
    # Nothing but a budget ends a training that has one.
    has_budget = "[training.optimizer.budget]" in text
    quick = {"training.optimizer.budget.limit": f"{steps} steps"} if has_budget else {"training.max_steps": steps}
    quick |= {"training.eval_frequency": steps // 2, "training.batcher.size": 40}
    if "PythonDocs" in text:  # a quarter of their texts
        quick |= {"corpora.train.dev_share": 0.8, "corpora.dev.dev_share": 0.05}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for _, *args in commands_in_head(name):
            # What starts processes, or is to be as its reader has it, runs in a process of its own.
            in_process = not process and "--nproc-per-node" not in args
            words = [*args, *(flags_of(quick) if "train" in args[:2] else [])]
            run = spacy_cli(*words) if in_process else python(words)
    assert "train" in args[:2]
    return run
