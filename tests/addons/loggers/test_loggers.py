"""Oracles: spaCy's own ConsoleLogger for the table, the training loop's own numbers for files, TensorBoard's reader for
its events.
"""

import json
import math
import re
import sys
import threading
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import spacy.training.loop
import torch
from confection import Config
from spacy.pipeline import Tagger
from spacy.training.loggers import console_logger_v3
from spacy_loggers.util import dict_to_dot
from thinc.api import Adam, fix_random_seed

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.loggers.console import ConsoleLogger
from thinc_torchopt.addons.loggers.files import JSONLinesLogger, TensorBoardLogger
from thinc_torchopt.core import compat
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ConfigError, TorchOptWarning
from thinc_torchopt.loop.log_numbers import latest_info
from thinc_torchopt.loop.run_lock import is_held

from ... import runs
from ...conftest import CONFIGS
from ...models import toy_examples, toy_pipeline
from ...runs import SETTINGS, config_for
from ...spacy_cli import Terminal, toy_corpus
from ...spacy_cli import train as spacy_train

DOCS = Path(__file__).resolve().parents[3] / "docs" / "loggers.md"
RATES = [0.01 / (i + 1) for i in range(50)]

needs_tensorboard = pytest.mark.skipif(not compat.has_tensorboard, reason="tensorboard is not installed")


def pipeline(**training):
    nlp = toy_pipeline(["tagger", "ner"], shared=False)
    nlp.config["training"].update({"max_steps": 20, "eval_frequency": 4, **training})
    return nlp


