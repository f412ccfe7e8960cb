"""What is said of rates, and of what ends a training."""

from types import SimpleNamespace as Namespace

import pytest
from thinc.api import compounding, warmup_linear

from thinc_torchopt.addons.preview import lines
from thinc_torchopt.addons.preview.lines import tell_rates
from thinc_torchopt.addons.preview.params import ParamRow
from thinc_torchopt.core.schedules.curves import inverse_sqrt, one_cycle, warmup_cosine
from thinc_torchopt.core.schedules.curves import warmup_linear as our_warmup_linear


def first(schedule, steps):
    return [next(schedule) for _ in range(steps + 1)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.001], "constant"),
        ([0.0] * 9, "0 all the time: nothing is learned"),
        (first(warmup_linear(5e-5, 250, 20000), 20000), "0, 0.00005 at step 250, 0 at step 20,000"),
        (
            first(our_warmup_linear(0.002, 100, 2000), 3000),
            "0.00002, 0.002 at step 100, 0 at step 2,000, 0 at step 3,000",
        ),
        (first(warmup_cosine(0.01, 0, 100), 50), "0.01, 0.005 at step 50"),
        (first(inverse_sqrt(0.001, 10), 1000), "0, 0.001 at step 10, 0.0001 at step 1,000"),
        (first(one_cycle(1.0, 101), 100), "0.04, 1 at step 30, 0.000004 at step 100"),
        (first(compounding(1.0, 1.21, 1.1), 10), "1, 1.21 at step 2, 1.21 at step 10"),
        ([0.1, 0.1, 0.1, 0.2, 0.2, 0.2], "0.1, 0.1 at step 2, 0.2 at step 3, 0.2 at step 5"),
        ([0.1, 0.3] * 10, "0.1..0.3, 18 turns: spacy torchopt schedule"),
    ],
    ids=["constant", "zero", "thinc", "over", "cosine", "sqrt", "cycle", "compounding", "jump", "many"],
)
def test_lines_tell_rates(values, words):
    assert tell_rates(values) == words


def test_lines_tell_rates_that_begin_later():
    assert tell_rates([0.5, 0.5, 0.25, 0.0], 100) == "0.5, 0.5 at step 101, 0 at step 103"


def test_lines_tell_of_up_to_six_turns():
    turns = [0.1, 0.3, 0.1, 0.3, 0.1, 0.3, 0.1, 0.3]
    steps = ", ".join(f"{value:g} at step {step}" for step, value in enumerate(turns[1:7], start=1))
    assert tell_rates(turns[:7]) == f"0.1, {steps}"
    assert tell_rates(turns) == "0.1..0.3, 6 turns: spacy torchopt schedule"
    # A step at the top, and two, which are a plateau.
    assert tell_rates([0.1, 0.2, 0.2, 0.1]) == "0.1, 0.2 at step 2, 0.1 at step 3"
    assert tell_rates([0.1, 0.2, 0.2, 0.2, 0.1]) == "0.1, 0.2 at step 1, 0.2 at step 3, 0.1 at step 4"
    assert tell_rates([0.1, 0.2, 0.2]) == "0.1, 0.2 at step 2"
    assert tell_rates([0.1, 0.1 + 1e-12]) == "constant"


@pytest.mark.parametrize(
    ("training", "limit", "told"),
    [
        ({}, None, "Never by itself. It is evaluated every 7 steps."),
        ({"max_epochs": 1}, None, "After epoch 1 (max_epochs). It is evaluated every 7 steps."),
        ({"max_epochs": -1}, None, "Never by itself. The corpus is streamed again and again (max_epochs = -1): its end "
         "does not end the training. It is evaluated every 7 steps."),
        ({"max_steps": 1000, "patience": 1600}, "2h", "At step 1,000 (max_steps), or when the score got no better for "
         "1,600 steps (patience), or after 2h (budget), whichever comes first. It is evaluated every 7 steps, and "
         "after each ninth of the budget at the latest."),
    ],
)  # fmt: skip
def test_lines_tell_what_ends_a_training(training, limit, told):
    training = {"max_steps": 0, "max_epochs": 0, "patience": 0, "eval_frequency": 7, **training}
    optimizer = Namespace(attachments={} if limit is None else {"budget": Namespace(limit=limit)})
    assert lines._end(training, optimizer) == told


