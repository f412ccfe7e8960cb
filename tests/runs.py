"""Trainings with checkpoints: of a small pipeline, in this process, stopped where a test wants it."""

import hashlib
import io
import json

import spacy.training.loop
from confection import Config
from spacy.training.initialize import init_nlp
from spacy.util import registry

from thinc_torchopt.loop.log_numbers import latest_info
from thinc_torchopt.loop.run import train_while_improving

from .conftest import CONFIGS
from .models import TOK2VEC, WIDTH


class Crash(Exception):
    """Stands for a power cut: nothing of ours runs after it."""


# The shortest [training.optimizer].
OPTIMIZER = {"@optimizers": "thinc-torchopt.TorchOptimizer.v1", "algorithm": {"@torch_optimizers": "torch.AdamW.v1"}}
# Changes of `config_for`: models of megabytes, which learn in fewer steps.
LARGE = {f"components__{name}__model__tok2vec__width": 96 for name in ("tagger", "parser")}
LARGE |= {"components__tok2vec__model__width": 96, "components__tok2vec__model__embed_size": 200, "parser": True}
# CuPy adds up rows of embeddings, and what a parser looks at, in any order. Without these, runs on a GPU are the same.
EXACT_ON_GPU = {
    "parser": False,
    "training__optimizer__param_groups": {"embeddings": {"params": ["*/E"], "freeze": True}},
}


def config_for(folder, corpus, *, steps=20, parser=False, **changes):
    """configs/checkpoint.cfg with a small tok2vec, on the small corpus, for three epochs or so.

    parser (bool): With its parser, which draws from `random` where to cut texts, and takes a third of the time.
    changes: As of `change`.
    """
    config = Config().from_disk(CONFIGS / "checkpoint.cfg", interpolate=False)
    config["paths"] = {"train": str(corpus["train"]), "dev": str(corpus["dev"]), "state": str(folder / "state")}
    config["nlp"]["lang"] = "xx"  # made in a quarter of the time of an English one
    config["components"]["tok2vec"]["model"] = TOK2VEC.copy()
    config["components"]["parser"]["model"]["hidden_width"] = 16
    config["components"]["parser"]["update_with_oracle_cut_size"] = 4
    for name in ("tagger", "parser"):
        config["components"][name]["model"]["tok2vec"]["width"] = WIDTH
    if not parser:
        config["nlp"]["pipeline"].remove("parser")
        del config["components"]["parser"]
    config["training"] |= {"max_steps": steps, "eval_frequency": 5}
    config["training"]["batcher"]["size"] = 60
    config["training"]["optimizer"]["checkpoint"]["every"] = 3
    config["training"]["optimizer"]["learn_rate"]["warmup_steps"] = 5
    return change(config, **changes)


def change(config, **changes):
    """changes: Config paths with __ for dots; None removes a section. RETURNS: the config."""
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = config
        for name in sections:
            section = section.setdefault(name, {})
        if value is None:
            section.pop(key, None)
        else:
            section[key] = value
    return config


def run(config, output, **options):
    """`run_and_tell`. RETURNS: what loggers got at each step, without what counts time."""
    infos = {}

    def tell(found):
        scores = {key: value for key, value in (found["other_scores"] or {}).items() if key != "speed"}
        # What counts time, and what tells of the disk, is not the same in a run that was stopped.
        others = {"seconds", "elapsed", "time_spent", "other_scores", "output_path"}
        others |= {"last_checkpoint", "last_resume", "run_id"}
        kept = {key: value for key, value in found.items() if key not in others}
        infos[found["step"]] = repr((sorted(kept.items()), sorted(scores.items())))

    run_and_tell(config, output, tell, **options)
    return infos


def run_with_stops(config, output, *stops):
    """A run that is stopped before each of these steps, and goes on. RETURNS: as `run`, of all parts, and the digests
    of the end.
    """
    infos = {}
    for step in (*stops, None):
        infos |= run(config, output, crash_at=step)
    return infos, digests(output)


def run_and_tell(config, output, tell, *, crash_at=None, act=lambda step: None):
    """`spacy train` in this process. RETURNS: the pipeline, and the table.

    tell (Callable): Called with what loggers get. act (Callable): Called before each step, with its number.
    crash_at (int): The step before which the run is stopped.
    """
    text = io.StringIO()

    @registry.loggers("test-checkpoint.Recorder.v1")
    def recorder():
        return lambda nlp, stdout, stderr: (lambda info: tell(dict(latest_info(nlp))), lambda: None)

    @registry.callbacks("test-checkpoint.Crash.v1")
    def crash():
        def before_update(nlp, args):
            act(args["step"])
            if args["step"] == crash_at:
                raise Crash

        return before_update

    config = config.copy()
    config["training"]["logger"] = {"@loggers": "test-checkpoint.Recorder.v1"}
    config["training"]["before_update"] = {"@callbacks": "test-checkpoint.Crash.v1"}
    nlp = init_nlp(config.interpolate())
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    try:
        # From its module: ours is there once an optimizer of ours was made.
        spacy.training.loop.train(nlp, output, stdout=text, stderr=io.StringIO())
    except Crash:
        assert crash_at is not None
    return nlp, text.getvalue()


def train(config, output=None, function=None):
    """`spacy train` in this process, with the logger of the config. RETURNS: the table."""
    nlp, text = init_nlp(config.interpolate()), io.StringIO()
    (function or spacy.training.loop.train)(nlp, output, stdout=text, stderr=io.StringIO())
    return text.getvalue()


# Of a loop without dropout and without an end, which evaluates the first step only.
SETTINGS = {"dropout": 0.0, "eval_frequency": 100, "accumulate_gradient": 1, "patience": 0, "max_steps": 0}
SETTINGS |= {"exclude": [], "annotating_components": [], "before_update": None}


def loop_over(nlp, optimizer, batches, evaluate=lambda: (0.0, {}), **settings):
    """Our training loop over batches, not begun. settings: Other than SETTINGS."""
    return train_while_improving(nlp, optimizer, ((0, batch) for batch in batches), evaluate, **SETTINGS | settings)


def digests(folder):
    """Of all that a trained model has learned, and how it scored."""
    found = {}
    for name in ("model-best", "model-last"):
        for path in sorted((folder / name).rglob("*")):
            if path.is_file() and path.name in ("model", "pytorch_model.bin"):
                found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        found[f"{name} scores"] = {
            k: v
            for k, v in json.loads((folder / name / "meta.json").read_text())["performance"].items()
            if k != "speed"
        }
    assert len(found) >= 4
    return found


def contents(folder):
    """Every file below a folder, with its bytes and the time of its last change."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}