def train(optimizer, *makers, steps=10, eval_frequency=4, stderr=None):
    """Train a small pipeline with loggers, called as `spacy.training.loop.train` calls them.

    RETURNS (tuple): What each logger printed, and the info of each step with its losses so far.
    """
    fix_random_seed(1)
    nlp = pipeline(eval_frequency=eval_frequency)
    examples = toy_examples(nlp)
    nlp.initialize(lambda: examples)
    outputs = [StringIO() for _ in makers]
    started = [maker(nlp, output, stderr or StringIO()) for maker, output in zip(makers, outputs)]

    def evaluate():
        scores = nlp.evaluate(examples)
        return scores["tag_acc"], scores

    options = SETTINGS | {"dropout": 0.2, "eval_frequency": eval_frequency}
    data = ((i // 4, examples[(3 * i) % 12 :][:3]) for i in range(steps))
    infos = []
    loop = spacy.training.loop.train_while_improving(nlp, optimizer, data, evaluate, **options)
    for _, info, is_best in loop:
        infos.append({**info, "losses": {pipe: float(loss) for pipe, loss in info["losses"].items()}})
        for log_step, _ in started:
            log_step(info if is_best is not None else None)
    for _, finalize in started:
        finalize()
    return [output.getvalue() for output in outputs], infos


def ours(**settings):
    return TorchOptimizer(AdamW(), RATES, **settings)


COUNTS = ("skipped_updates", "grad_spikes", "rollbacks", "outside_writes")


def info_of(step, **changes):
    """An info as our loop gives it, of an evaluated step."""
    scores = {"tag_acc": 0.5, "ents_f": 0.25, "ents_per_type": {"X": {"f": 0.25}}}
    return {
        "epoch": 0,
        "step": step,
        "score": 0.5,
        "other_scores": scores,
        "losses": {"tagger": 2.0, "ner": 4.0},
        "checkpoints": [(0.5, 0)],
        "seconds": 1,
        "words": 10,
        "learn_rates": {"default": 0.001},
        "grad_norm": 1.25,
        "skipped_updates": 0,
        **changes,
    }


def log(maker, *infos):
    """Show a logger infos of evaluated steps, and return what it printed."""
    output = StringIO()
    log_step, finalize = maker(pipeline(), output, StringIO())
    for info in infos:
        log_step(info)
    finalize()
    return output.getvalue()


def lines_of(path):
    """Every line of a file, as strict JSON."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    text = path.read_text(encoding="utf8")
    assert text.endswith("\n") or not text
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


# ---------------------------------------------------------------------- console


def test_loggers_console_prints_spacys_table_with_thincs_optimizer():
    (mine, theirs), _ = train(Adam(0.01), ConsoleLogger(), console_logger_v3())
    assert mine == theirs and len(mine.splitlines()) == 5


def test_loggers_console_adds_columns_behind_spacys():
    (mine, theirs), infos = train(ours(), ConsoleLogger(), console_logger_v3())
    mine, theirs = mine.splitlines(), theirs.splitlines()
    assert len(mine) == len(theirs) == 5
    assert all(ours[: len(row)] == row for ours, row in zip(mine, theirs))
    added = [line[len(row) :] for line, row in zip(mine, theirs)]
    assert added[:2] == ["  LR        NORM    ", "  --------  --------"]
    assert added[2:] == [f"  {RATES[step]:.2e}  {infos[step]['grad_norm']:8.2f}" for step in (0, 4, 8)]


@pytest.mark.parametrize(
    "rates,header,row",
    [
        ({"default": 2e-5}, "LR        NORM", "2.00e-05 1.25"),
        ({"encoder": 2e-5, "ner/*": 1e-3}, "LR ENCODER  LR NER/*  NORM", "2.00e-05 1.00e-03 1.25"),
        ({"encoder+no_decay": 2e-5, "b": 0.0}, "LR ENCODER...  LR B      NORM", "2.00e-05 0.00e+00 1.25"),
        (
            {"abcd"[i]: i / 10 for i in range(4)},
            "LR A      LR B      LR C      LR D      NORM",
            "0.00e+00 1.00e-01 2.00e-01 3.00e-01 1.25",
        ),
        (
            {f"layer{i}": 10.0**-i for i in range(30)} | {"frozen": 0.0},
            "LR MIN    LR MAX    NORM",
            "1.00e-29 1.00e+00 1.25",
        ),
        (dict.fromkeys("abcde", 0.0), "LR MIN    LR MAX    NORM", "0.00e+00 0.00e+00 1.25"),
    ],
    ids=lambda value: str(len(value)),
)
def test_loggers_console_shows_param_groups(rates, header, row):
    mine = log(ConsoleLogger(), info_of(0, learn_rates=rates)).splitlines()
    theirs = log(console_logger_v3(), info_of(0)).splitlines()
    assert mine[0][len(theirs[0]) :].strip() == header
    assert mine[2][len(theirs[2]) :].split() == row.split()
    # Every cell ends where its column's line of dashes ends.
    assert len(mine[1]) == len(mine[2])


def test_loggers_console_has_a_new_header_when_groups_change():
    infos = [
        info_of(i, learn_rates=rates)
        for i, rates in enumerate([{"a": 0.1}, {"a": 0.1}, {"a": 0.1, "b": 0.2}, {"b": 0.3, "a": 0.1}])
    ]
    rows = log(ConsoleLogger(), *infos).splitlines()
    headers = [row for row in rows if row.startswith("E ")]
    assert len(rows) == 8 and [row.split()[-2:] for row in headers] == [["LR", "NORM"], ["B", "NORM"]]
    assert rows[4] == headers[1] and rows[6].split()[-3:] == ["1.00e-01", "2.00e-01", "1.25"]
    assert rows[7].split()[-3:] == ["1.00e-01", "3.00e-01", "1.25"]


def test_loggers_console_tells_once_what_was_not_as_it_should_be():
    counts = [(0, 0, 0), (2, 0, 0), (0, 0, 4), (1, 1, 0)]
    names = ("skipped_updates", "rollbacks", "outside_writes")
    infos = [
        info_of(4 * i, since_evaluation={"grad_spikes": 5, **dict(zip(names, found))}) for i, found in enumerate(counts)
    ]
    rows = log(ConsoleLogger(), *infos).splitlines()[2:]
    ends = ["", "  2 skipped", "  4 rates changed from outside", "  1 skipped  1 rolled back"]
    assert [re.search(r"1\.25(.*)", row)[1] for row in rows] == ends


@pytest.mark.parametrize(
    "norm,text",
    [(None, ""), (math.inf, "inf"), (math.nan, "nan"), (0.00123, "1.23e-03"), (44912.0, "44912.00"), (3e6, "3.00e+06")],
)
def test_loggers_console_shows_any_norm(norm, text):
    assert log(ConsoleLogger(), info_of(0, grad_norm=norm)).splitlines()[2].partition("1.00e-03  ")[2].strip() == text


@pytest.mark.parametrize(
    "kind,begins,goes_on",
    [("train", "Step 4/20 |", "Step 5/20 |"), ("eval", "To the evaluation: 0/4 |", "To the evaluation: 1/4 |")],
)
def test_loggers_console_progress_bar_shows_time_loss_and_rate(kind, begins, goes_on):
    screen = Terminal()
    (mine, theirs), _ = train(ours(), ConsoleLogger(progress_bar=kind), ConsoleLogger(), stderr=screen)
    assert mine == theirs
    # tqdm draws ten times a second at most: draw each time.
    nlp = pipeline()
    loop_info = {**info_of(5), "learn_rates": {"a": 0.01, "b": 0.02}, "losses": {"tagger": 2.5}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thinc_torchopt.loop.log_numbers.latest_info", lambda nlp: loop_info)
        patch.setattr("tqdm.tqdm.update", lambda bar, n: (setattr(bar, "n", bar.n + n), bar.refresh()))
        log_step, finalize = ConsoleLogger(progress_bar=kind)(nlp, StringIO(), screen := Terminal())
        log_step(info_of(4))
        log_step(None)
        loop_info["losses"]["tagger"] = 4.0  # a sum since the evaluation
        log_step(None)
    bars = [bar for bar in screen.getvalue().split("\r") if bar.strip()]
    assert bars[0].startswith(begins) and bars[1].startswith(goes_on)
    assert bars[1].endswith("left, loss 2.5, LR 1.00e-02 to 2.00e-02") and "loss 2, LR" in bars[2]
    assert re.search(r"\| \d\d:\d\d left", bars[2])
    finalize()
    assert screen.getvalue().endswith("\r")  # wiped


def test_loggers_console_progress_bar_goes_on_after_an_evaluation():
    """The time left counts evaluations. Without max_steps, a bar goes to the next evaluation."""
    nlp = pipeline()
    for max_steps, found in ((20, "Step 8/20 |"), (0, "To the evaluation: 0/4 |")):
        nlp.config["training"]["max_steps"] = max_steps
        log_step, finalize = ConsoleLogger(progress_bar="train")(nlp, StringIO(), screen := Terminal())
        for info in (info_of(4), None, None, None, info_of(8)):
            log_step(info)
        assert screen.getvalue().rpartition("\r")[2].startswith(found)
        finalize()


def test_loggers_console_progress_bar_needs_a_terminal():
    screen = StringIO()
    train(ours(), ConsoleLogger(progress_bar="train"), stderr=screen)
    assert screen.getvalue() == ""


def test_loggers_console_leaves_the_file_to_spacy(tmp_path):
    mine, theirs = tmp_path / "mine.jsonl", tmp_path / "theirs.jsonl"
    makers = [
        ConsoleLogger(console_output=False, output_file=mine),
        console_logger_v3(console_output=False, output_file=theirs),
    ]
    (printed, expected), _ = train(ours(), *makers)
    assert mine.read_bytes() == theirs.read_bytes() and len(lines_of(mine)) == 3
    assert printed == expected.replace("theirs", "mine") and "Saving results" in printed


# ---------------------------------------------------------------------- the latest info


def test_loggers_latest_info_lives_as_long_as_the_training():
    seen = []

    def maker(nlp, stdout, stderr):
        seen.append(nlp)
        return lambda info: seen.append(latest_info(nlp)), lambda: seen.append(latest_info(nlp))

    train(ours(), maker, steps=6)
    nlp, *infos, last = seen
    assert [info["step"] for info in infos] == [0, 1, 2, 3, 4, 5] and last is None and latest_info(nlp) is None
    seen.clear()
    train(Adam(0.01), maker, steps=6)
    assert not any(seen[1:])


# ---------------------------------------------------------------------- JSON lines


def test_loggers_jsonl_writes_every_step(tmp_path):
    _, infos = train(ours(), JSONLinesLogger(tmp_path / "new" / "log.jsonl"))
    # Evaluated at every step, spaCy's sums are the losses of each step. Evaluating changes nothing in the training.
    _, singles = train(ours(), eval_frequency=1)
    lines = lines_of(tmp_path / "new" / "log.jsonl")
    assert [line["step"] for line in lines] == list(range(10))
    said = lines[0].pop("trained")
    assert lines[0].pop("run_id") == infos[-1]["run_id"]
    assert [one["name"] for one in said["components"]] == ["tagger", "ner"] and said["components"][0]["n_labels"] == 4
    assert set(said["config"]) == {"paths", "corpora", "training"} and "logger" not in said["config"]["training"]
    for line, info, single in zip(lines, infos, singles):
        # The losses are differences of sums in single precision.
        assert line.pop("losses") == pytest.approx(single["losses"], rel=1e-5)
        evaluated = info["step"] % 4 == 0
        assert ("score" in line, "scores" in line) == (evaluated, evaluated)
        if evaluated:
            assert line.pop("scores")["tag_acc"] == info["other_scores"]["tag_acc"]
            assert line.pop("score") == info["score"]
        assert line.pop("time_spent").keys() == {"data", "updates", "evaluations", "saving"}
        assert line.pop("seconds") == round(info["elapsed"], 3) and info["seconds"] == int(info["elapsed"])
        assert line == {key: info[key] for key in ("step", "epoch", "words", "learn_rates", "grad_norm", *COUNTS)}
        assert line["learn_rates"] == {"default": RATES[info["step"]]} and line["grad_norm"] > 0


def test_loggers_jsonl_writes_every_third_step_and_evaluations(tmp_path):
    makers = [JSONLinesLogger(tmp_path / "all.jsonl"), JSONLinesLogger(tmp_path / "some.jsonl", every=3)]
    train(ours(), *makers, steps=12)
    all_lines, lines = lines_of(tmp_path / "all.jsonl"), lines_of(tmp_path / "some.jsonl")
    steps = [line["step"] for line in lines]
    assert steps == [0, 3, 4, 6, 8, 9]
    for line, before in zip(lines, [-1, *steps]):
        losses = [all_lines[step]["losses"]["ner"] for step in range(before + 1, line["step"] + 1)]
        assert line["losses"]["ner"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.filterwarnings("ignore:Skipped an update")
@pytest.mark.parametrize("how", ["NaN", "E910"])
def test_loggers_jsonl_writes_null_for_a_bad_batch_alone(how, tmp_path, monkeypatch):
    """That of step 5, between the evaluations at steps 4 and 8."""
    known, get_loss = [], Tagger.get_loss

    def get_loss_with_a_bad_batch(self, examples, scores):
        loss, d_scores = get_loss(self, examples, scores)
        known.append(math.nan if len(known) == 5 else loss)
        if math.isnan(known[-1]) and how == "E910":
            raise ValueError("[E910] Encountered NaN value when computing loss for component 'tagger'.")
        return known[-1], d_scores

    monkeypatch.setattr(Tagger, "get_loss", get_loss_with_a_bad_batch)
    makers = [JSONLinesLogger(tmp_path / "all.jsonl"), JSONLinesLogger(tmp_path / "some.jsonl", every=3)]
    train(ours(), *makers)
    found, some = ([line["losses"] for line in lines_of(tmp_path / f"{name}.jsonl")] for name in ("all", "some"))
    # The losses are differences of sums in single precision.
    expected = [None if math.isnan(loss) else pytest.approx(loss, rel=1e-5) for loss in known]
    assert [losses["tagger"] for losses in found] == expected
    assert [i for i, losses in enumerate(found) if losses["ner"] is None] == [5] * (how == "E910")
    assert [losses["tagger"] is None for losses in some] == [step == 6 for step in (0, 3, 4, 6, 8, 9)]


def test_loggers_jsonl_writes_evaluations_with_thincs_optimizer(tmp_path):
    _, infos = train(Adam(0.01), JSONLinesLogger(tmp_path / "log.jsonl"))
    lines = lines_of(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == [0, 4, 8]
    assert all(set(line) == {"step", "epoch", "seconds", "words", "losses", "score", "scores"} for line in lines)
    assert lines[1]["losses"]["ner"] == pytest.approx(infos[4]["losses"]["ner"] / 4, rel=1e-6)


def test_loggers_jsonl_is_json_whatever_the_numbers(tmp_path):
    scores = {
        "nan": math.nan,
        "inf": -numpy.inf,
        "half": numpy.float16(0.5),
        "long": numpy.longdouble(0.5),
        "int": numpy.int64(3),
        "bool": numpy.bool_(True),
        "array": numpy.array([[1.0, numpy.nan]]),
        "torch": torch.tensor(0.5, requires_grad=True),
        "bfloat16": torch.tensor([0.5], dtype=torch.bfloat16),
        "none": None,
        "text": 'a "b"\n\u2028ü',
        "per_type": {("a", 1): (1, 2.0)},
        "object": Path("x"),
    }
    log(
        JSONLinesLogger(tmp_path / "log.jsonl"),
        info_of(0, other_scores=scores, grad_norm=math.inf, losses={"ner": numpy.float32("nan")}),
    )
    text = (tmp_path / "log.jsonl").read_bytes()
    (line,) = lines_of(tmp_path / "log.jsonl")
    assert text.count(b"\n") == 1 and text.isascii()
    assert line["grad_norm"] is None and line["losses"] == {"ner": None}
    assert line["scores"] == {
        "nan": None,
        "inf": None,
        "half": 0.5,
        "long": 0.5,
        "int": 3,
        "bool": True,
        "array": [[1.0, None]],
        "torch": 0.5,
        "bfloat16": [0.5],
        "none": None,
        "text": 'a "b"\n\u2028ü',
        "per_type": {"('a', 1)": [1, 2.0]},
        "object": "x",
    }


def test_loggers_jsonl_lines_are_there_at_once(tmp_path):
    log_step, finalize = JSONLinesLogger(tmp_path / "log.jsonl")(pipeline(), StringIO(), StringIO())
    for i in range(3):
        log_step(info_of(i))
        assert len(lines_of(tmp_path / "log.jsonl")) == i + 1
    finalize()


def test_loggers_jsonl_continues_a_run_and_mixes_no_two(tmp_path):
    path, second, third = (tmp_path / name for name in ("log.jsonl", "log-2.jsonl", "log-3.jsonl"))
    logger = JSONLinesLogger(path)
    assert str(path) in log(logger, info_of(0, run_id="a"), info_of(4, run_id="a")).replace("\n", "")
    assert "log-2.jsonl" in log(logger, info_of(0, run_id="b"))  # another run
    log(logger, info_of(5, run_id="a"), info_of(8, run_id="a"))  # the first one is resumed
    assert [line["step"] for line in lines_of(path)] == [0, 4, 5, 8]
    assert [line.get("run_id") for line in lines_of(path)] == ["a", None, "a", None]  # each process tells it
    log(logger, info_of(1, run_id="b"))
    assert [line["step"] for line in lines_of(second)] == [0, 1]
    before = path.read_bytes()
    log(logger, info_of(8, run_id="a"))  # resumed from an older checkpoint
    log(logger, info_of(9, run_id="a"))
    assert [line["step"] for line in lines_of(third)] == [8, 9] and len(lines_of(second)) == 2
    assert path.read_bytes() == before
    log(logger, info_of(20))  # of no known run: older logs tell none either
    log(logger, info_of(30))
    assert [len(lines_of(tmp_path / f"log-{n}.jsonl")) for n in (4, 5)] == [1, 1]


def test_loggers_jsonl_of_resumed_runs_in_one_file(corpus, tmp_path):
    """Two runs with one path for their logs: each goes on in its own, or a report would show a mixture."""
    path = tmp_path / "log.jsonl"

    def train(name, steps, seed=0):
        config = config_for(tmp_path / name, corpus, steps=steps, system__seed=seed)
        config["training"]["logger"] = {"@loggers": "thinc-torchopt.JSONLinesLogger.v1", "path": str(path)}
        runs.train(config, tmp_path / name)

    train("a", 4)
    train("b", 2, seed=3)
    train("a", 6)
    steps = [[line["step"] for line in lines_of(log)] for log in (path, tmp_path / "log-2.jsonl")]
    assert steps == [[*range(7)], [*range(3)]] and not (tmp_path / "log-3.jsonl").exists()


@pytest.mark.parametrize(
    "content",
    [
        '{"step": 3}\n{"step": 4, "epo',
        '{"step": 3}',
        '{"text": "a corpus"}\n',
        "[3]\n",
        "\n",
        '{"step": "3"}\n',
        "no json\n",
    ],
    ids=["half-written", "no-newline", "corpus", "list", "blank", "text-step", "text"],
)
def test_loggers_jsonl_leaves_other_files_alone(tmp_path, content):
    (tmp_path / "log.jsonl").write_text(content)
    log(JSONLinesLogger(tmp_path / "log.jsonl"), info_of(8))
    assert (tmp_path / "log.jsonl").read_text() == content
    assert len(lines_of(tmp_path / "log-2.jsonl")) == 1


def test_loggers_jsonl_takes_an_empty_file_and_no_folder(tmp_path):
    (tmp_path / "log.jsonl").touch()
    log(JSONLinesLogger(tmp_path / "log.jsonl"), info_of(0))
    assert len(lines_of(tmp_path / "log.jsonl")) == 1 and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ConfigError, match="expected a file, found a folder"):
        log(JSONLinesLogger(tmp_path))


def test_loggers_jsonl_of_two_runs_at_once(tmp_path):
    first, second = (JSONLinesLogger(tmp_path / "log.jsonl")(pipeline(), StringIO(), StringIO()) for _ in range(2))
    for step in (0, 4):
        first[0](info_of(step))
        second[0](info_of(step))
    first[1]()
    second[1]()
    assert all([line["step"] for line in lines_of(tmp_path / name)] == [0, 4] for name in ("log.jsonl", "log-2.jsonl"))


def test_loggers_jsonl_holds_its_file_while_it_writes(tmp_path):
    """By which `report --watch` knows that the training goes on."""
    path = tmp_path / "log.jsonl"
    log_step, finalize = JSONLinesLogger(path)(pipeline(), StringIO(), StringIO())
    assert is_held(path) is None
    log_step(info_of(0))
    assert is_held(path) and is_held(path)  # to look does not let go of it
    finalize()
    assert is_held(path) is False


def test_loggers_jsonl_tells_what_is_no_loss_and_the_dev_loss_that_rules_saw(corpus, tmp_path):
    """And where the run was resumed. The oracle for the loss: what the rule got, as its firing tells."""
    metrics = [
        {"name": "dev", "class": "EvalLoss"},
        {"name": "one", "class": "EvalLoss", "arguments": {"max_examples": 1}},
    ]
    rule = {
        "name": "r",
        "triggers": ["on_evaluate"],
        # A firing has what its rule looked up.
        "rule": 'dev["loss"] > one["loss"] and dev["words"] > 0 and dev["examples"] > 0 and '
        'max(dev["components"]["tagger"], dev["components"]["encoder"]) > 0',
        "operations": ["control.should_save"],
    }
    config = config_for(tmp_path, corpus)
    config["components"]["encoder"] = config["components"].pop("tok2vec")
    config["nlp"]["pipeline"] = ["encoder", *config["nlp"]["pipeline"][1:]]
    config["components"]["tagger"]["model"]["tok2vec"]["upstream"] = "encoder"
    config["training"]["optimizer"]["controller"] = {
        "@misc": "thinc-torchopt.TrainerController.v1",
        "definition": {"controller_metrics": metrics, "controllers": [rule]},
    }
    logger = {"@loggers": "thinc-torchopt.JSONLinesLogger.v1", "path": str(tmp_path / "log.jsonl")}
    config["training"]["logger"] = logger
    for last in (6, 10):
        config["training"]["max_steps"] = last
        runs.train(config)
    lines = lines_of(tmp_path / "log.jsonl")
    config["training"]["logger"]["path"] = str(tmp_path / "whole.jsonl")
    config["training"]["optimizer"]["checkpoint"]["path"] = str(tmp_path / "other")
    runs.train(config)
    for line, whole in zip(lines, lines_of(tmp_path / "whole.jsonl"), strict=True):
        # Differences of sums in single precision.
        assert line["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert [line["step"] for line in lines if "sums_of_gradients" in line] == [0, 7]
    assert {name for line in lines for name in line.get("sums_of_gradients", ())} == {"encoder"}
    assert [line.get("last_resume") for line in lines] == [None] * 7 + [7] * 4
    evaluated = {line["step"]: line for line in lines if "dev_losses" in line}
    assert list(evaluated) == [0, 5, 10]
    for line in evaluated.values():
        [fired] = line["controller"]
        seen, found = fired["values"]["dev"], line["dev_losses"]
        assert found == {"losses": seen["components"], "words": seen["words"], "examples": seen["examples"]}


@pytest.fixture
def small_disk():
    """Files can't grow beyond 2,000 bytes, as on a disk that is full."""
    resource = pytest.importorskip("resource", reason="no limits on Windows")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))

    yield fill
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_loggers_jsonl_lets_training_go_on_when_the_disk_is_full(tmp_path, small_disk):
    log_step, finalize = JSONLinesLogger(tmp_path / "log.jsonl")(pipeline(), StringIO(), StringIO())
    small_disk()
    with pytest.warns(TorchOptWarning, match=r"log\.jsonl at step \d+.*The training continues") as warned:
        for i in range(20):
            log_step(info_of(i))
        finalize()
    assert len(warned) == 1
    # The first line is longer: it says what is trained.
    assert [line["step"] for line in lines_of(tmp_path / "log.jsonl")] == [0, 1]
    assert 1500 < (tmp_path / "log.jsonl").stat().st_size <= 2000


