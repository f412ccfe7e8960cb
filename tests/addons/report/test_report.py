"""Reports: what they show, the command, the trained pipeline beside its log, and a training that goes on."""

import json
import re
import signal
import time
from html import unescape

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import DocBin, Span

from thinc_torchopt.addons.report.errors import Compared, KindOfErrors, Passage
from thinc_torchopt.addons.report.labels import Trained, title_of
from thinc_torchopt.addons.report.report import Report, _beside, read_report
from thinc_torchopt.addons.report.runs import duration, facts_of, read_runs, summarize
from thinc_torchopt.core import compat
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.loop.run_lock import hold

from ...forks import Started
from ...spacy_cli import spacy_cli
from .kit import Page, evaluated, losses, needs_matplotlib, rows, write
from .test_labels import saved

# ---------------------------------------------------------------------- what is shown

# Evaluated in each of three lines, so that evaluations can't be told from steps.
LONG = [
    evaluated(0, 0.25, seconds=2.5, words=1_000),
    evaluated(1_000, 0.75, seconds=90.0, words=200_000, skipped_updates=2, grad_spikes=1_000),
    evaluated(
        2_000,
        0.5,
        epoch=12,
        seconds=7_384.0,
        words=4_000_000,
        skipped_updates=3,
        grad_spikes=1_234,
        rollbacks=2,
        learn_rates={"frozen": 0.0, "default": 0.00125},
        time_spent={"data": 72.0, "updates": 5_400.0, "evaluations": 1_440.0, "gpu_idle": 1_800.0, "saving": 288.0},
    ),
]


PART = re.compile(r"([\d.,]+) (s|min|h)\b")


@pytest.mark.parametrize(
    ("lines", "facts", "time"),
    [
        # 100 words and 0.25 seconds a step.
        (
            rows(12),
            ["0.9167 at step 10", "0.9167", "11 epoch 1", "400", "3.2 s", "0", "0", "0", "0.001 down to 0.0005"],
            [],
        ),
        (
            rows(2, time_spent={"updates": 0.75, "saving": 0.25}),
            ["0.5 at step 0", "0.5", "1 epoch 0", "400", "0.8 s", "0", "0", "0", "0.001 down to 0.0005"],
            ["Time: updates 0.8 s (75%), logging and saving 0.2 s (25%)."],
        ),
        (
            LONG,
            ["0.75 at step 1,000", "0.5", "2,000 epoch 12", "542", "2 h 3 min", "3", "1,234", "2", "0.00125"],
            [
                "Time: updates 1 h 30 min (75%), evaluations on the dev set 24 min 0 s (20%), logging and saving "
                "4 min 48 s (4%), reading texts 1 min 12 s (1%), of all this, the GPU had nothing to do 30 min 0 s "
                "(25%)."
            ],
        ),
    ],
)
def test_report_prints_the_numbers_of_a_log(tmp_path, lines, facts, time):
    names = ["best score", "last score", "last step", "words per second", "duration", "skipped updates"]
    names += ["gradient spikes", "rollbacks", "final rate"]
    found = read_report(write(tmp_path / "log.jsonl", lines))
    shown = [line for line in repr(found).splitlines() if line.startswith(tuple(names))]
    assert [re.split("  +", line, maxsplit=1) for line in shown] == [list(row) for row in zip(names, facts)]
    assert len({len(line) for line in shown}) == 1  # numbers end below each other
    assert found.told == time


@given(st.floats(0.0, 1e6) | st.sampled_from([9.95, 9.96, 10.5, 59.7, 3599.7, 7199.0]))
def test_report_rounds_a_duration_once(seconds):
    """Read again it is off by half of its last unit at most, and has no 60 seconds or minutes."""
    units = {"s": 1, "min": 60, "h": 3_600}
    parts = [(float(n.replace(",", "")), units[unit]) for n, unit in PART.findall(duration(seconds))]
    assert all(n < 60 for n, unit in parts if unit < 3600) and len(parts) == 1 + (seconds >= 59.5)
    assert ("." in duration(seconds)) == (seconds < 9.95)
    last = 0.1 if seconds < 9.95 else parts[-1][1]
    assert abs(sum(n * unit for n, unit in parts) - seconds) <= last / 2 + 1e-9  # of floats


