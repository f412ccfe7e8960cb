"""Logs that the logger wrote in real trainings, and logs as they are found: what is read, against their lines."""

import json
import math
import re
from contextlib import ExitStack
from io import StringIO

import numpy
import pytest
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as spacy_train

from thinc_torchopt.addons.report.figures import make_panels
from thinc_torchopt.addons.report.runs import facts_of, read_runs, summarize
from thinc_torchopt.core.errors import ConfigError, NonFiniteGradWarning, RollbackWarning
from thinc_torchopt.loop.checkpoint_folder import steps_of

from ...runs import config_for
from .kit import evaluated, events, log, only, row, rows, write

# ---------------------------------------------------------------------- reading


def test_runs_reads_what_is_in_a_log(tmp_path):
    lines = rows(23)
    run = only(read_runs([write(tmp_path / "a" / "log.jsonl", lines)]))
    assert run.steps.tolist() == list(range(23)) and run.label == "a/log" and not run.notes and not run.events
    assert set(run.columns["scores"]) == {"token_acc", "ents_p", "ents_r", "ents_f", "tag_acc", "speed"}
    found = summarize(run)
    assert (found["best_score"], found["best_step"], found["last_step"], found["epoch"]) == (1 - 1 / 22, 20, 22, 2)
    assert (found["lowest_final_rate"], found["highest_final_rate"]) == (0.0005, 0.001)
    assert found["words_per_second"] == pytest.approx(400.0) and found["seconds"] == 6.0
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_runs_best_score_is_the_first_of_equal_ones(tmp_path):
    lines = [evaluated(i, score) for i, score in enumerate((0.5, 0.75, 0.75, 0.625, None))]
    run = only(read_runs([write(tmp_path / "log.jsonl", lines)]))
    assert run.best == (0.75, 1)
    assert facts_of(run)[:2] == [("best score", "0.75", "at step 1"), ("last score", "0.625", "")]


def test_runs_speed_leaves_evaluations_out_if_the_log_tells_them_apart(tmp_path):
    """4 words a second, and evaluations of 100 seconds."""
    seconds, exact = 0.0, []
    for step in range(40):
        seconds += 0.25 + (100.0 if step and (step - 1) % 10 == 0 else 0.0)
        changes = {"seconds": seconds, "words": step}
        exact.append(evaluated(step, 0.5, **changes) if step % 10 == 0 else row(step, **changes))
    run = only(read_runs([write(tmp_path / "exact.jsonl", exact)]))
    assert run.speed == pytest.approx(4.0)
    x, y = run.speeds()
    assert len(x) and y == pytest.approx(4.0)
    rounded = [{**line, "seconds": int(line["seconds"])} for line in exact]
    run = only(read_runs([write(tmp_path / "rounded.jsonl", rounded)]))
    assert run.speed == pytest.approx(39 / int(seconds), rel=0.01)
    assert numpy.isfinite(run.speeds()[1]).all()
    back = [row(step, seconds=step + 0.5, words=words) for step, words in enumerate([0, 8, 4, 12, 12])]
    assert only(read_runs([write(tmp_path / "back.jsonl", back)])).speed == 16 / 3  # as after a rollback


@pytest.mark.parametrize(
    ("n", "seconds", "steps"),
    # Whole seconds are rounded: 5 at least.
    [(13, 1, [5, 10]), (4, 1, [3]), (2, 1, [1]), (5, 0.5, [1, 2, 3, 4]), (302, 0.5, [*range(3, 302, 3)])],
)
def test_runs_speeds_are_means_over_at_most_150_stretches(n, seconds, steps, tmp_path):
    lines = log(range(n), words=[2 * i for i in range(n)], seconds=[seconds * i for i in range(n)])
    run = only(read_runs([write(tmp_path / "log.jsonl", lines)]))
    x, y = run.speeds()
    assert x.tolist() == steps and set(y) == {2 / seconds} and run.speed == 2 / seconds