# ---------------------------------------------------------------------- TensorBoard


def scalars_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


@needs_tensorboard
def test_loggers_tensorboard_writes_every_step(tmp_path):
    _, infos = train(ours(), TensorBoardLogger(tmp_path / "tb"), JSONLinesLogger(tmp_path / "log.jsonl"))
    found, lines = scalars_of(tmp_path / "tb"), lines_of(tmp_path / "log.jsonl")
    # TensorBoard keeps single precision.
    same = lambda values: pytest.approx(values, rel=1e-6)  # noqa: E731
    assert found["learn_rate/default"] == same(dict(enumerate(RATES[:10])))
    assert found["grad_norm"] == same({info["step"]: info["grad_norm"] for info in infos})
    for count in COUNTS:
        assert found[count] == dict.fromkeys(range(10), 0.0)
    assert found["loss/ner"] == same({line["step"]: line["losses"]["ner"] for line in lines})
    assert found["score"] == same({info["step"]: info["score"] for info in infos if info["score"] is not None})
    assert set(found["score/ents_f"]) == {0, 4, 8} and not any("per_type" in tag for tag in found)


@needs_tensorboard
def test_loggers_tensorboard_with_thincs_optimizer(tmp_path):
    train(Adam(0.01), TensorBoardLogger(tmp_path / "tb"))
    found = scalars_of(tmp_path / "tb")
    assert set(found["loss/ner"]) == {0, 4, 8} and not {"grad_norm", "learn_rate/default", *COUNTS} & set(found)