@pytest.mark.parametrize(("n", "length"), [(1, 19), (2, 19), (5, 19), (9, 19), (4, 30), (2, 31)])
def test_report_table_fits_80_columns(tmp_path, n, length):
    """Each run is a column, with all that is known of it; as many side by side as fit."""
    names = [f"a run with number {i}".ljust(length, "x") for i in range(n)]
    found = read_report(*(write(tmp_path / name / "log.jsonl", rows(12 + i)) for i, name in enumerate(names)))
    lines = repr(found).partition("\nScores are")[0].splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(" ".join(lines).split())
    for run in found.runs:
        assert words.count(run.label) == 1 and all(fact.value in words for fact in facts_of(run))
    tops = [line for line in lines if line.startswith("run ")]
    assert len(tops) == -(-n // (64 // (2 + max(20, length))))  # beside the names of the facts
    assert bool(found.sentences) is (n == 1)


def test_report_prints_as_the_command_does(tmp_path):
    log = write(tmp_path / "log.jsonl", rows(3), end='{"step"')
    printed = repr(read_report(log))
    assert printed.startswith("Finds 20 of 100 entities") and "\nrun " in printed and "last step" in printed
    assert "Note: log.jsonl ends in half a line" in printed
    of_page = {25: "", 30: "5 rarer labels", 31: "6 rarer labels", 301: "276 rarer labels (1 of them left out)"}
    for n, title in of_page.items():
        scores = {f"L{i:03}": {"p": 1.0, "r": 1.0, "f": 1.0} for i in range(n)}
        found = Report(read_runs([log]), Trained([], {}, {"ents_per_type": scores}))
        [(_, _, parts)] = _beside(found)["label_tables"]
        assert [(one, len(rows)) for one, rows in parts] == [("", 25), (title, min(n, 300) - 25)][: 1 + bool(title)]
        assert found.told == []
        printed = repr(found)
        assert "L030" not in printed and ("L029" in printed) == (n >= 30)
        assert ("Left out:" in printed) == (f"Left out: {n - 30} rarer label" in printed) == (n > 30)
    assert title_of("pos") == "Parts of speech"


def test_page_says_what_errors_are_shown():
    worst = [Passage(1003, 1002, 1001, ["a"], is_cut=False)]
    numbers = {"cats": 20, "dep": 21, "tag": 1}
    kinds = [KindOfErrors(kind, ["one"], wrong=9, n_passages=n, worst=worst) for kind, n in numbers.items()]
    found = _beside(Report([], compared=Compared("x", 1, 2, False, kinds)))["errors"]
    titles = ["all of 20 texts", "the 20 worst of 21 sentences", "all of 1 place"]
    assert [one["title"].partition(": ")[2] for one in found] == [f"{title} with errors" for title in titles]
    told = ["Text 1,003", *["Text 1,003: 1,002 wrong, 1,001 right"] * 2]
    assert [one["passages"][0]["told"] for one in found] == told
    assert "more of its words have a wrong prediction" in found[2]["how"]


@needs_matplotlib
def test_report_shows_itself_in_a_notebook(tmp_path):
    found = read_report(write(tmp_path / "log.jsonl", losses(2.0, 1.0)))
    [page] = re.findall('srcdoc="([^"]*)"', found._repr_html_())
    assert unescape(page) == found.html()


# ---------------------------------------------------------------------- the command


def report(*args, check=True):
    return spacy_cli("torchopt", "report", *args, check=check)


def test_report_command(tmp_path):
    log, output = write(tmp_path / "log.jsonl", rows(12)), tmp_path / "report.html"
    run = report(log, *(["--output", output] if compat.has_matplotlib else []))
    *told, head = run.stdout.splitlines()[:3]
    assert told == [
        "Finds 20 of 100 entities; 10 of 100 that it names are right.", "25 of 100 words get the right tag."
    ]  # fmt: skip
    assert head.split()[0] == "run" and output.is_file() == compat.has_matplotlib
    assert not output.is_file() or all(f"<p>{line}</p>" in output.read_text() for line in told)


@needs_matplotlib
def test_report_does_not_overwrite_what_it_reads(tmp_path):
    """Under its own name, another one, or behind a link."""
    log = write(tmp_path / "log.html", rows(12))
    before = log.read_bytes()
    (tmp_path / "link.png").symlink_to(log)
    (tmp_path / "folder").mkdir()
    for output in (log, tmp_path / "folder" / ".." / "log.html", tmp_path / "link.png"):
        run = report(write(tmp_path / "other.jsonl", rows(3)), log, "--output", output, check=False)
        said = " ".join(run.stderr.split())
        assert run.returncode == 1 and "it is one of the files to read" in said and "Choose another." in said
    assert log.read_bytes() == before


def test_report_prints_a_summary(tmp_path):
    logs = [write(tmp_path / "a" / "log.jsonl", rows(12), "{"), write(tmp_path / "b" / "log.jsonl", rows(7))]
    lines = report(*logs).stdout.splitlines()
    assert lines[0].split() == ["run", "a", "b"]
    assert any(line.startswith("Note: log.jsonl ends in half a line") for line in lines)
    assert json.loads(report(*logs, "--json").stdout) == [summarize(run) for run in read_runs(logs)]
    found = report(write(tmp_path / "no.jsonl", [{"text": "a corpus"}]), "--json", check=False)
    assert found.returncode == 1 and not found.stdout
    assert found.stderr.startswith("Error: Can't read the training log")


# ---------------------------------------------------------------------- the trained pipeline


def test_report_refuses_what_does_not_go_together(tmp_path):
    log, other = write(tmp_path / "a" / "log.jsonl", rows(3)), write(tmp_path / "b" / "log.jsonl", rows(3))
    for name, meta in [("training/model-best", "{}"), ("damaged", "{")]:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "meta.json").write_text(meta)
        (tmp_path / name / "config.cfg").write_text("[nlp]\n")
    texts = write(tmp_path / "dev.spacy", [])
    for logs, options, said in [
        ([], {}, "expected the log of a training, found none"),
        ([log], {"texts": texts}, "no trained pipeline to make them. Add --model training/model-best"),
        ([log, other], {"model": spacy.blank("en")}, "expected the log of one"),
        ([log], {"model": tmp_path}, "meta.json and config.cfg, found one without"),
        ([log], {"model": tmp_path / "training"}, "Give the one in it: .*model-best"),
        ([log], {"model": tmp_path / "damaged"}, "Can't read the trained pipeline"),
    ]:
        with pytest.raises(ConfigError, match=said):
            read_report(*logs, **options)