def test_runs_speed_is_of_stretches_with_words_and_time(tmp_path):
    for words, seconds, score, speed in (
        ([0, None, 4], [0.5, 1.0, 2.5], [None] * 3, 2.0),
        ([0, 4, 6], [0.5, 0.5, 1.5], [None] * 3, 6.0),
        ([0, 4, 6, 8], [0.5, 1.0, 3.0, 3.5], [0.5, None, 0.5, None], 8 / 3),  # half of the lines are evaluations
        ([0, 4], [0.5, 0.5], [None] * 2, None),
    ):
        lines = log(range(len(words)), words=words, seconds=seconds, score=score)
        run = only(read_runs([write(tmp_path / "log.jsonl", lines)]))
        assert run.speed == speed and (len(run.speeds()[0]) > 0) == (speed is not None)


def test_runs_losses_per_word_are_of_the_steps_since_the_line_before(tmp_path):
    steps, losses = [0, 2, 3, 4, 5], {"ner": [8, 6, 4, 2, 1]}
    run = only(read_runs([write(tmp_path / "log.jsonl", log(steps, words=[4, 5, 5, 9, 10], losses=losses))]))
    assert run.loss("ner", per_word=True) == pytest.approx([2, 12, math.nan, 0.5, 1], nan_ok=True)
    later = only(read_runs([write(tmp_path / "later.jsonl", log([1], words=[4], losses={"ner": [8]}, rollbacks=[1]))]))
    assert math.isnan(later.loss("ner", per_word=True)[0]) and not later.events
    assert "later.jsonl begins at step 1" in later.notes[0]


@pytest.mark.parametrize(
    "end",
    ['{"step": 20, "epo', '{"step": 20, "losses": {"ner": 1.0}', "\x00\x00\x00", '{"step": 20}\n', "[" * 100_000],
    ids=range(5),
)
def test_runs_of_a_run_that_was_killed_while_it_wrote(tmp_path, end):
    run = only(read_runs([write(tmp_path / "log.jsonl", rows(20), end)]))
    assert run.steps[-1] == 19 and len(run.notes) == 1 and "log.jsonl ends in half a line" in run.notes[0]


def test_runs_names_damaged_lines(tmp_path):
    path = write(tmp_path / "log.jsonl", rows(30))
    lines = path.read_text().splitlines()
    for i in (3, 7, 8, 11, 12, 19, 20):
        lines[i] = lines[i][:40]
    path.write_text("\ufeff" + "\n".join(lines) + "\n\n", encoding="utf8")
    run = only(read_runs([path]))
    assert run.notes == ["log.jsonl has 7 damaged lines, which are left out: 4, 8, 9, 12, 13 ...."]
    assert len(run.steps) == 23
    assert run.columns["losses"]["ner"][3] == 100.0 / 5


def test_runs_has_gaps_for_what_is_no_number(tmp_path):
    odd = ["NaN", "Infinity", "-Infinity", "null", '"text"', "true", "[1.0]", "{}", "1e999", "1" + "0" * 400]
    lines = [json.dumps(row(i)) for i in range(4)]
    keys = ["grad_norm", "seconds", "words", "score", "scores", "skipped_updates", "last_checkpoint", "last_rollback"]
    for i, value in enumerate(odd, 4):
        others = "".join(f', "{key}": {value}' for key in keys)
        lines.append(f'{{"step": {i}, "losses": {{"ner": {value}}}, "learn_rates": {{"default": {value}}}{others}}}')
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    run = only(read_runs([tmp_path / "log.jsonl"]))
    assert len(run.steps) == 14 and numpy.isnan(run.columns["losses"]["ner"][4:]).all() and run.best is None
    assert not run.notes
    assert run.last("grad_norm") == 2.0 and not run.events
    assert make_panels([run])