@needs_tensorboard
def test_loggers_tensorboard_takes_any_group_and_number(tmp_path):
    rates = {"encoder+no_decay": 0.5, "ner/*": numpy.float32(0.25)}
    scores = {"tensor": torch.tensor(0.5), "text": "a", "nan": math.nan, "none": None, "list": [1.0]}
    log(TensorBoardLogger(tmp_path / "tb", every=2), info_of(3, learn_rates=rates, other_scores=scores, grad_norm=None))
    found = scalars_of(tmp_path / "tb")
    assert found["learn_rate/encoder+no_decay"] == {3: 0.5} and found["learn_rate/ner/*"] == {3: 0.25}
    assert found["score/tensor"] == {3: 0.5} and math.isnan(found["score/nan"][3])
    assert not {"grad_norm", "score/text", "score/none", "score/list"} & set(found)


@needs_tensorboard
def test_loggers_tensorboard_gives_each_run_a_folder(tmp_path):
    logger = TensorBoardLogger(tmp_path / "runs" / "a.b")
    (tmp_path / "runs" / "a.b").mkdir(parents=True)
    log(logger, info_of(0))
    assert "a.b-2" in log(logger, info_of(0))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a.b", "a.b-2"]
    assert all(len(list(path.iterdir())) == 1 for path in (tmp_path / "runs").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="expected a folder, found a file"):
        log(TensorBoardLogger(tmp_path / "file"))


