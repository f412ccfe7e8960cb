"""What the tests of rules share: definitions in few words, and a small training with them."""

import srsly
from confection import Config

from thinc_torchopt.addons.controller import TrainerController

from ...conftest import CONFIGS
from ...models import TOK2VEC, pipeline_params, same
from ...runs import run_and_tell


def part(name, kind, **arguments):
    """A metric or an operation."""
    return {"name": name, "class": kind, "arguments": arguments}


STEP = part("state", "TrainingState")
LOSS = part("loss", "Loss")
SCORES = part("scores", "EvalMetrics")
NORMS = part("norms", "GradNorm")
STOP = "control.should_training_stop"
LOG = "control.should_log"
CUT = part("cut", "LearnRateControl", factor=0.5)
LOWER = part("lower", "FreezeControl", params=["*embed*"])
NOTE = part("note", "LogControl", log_format="step {step}", log_level="warning")
BEST, LAST = part("best", "RollbackControl"), part("last", "RollbackControl", to="last")


def rule(name, events, text, *operations, **more):
    """A controller. events (str | list[str]): Its triggers."""
    triggers = [events] if isinstance(events, str) else list(events)
    return {"name": name, "triggers": triggers, "rule": text, "operations": list(operations), **more}


def definition(*rules, metrics=(STEP,), operations=()):
    return {"controller_metrics": list(metrics), "operations": list(operations), "controllers": list(rules)}


def make(*rules, **parts):
    """A controller of rules."""
    return TrainerController(definition(*rules, **parts))


def config_for(folder, corpus, rules, *, steps=12, checkpoint=False, **optimizer):
    """A small tagger, on the small corpus. rules (dict | None): A definition."""
    config = Config().from_disk(CONFIGS / "controller.cfg", interpolate=False)
    config["paths"] = {"train": str(corpus["train"]), "dev": str(corpus["dev"])}
    config["nlp"]["lang"] = "xx"  # made in a quarter of the time of an English one
    config["components"]["tagger"]["model"]["tok2vec"] = {**TOK2VEC, "width": 32, "depth": 1}
    config["training"] |= {"max_steps": steps, "eval_frequency": 4}
    config["training"]["batcher"]["size"] = 60
    config["training"]["optimizer"]["learn_rate"] = 0.01
    config["training"]["optimizer"].pop("controller")
    if rules is not None:
        folder.mkdir(parents=True, exist_ok=True)
        srsly.write_yaml(folder / "rules.yaml", rules)
        block = {"@misc": "thinc-torchopt.TrainerController.v1", "definition": str(folder / "rules.yaml")}
        config["training"]["optimizer"]["controller"] = block
    if checkpoint:
        block = {"@misc": "thinc-torchopt.Checkpoint.v1", "path": str(folder / "state"), "keep": 9}
        config["training"]["optimizer"]["checkpoint"] = block
    config["training"]["optimizer"] |= optimizer
    return config


def run(config, output=None, *, crash_at=None, at=None, log_at=None):
    """`spacy train` in this process. at, log_at (dict): Functions to call in a step, and in the logger. RETURNS: the
    pipeline, what loggers got at each step, and the output.
    """
    infos = {}

    def tell(found):
        (log_at or {}).get(found["step"], lambda: None)()
        infos[found["step"]] = {**found, "losses": dict(found["losses"])}

    def act(step):
        (at or {}).get(step, lambda: None)()

    nlp, text = run_and_tell(config, output, tell, crash_at=crash_at, act=act)
    return nlp, infos, text


def firings(infos):
    """Step, controller and action of each."""
    found = [firing for info in infos.values() for firing in info.get("controller", ())]
    return [(firing["step"], firing["controller"], firing["action"]) for firing in found]


def same_params(one, other):
    one, other = pipeline_params(one), pipeline_params(other)
    return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