@pytest.mark.parametrize(
    "content,found",
    [
        ("", "an empty file"),
        ("\n\n", "an empty file"),
        ('{"text": "a corpus"}\n' * 5, "line 1"),
        ("step,loss\n1,2\n", "step,loss"),
        ('[{"step": 1}]\n', "line 1"),
        ('{"step": -1, "losses": {}}\n', "line 1"),
        ('{"step": true, "losses": {}}\n', "line 1"),
        ('{"step": 1e3, "losses": {}}\n', "line 1"),
        ('{"step": 1, "losses": [2.0]}\n', "line 1"),
        (b"\x89PNG\r\n\x1a\n\xff\xff\n", "line 1"),
        (b"\x89\xff\n", "other bytes than text"),
        (b"\x89\x00\n", "other bytes than text"),
        (b"caf\xe9\n", "'caf\ufffd'"),
    ],
    ids=range(13),
)
def test_runs_refuses_what_is_no_log(tmp_path, content, found):
    path = tmp_path / "log.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=re.escape(str(path)) + f".*expected.*{found}"):
        read_runs([path])


def test_runs_leaves_empty_logs_out_beside_others(tmp_path):
    full, empty = write(tmp_path / "full.jsonl", rows(5), end="{"), write(tmp_path / "empty.jsonl", [])
    run = only(read_runs([empty, full, full]))
    assert run.paths == [full] and run.notes[0] == "empty.jsonl is empty, and left out." and len(run.notes) == 2
    with pytest.raises(ConfigError, match=r"Can't read the training log .*lost.jsonl: .*No such file"):
        read_runs([tmp_path / "lost.jsonl"])


# ---------------------------------------------------------------------- runs that were resumed


def test_runs_takes_the_logs_of_a_resumed_run_together(tmp_path):
    first = write(tmp_path / "log.jsonl", rows(14, skipped_updates=1))
    second = write(tmp_path / "log-2.jsonl", [row(i, skipped_updates=2, grad_norm=50.0) for i in range(11, 20)])
    third = write(tmp_path / "log-3.jsonl", [row(i, skipped_updates=2, grad_norm=70.0) for i in range(18, 25)])
    other = write(tmp_path / "log-4.jsonl", rows(6))
    runs = read_runs([second, third, first, other])
    assert [run.paths for run in runs] == [[first, second, third], [other]]
    assert [run.label for run in runs] == ["log", "log-4"]
    run = runs[0]
    assert run.steps.tolist() == list(range(25))
    norms = run.numbers("grad_norm").tolist()
    assert norms[10] == 3.0 and set(norms[11:18]) == {50.0} and set(norms[18:]) == {70.0}
    told = sorted(events(run))
    assert told == [*(("resumed", step, "") for step in (11, 18)), *(("update skipped", step, "") for step in (0, 11))]
    assert run.notes == [
        "The run was stopped, and resumed at step 11; 3 steps were done again (in log-2.jsonl).",
        "The run was stopped, and resumed at step 18; 2 steps were done again (in log-3.jsonl).",
    ]
    # One of them is enough. Another training is not taken for it.
    later = "A later training has written log-4.jsonl, which is not in this report."
    for path in (first, second, third):
        assert only(read_runs([path])).paths == run.paths and only(read_runs([path])).notes == [*run.notes, later]
    assert only(read_runs([other])).paths == [other]
    first.unlink()
    alone = only(read_runs([third]))
    told = alone.notes[-2:]
    assert told == ["log-2.jsonl begins at step 11: the log of the earlier steps is not in its folder.", later]
    assert alone.paths == [second, third] and events(alone) == [("resumed", 18, "")]