@needs_tensorboard
def test_loggers_tensorboard_lets_training_go_on_when_the_disk_is_full(tmp_path, small_disk, monkeypatch):
    # TensorBoard writes in a thread of its own, which ends with the error.
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    threads = set(threading.enumerate())
    log_step, finalize = TensorBoardLogger(tmp_path / "tb")(pipeline(), StringIO(), StringIO())
    small_disk()
    with pytest.warns(TorchOptWarning, match=r"tb at step \d+.*The training continues") as warned:
        for i in range(200):
            log_step(info_of(i))
        finalize()
    assert len(warned) == 1
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_loggers_tensorboard_names_its_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(compat, "has_tensorboard", False)
    with pytest.raises(ImportError, match=r"pip install 'tensorboard>="):
        TensorBoardLogger(tmp_path)


# ---------------------------------------------------------------------- in company


@needs_tensorboard
def test_loggers_chain_in_a_real_training(tmp_path):
    """configs/loggers.cfg as a user runs it, with spaCy's own table beside ours."""
    config = Config().from_disk(CONFIGS / "loggers.cfg", interpolate=False)
    config["training"]["logger"]["logger4"]["console_output"] = True
    config.to_disk(tmp_path / "config.cfg")
    run = spacy_train(tmp_path / "config.cfg", tmp_path / "out", toy_corpus(tmp_path), paths__logs=tmp_path / "logs")
    table = run.stdout.splitlines()
    mine = [line for line in table if re.search(r"\d\.\d\de[-+]\d\d  +[\d.]+$", line)]
    theirs = [line for line in table if re.fullmatch(r"( +\d+){2}( +[\d.]+)+", line) and line not in mine]
    assert len(mine) == len(theirs) == 3 and all(row.startswith(their_row) for row, their_row in zip(mine, theirs))
    assert "\u2502" not in run.stderr and "it/s" not in run.stderr  # no progress bar: stderr is no terminal
    lines = lines_of(tmp_path / "logs" / "log.jsonl")
    assert [line["step"] for line in lines] == list(range(7)) and lines[6]["learn_rates"]["default"] == 0.002 * 6 / 100
    assert len(lines_of(tmp_path / "logs" / "evaluations.jsonl")) == 3
    assert set(scalars_of(tmp_path / "logs" / "tensorboard")["learn_rate/default"]) == {0, 3, 6}