def test_lines_tell_what_is_trained():
    row = ParamRow("a/W", "a", [2, 3], 6, "float32", "cpu", "thinc", frozen_until=0)
    rows = [row, row._replace(frozen_until=9, size=1000), row._replace(component="b", device="cuda:0"), row]
    rows.append(row._replace(component="c", frozen_until=None))
    told = "1,018 numbers in 4 params on cuda:0 and the CPU: a 1,012, b 6."
    assert lines._trained(rows) == told and lines._trained(rows[-1:]) == "Nothing."


def test_lines_tell_what_may_change():
    config = {"a": {"@misc": "thinc-torchopt.Checkpoint.v1", "@layers": "chain.v1"}}
    config["b"] = {"@misc": "thinc-torchopt.TrainerController.v1", "name": "thinc-torchopt.OnlineRNN.v1"}
    assert lines.tiers_in(config)["thinc-torchopt.Checkpoint.v1"] == "stable"
    told = "Provisional, may change in a minor version: thinc-torchopt.TrainerController.v1."
    assert lines._stability(config) == told
    assert lines.tier_of("thinc_torchopt.addons.controller.rules") == "provisional" and not lines._stability({})


@pytest.mark.parametrize("window", [None, 128])
@pytest.mark.parametrize(("cut", "cuts", "curated"), [(0, True, False), (5, True, False), (5, False, False), (5, 1, 1)])
def test_lines_tell_what_windows_lose(window, cut, cuts, curated, monkeypatch):
    class Lost(Namespace):
        def __str__(self):
            return "5 of 9 are lost"

    docs = [["word"] * 4 for _ in range(9)]
    node, read = Namespace(attrs={"get_spans": "spans"}), []
    tokenizer = Namespace(model_max_length=512 if cuts else 10**9)
    one = Namespace(component="roberta", is_curated=curated, node=node, longest_input=512, tokenizer=tokenizer)
    monkeypatch.setattr(lines, "_WORDS", 8)
    monkeypatch.setattr(lines, "transformers_of", lambda nlp, frozen: [one])
    monkeypatch.setattr(lines, "count_lost", lambda *asked: read.append(asked) or Lost(cut=cut))
    settings = Namespace(window_pieces=window, stride=96, max_batch_pieces=4000)
    setup = Namespace(nlp=None, frozen=[], optimizer=Namespace(attachments={"fine_tuning": settings}))
    told, notes = lines.tell_windows(setup, Namespace(examples=[Namespace(predicted=doc) for doc in docs]))
    assert read == ([] if curated else [(one, "spans", docs[:2])])
    is_lost = cut and not curated
    text = (
        "'roberta' reads windows of 128 wordpieces, 96 apart, 4,000 wordpieces at once, and is saved with windows of "
    )
    text += "words that lose none" + ". With the windows of its own section, 5 of 9 are lost" * bool(is_lost)
    assert told == ([] if window is None else [("Windows", f"{text}.")])
    happens = "" if cuts else ": more are an error of torch"
    note = f"5 of 9 are lost. 'roberta' reads at most 512 at once{happens}. A block [training.optimizer.fine_tuning] "
    note += 'with @misc = "thinc-torchopt.FineTuning.v1" makes windows that lose none.'
    assert notes == [note] * bool(is_lost and window is None)
    if window is None and not curated:
        setup.optimizer.attachments.clear()
        assert lines.tell_windows(setup, Namespace(examples=[]))[1] == notes