def test_runs_mixes_no_two_runs(tmp_path):
    """Two runs write beside each other, and one of them is resumed: the first lines tell which."""
    told = {"a": {"run_id": "a"}, "b": {"run_id": "b"}}
    first = write(tmp_path / "log.jsonl", [{**row(0), **told["a"]}, *rows(9)[1:]])
    other = write(tmp_path / "log-2.jsonl", [{**row(0), **told["b"]}, *rows(6)[1:]])
    write(tmp_path / "log-3.jsonl", [])
    resumed = write(tmp_path / "log-4.jsonl", [{**row(8), **told["a"]}, row(9)])
    again = write(tmp_path / "log-5.jsonl", [{**row(6), **told["b"]}, row(7)])
    for path in (first, resumed):
        assert only(read_runs([path])).paths == [first, resumed]
    assert only(read_runs([again])).paths == [other, again]
    both = read_runs([again, resumed])
    assert [run.steps.tolist() for run in both] == [[*range(8)], [*range(10)]]
    assert [run.notes[0].partition("resumed at ")[2] for run in both] == [
        "step 6 (in log-5.jsonl).",
        "step 8; one step was done again (in log-4.jsonl).",
    ]
    write(tmp_path / "x" / "log-0.jsonl", rows(3))  # not one of the logger's names
    names = {"log": (5, 6), "log-2": (5, 6), "log-3": (6, 7)}
    paths = [write(tmp_path / "x" / f"{name}.jsonl", map(row, steps)) for name, steps in names.items()]
    assert [run.paths for run in read_runs(paths)] == [paths[:1], paths[1:]]


def test_runs_of_a_log_whose_steps_go_back(tmp_path):
    lines = [*rows(20), *(row(i, losses={"ner": 7.0}, last_checkpoint=12) for i in range(13, 30))]
    run = only(read_runs([write(tmp_path / "log.jsonl", lines)]))
    assert run.steps.tolist() == list(range(30)) and set(run.columns["losses"]["ner"][13:]) == {7.0}
    assert math.isnan(run.columns["losses"]["tok2vec"][13])
    assert run.notes == ["log.jsonl goes back from step 19 to step 13 in line 21: the later lines are shown."]
    twice = [row(0), row(1, grad_norm=1.0), row(1, grad_norm=2.0)]
    run = only(read_runs([write(tmp_path / "twice.jsonl", twice)]))
    assert run.numbers("grad_norm").tolist() == [2.0, 2.0] and not run.notes


# ---------------------------------------------------------------------- events and labels


def test_runs_finds_what_happened(tmp_path):
    lines = rows(30)
    for line in lines:
        step = line["step"]
        line |= {"grad_spikes": (step >= 4) + 2 * (step >= 9), "skipped_updates": int(step >= 9)}
        line |= {"outside_writes": int(step >= 3), "rollbacks": int(step >= 12)}
        if step > 5:
            line["last_checkpoint"] = 5 if step < 11 or 12 <= step < 16 else 10 if step < 12 else 15
        if step >= 12:
            line["last_rollback"] = [12, 5]
        if step >= 8:
            line["last_resume"] = 8
        if step == 7:
            line["one_label"] = "OTHER"
    run = only(read_runs([write(tmp_path / "log.jsonl", lines)]))
    assert sorted(events(run)) == [
        *(("checkpoint saved", step, "") for step in (5, 10, 15)),
        ("gradient spike", 4, ""),
        ("gradient spike", 9, "2 times"),
        ("one label for all texts", 7, "OTHER"),
        ("rates written by others", 3, ""),
        ("resumed", 8, ""),
        ("update skipped", 9, ""),
        ("went back", 12, "to the checkpoint of step 5"),
    ]
    older = [{key: value for key, value in line.items() if not key.startswith("last_")} for line in lines]
    run = only(read_runs([write(tmp_path / "older.jsonl", older)]))
    kinds = ("went back", "checkpoint saved", "resumed")
    assert [event for event in events(run) if event[0] in kinds] == [("went back", 12, "")]