def documented(service):
    """The block of docs/loggers.md or docs/faq.md for a logger of spacy-loggers."""
    text = DOCS.read_text() + (DOCS.parent / "faq.md").read_text()
    blocks = re.findall(r"^```ini\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if service in block]
    chain = Config().from_str(block.replace("[training.", "["))["logger"].values()
    return next(dict(settings) for settings in chain if isinstance(settings, dict) and service in settings["@loggers"])


def to_service(name, module, monkeypatch, info):
    """Log one step with a logger of spacy-loggers, its service played by `module`."""
    settings = documented(name)
    monkeypatch.setitem(sys.modules, name.lower(), module)
    logger = spacy.registry.loggers.get(settings.pop("@loggers"))(**settings)
    log(logger, info)


def test_loggers_wandb_gets_our_numbers(monkeypatch):
    logged = {}
    run = SimpleNamespace(id="1", name="")
    wandb = SimpleNamespace(init=lambda **kwargs: run, log=logged.update, join=lambda: None, run=run)
    to_service("Wandb", wandb, monkeypatch, info_of(0, learn_rates={"encoder": 0.1, "ner/*": 0.2}))
    # W&B itself takes nested dicts apart.
    flat = dict_to_dot(logged)
    told = {key: flat[key] for key in ("learn_rates.encoder", "learn_rates.ner/*", "grad_norm", "skipped_updates")}
    assert told == {"learn_rates.encoder": 0.1, "learn_rates.ner/*": 0.2, "grad_norm": 1.25, "skipped_updates": 0}
    assert "seconds" not in flat


def test_loggers_mlflow_gets_our_numbers(monkeypatch):
    """MLflow takes no dict, and spacy-loggers doesn't take it apart: rates come as one number each."""
    logged = {}
    nothing = lambda *args, **kwargs: None  # noqa: E731
    mlflow = SimpleNamespace(
        **dict.fromkeys(("start_run", "log_params", "log_param", "log_artifact", "end_run"), nothing)
    )
    mlflow.log_metric = lambda key, value: logged.update({key: float(value)})
    mlflow.log_metrics = lambda metrics: logged.update({key: float(value) for key, value in metrics.items()})
    to_service(
        "MLflow", mlflow, monkeypatch, {**info_of(0), "learn_rate_default": 0.5, "learn_rate_encoder_no_decay": 0.25}
    )
    rates = {"learn_rate_default": 0.5, "learn_rate_encoder_no_decay": 0.25}
    told = {key: logged.get(key) for key in ("grad_norm", "skipped_updates", *rates)}
    assert told == {"grad_norm": 1.25, "skipped_updates": 0.0, **rates}