def test_report_takes_folders(tmp_path):
    """Of a training, with its model, and of the newest that was there; and a folder of several."""
    saved(tmp_path / "a b" / "model-best")
    assert read_report(tmp_path / "a b").trained.labels == {"ner": ["A", "B"]}
    log = (tmp_path / "a b" / "log.jsonl").read_text()
    (tmp_path / "a b" / "log-2.jsonl").write_text(log.replace('"losses"', '"run_id": "2", "losses"'))
    assert [run.paths[-1].name for run in read_report(tmp_path / "a b").runs] == ["log-2.jsonl"]
    (tmp_path / "empty").mkdir()
    assert [run.label for run in read_report(tmp_path).runs] == ["a b/log-2"]
    saved(tmp_path / "c" / "model-best", labels=["X"])
    run = report(tmp_path, tmp_path / "c", "--json")
    assert [found["run"] for found in json.loads(run.stdout)] == ["a b", "c"]
    run = report(tmp_path / "empty", check=False)
    assert run.returncode == 1 and "expected log.jsonl in it, or in folders in it, found none" in run.stderr
    with pytest.raises(ConfigError, match="expected the log of one"):
        read_report(tmp_path, model=tmp_path / "c" / "model-best")


@needs_matplotlib
def test_report_of_a_trained_pipeline(trained, tmp_path):
    """Its log says what was trained; its folder, the score of each label; its texts, the worst errors."""
    folder, _ = trained("report.cfg")
    log, model = folder / "training" / "report" / "log.jsonl", folder / "training" / "report" / "model-best"
    texts = tmp_path / "<dev>.spacy"
    nlp = spacy.load(model)
    docs = [nlp.make_doc(text) for text in ("Call <b>print()</b> & wait.", "Nothing here.", "x" * 5000)]
    for doc in docs:
        doc.set_ents([Span(doc, 0, 1, "CODE")])
    DocBin(docs=docs).to_disk(texts)
    output = tmp_path / "report.html"
    [found] = json.loads(report(log, "--model", model, "--texts", texts, "--output", output, "--json").stdout)
    assert found["labels"]["ents"]["CODE"]["annotated"] == 3 and found["errors"]["ents"]["worst"]
    page = Page(output)
    words = " ".join(" ".join(page.texts).split())
    assert not page.all("dev") and "<b>print()</b> & wait." in words
    assert {"Trained: tok2vec, ner.", "Where the time went", "updates"} <= set(page.texts)
    meta = json.loads((model / "meta.json").read_text())["performance"]["ents_per_type"]
    saved, logged = read_report(log, model=model), read_report(log)
    assert {label: one.f for label, one in saved.labels[0].rows.items()} == {
        label: one["f"] for label, one in meta.items()
    }
    assert saved.trained.components == logged.trained.components and not logged.labels
    assert saved.told[0] == "Trained: tok2vec, ner." and saved.told[1].startswith("Time: ")