@pytest.mark.parametrize(
    "paths,labels",
    [
        (["a/log.jsonl", "b/log.jsonl"], ["a", "b"]),
        (["logs/adam.jsonl", "logs/sgd.jsonl"], ["adam", "sgd"]),
        (["a/x/log.jsonl", "b/x/log.jsonl"], ["a", "b"]),
        (["a/log.jsonl", "a/log-2.jsonl", "b/log.jsonl"], ["a/log", "a/log-2", "b/log"]),
        (["a/log.jsonl", "a/log.txt"], ["log.jsonl", "log.txt"]),
        (["ä\n<b>/log.jsonl", "می\u200cشود/log.jsonl"], ["ä\ufffd<b>", "می\u200cشود"]),
        (["a\n/log.jsonl", "a\t/log.jsonl"], ["a\ufffd (1)", "a\ufffd (2)"]),
    ],
    ids=range(7),
)
def test_runs_labels_differ(tmp_path, paths, labels):
    found = [run.label for run in read_runs([write(tmp_path / path, rows(3)) for path in paths])]
    assert [label.removeprefix(f"{tmp_path.name}/") for label in found] == labels


# ---------------------------------------------------------------------- a real training


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_runs_of_a_real_training_that_went_wrong_and_was_resumed(corpus, tmp_path):
    """The rate of step 8 ruins all params: 9 and 10 are skipped, and the training goes back to step 6. Another process
    goes on at 15.
    """
    log, folder = tmp_path / "log.jsonl", tmp_path / "state"
    config = config_for(tmp_path, corpus, training__optimizer__rollback_after=2)
    config["training"]["optimizer"]["learn_rate"] = [1e39 if step == 8 else 0.01 for step in range(40)]
    config["training"]["logger"] = {"@loggers": "thinc-torchopt.JSONLinesLogger.v1", "path": str(log)}
    saved = []
    for last in (14, 20):
        config["training"]["max_steps"] = last
        with ExitStack() as stack:
            if last == 14:
                for category in (NonFiniteGradWarning, RollbackWarning):
                    stack.enter_context(pytest.warns(category))
            spacy_train(init_nlp(config.interpolate()), None, stdout=StringIO(), stderr=StringIO())
        saved.append([int(path.name[-8:]) for path in steps_of(folder)])
    run = only(read_runs([log]))
    assert run.steps.tolist() == list(range(21)) and not run.notes
    skips, backs, checkpoints, resumed = (
        [(event.step, event.text) for event in run.events if event.kind == kind]
        for kind in ("update skipped", "went back", "checkpoint saved", "resumed")
    )
    assert skips == [(9, ""), (10, "")] and backs == [(10, "to the checkpoint of step 6")] and resumed == [(15, "")]
    # Every third step, and the evaluations: but for 9 and 10, while updates went wrong. That of the last step is
    # written after its line.
    assert [step for step, _ in checkpoints] == [0, 3, 5, 6, 12, 14, 15, 18]
    assert saved == [[12, 14], [18, 20]]
    assert numpy.isnan(run.numbers("grad_norm")[9:11]).all() and (numpy.diff(run.numbers("seconds")) > 0).all()
    assert run.final_rates == {"default": 0.005} and len(run.speeds()[0]) > 0


# ---------------------------------------------------------------------- where the time went


def spent(updates, saving):
    return {"time_spent": {"data": 0.5, "updates": updates, "evaluations": 0.0, "saving": saving}}


def test_runs_adds_up_the_time_of_each_process(tmp_path):
    """The first line of a process counts from 0, also if it has more than the last one before."""
    first = [row(i, **spent(2.0 + i, 0.0)) for i in range(4)]
    second = [row(i, last_resume=3, **spent(100.0 * (i - 2), 1.0)) for i in (3, 4)]
    third = [row(i, last_resume=5, **spent(1.0, 0.25)) for i in (5, 6)]
    write(tmp_path / "log.jsonl", first)
    write(tmp_path / "log-2.jsonl", [*second, *third])
    run = only(read_runs([tmp_path / "log.jsonl"]))
    assert run.time_spent == {"data": 1.5, "updates": 4.0 + 200.0 + 1.0, "evaluations": 0.0, "saving": 1.25}
    assert only(read_runs([write(tmp_path / "none.jsonl", rows(3))])).time_spent == {}