# ---------------------------------------------------------------------- a training that goes on


def test_report_watch_needs_a_report(tmp_path):
    run = report(write(tmp_path / "log.jsonl", rows(3)), "--watch", check=False)
    assert run.returncode == 1 and "Add --output report.html." in " ".join(run.stderr.split())


@pytest.fixture
def begun(tmp_path):
    """A log that is held, as a training holds it."""
    path = write(tmp_path / "log.jsonl", losses(*[1.0] * 5))
    with path.open("ab") as file:
        hold(file.fileno())
        yield path, file


@needs_matplotlib
def test_report_watch_until_the_training_ends(begun, tmp_path, monkeypatch):
    log, file = begun
    output, seen = tmp_path / "report.html", []

    def pause(seconds):
        seen.append((seconds >= 10, 'http-equiv="refresh" content="10"' in output.read_text()))
        file.write(json.dumps({"step": 4 + len(seen), "losses": {"ner": 1.0}}).encode() + b"\n")
        file.flush()
        if len(seen) == 2:
            file.close()

    monkeypatch.setattr(time, "sleep", pause)
    report(log, "--output", output, "--watch")
    assert seen == [(True, True)] * 2
    # The last page has the last line, and reads itself no more.
    assert "refresh" not in output.read_text() and ">6<small>" in output.read_text()


@needs_matplotlib
def test_report_watch_until_ctrl_c(begun, tmp_path):
    log, _ = begun
    output = tmp_path / "report.html"
    process = Started(["torchopt", "report", log, "--watch", "--output", output])
    while not output.is_file():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    assert "refresh" in output.read_text()
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in printed
    assert f"Saved the report to {output}" in " ".join(printed.split())
    assert "refresh" not in output.read_text()
