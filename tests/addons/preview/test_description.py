"""The numbers of `spacy torchopt explain`, each counted once more: texts by hand, steps by spaCy's own loop, params by
the pipeline that spaCy initializes, and bytes by torch's own optimizers.
"""

import json
import re
from collections import Counter
from fnmatch import fnmatch
from itertools import takewhile
from types import SimpleNamespace as Namespace
from unittest.mock import Mock

import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_train_batches, train_while_improving
from spacy.util import registry, resolve_dot_names
from thinc.api import Adam, fix_random_seed

from thinc_torchopt.addons.preview import explain
from thinc_torchopt.core.errors import StateError

from ...models import ready_pipeline, toy_pipeline

# Words of the texts: 33 together.
LENGTHS = 3, 4, 5, 6, 7, 8
TRAIN = (
    "24 texts in [corpora.train] with 132 words. Tags: T0 72 and T1 60. Dependency trees: dep 108 and ROOT 24. "
    "Entities: A 24 and B 12. Categories: Y 20 and X 4. Spans under the key 'sc': S 24."
)
DEV = (
    "6 texts in [corpora.dev] with 33 words. Tags: T0 18 and T1 15. Dependency trees: dep 27 and ROOT 6. "
    "Entities: A 6 and B 3. Categories: Y 5 and X 1. Spans under the key 'sc': S 6."
)
OURS = {"@optimizers": "thinc-torchopt.TorchOptimizer.v1", "algorithm": {"@torch_optimizers": "torch.AdamW.v1"}}
SGD = {"@torch_optimizers": "torch.SGD.v1", "momentum": 0.9}
WARMUP = {"@schedules": "warmup_linear.v1", "initial_rate": 0.02, "warmup_steps": 5, "total_steps": 20}
CONSTANT = "0.01", "0.01", "1 global", "constant"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """24 texts to train on, as JSONL with the entities alone, too; and 6 to evaluate on, in two files."""
    folder, docs = tmp_path_factory.mktemp("texts"), []
    for n, length in enumerate(5 * LENGTHS):
        words, tags = [f"w{n}x{i}" for i in range(length)], [f"T{i % 2}" for i in range(length)]
        deps = ["ROOT"] + ["dep"] * (length - 1)
        doc = Doc(spacy.blank("xx").vocab, words, tags=tags, heads=[0] * length, deps=deps)
        doc.set_ents([Span(doc, i, i + 1, "AB"[i]) for i in range(1 + (length > 5))])
        doc.cats = {"X": float(length == 3), "Y": float(length != 3)}
        doc.spans["sc"] = [Span(doc, 0, 2, "S")]
        docs.append(doc)
    spans = [[{"start": e.start_char, "end": e.end_char, "label": e.label_} for e in doc.ents] for doc in docs]
    rows = [json.dumps({"text": doc.text, "spans": of_text}) for doc, of_text in zip(docs[:24], spans)]
    (folder / "train.jsonl").write_text("\n".join(rows))
    DocBin(docs=docs[:24]).to_disk(folder / "train.spacy")
    (folder / "dev").mkdir()
    for i in (24, 27):
        DocBin(docs=docs[i : i + 3]).to_disk(folder / "dev" / f"{i}.spacy")
    ready_pipeline(["textcat"], shared=False)[0].to_disk(folder / "model")
    return folder


def config_for(folder, pipeline, optimizer, training):
    config = toy_pipeline(pipeline).config
    for name, path in (("train", "train.spacy"), ("dev", "dev")):
        config["corpora"][name]["path"] = str(folder / path)
    for name in training.get("frozen_components", []):  # spaCy does not initialize it
        config["components"][name] = {"source": str(folder / "model")}
    config["training"] |= {"patience": 0, "max_steps": 0, "eval_frequency": 4, **training}
    config["training"]["optimizer"] = (
        (OURS if "@optimizers" not in optimizer else {}) | {"learn_rate": 0.01} | optimizer
    )
    return config


def batches(by, **settings):
    return {"batcher": {"@batchers": f"spacy.batch_by_{by}.v1", **settings}}


def spacys_steps(config):
    """The steps of spaCy's own loop, with an empty pipeline: what it tells of each, and the words up to it."""
    training = config["training"]
    nlp, batcher = spacy.blank("xx"), registry.resolve({"batcher": training["batcher"]})["batcher"]
    [corpus] = resolve_dot_names(config, [training["train_corpus"]])
    fix_random_seed(training["seed"])
    drawn = create_train_batches(nlp, corpus, batcher, training["max_epochs"])
    keys = "eval_frequency", "accumulate_gradient", "patience", "max_steps"
    settings = {"dropout": 0.1, "exclude": [], "annotating_components": [], "before_update": None}
    settings |= {key: training[key] for key in keys} | {"patience": 0}
    for _, info, _ in train_while_improving(nlp, Adam(0.001), drawn, lambda: (0.0, {}), **settings):
        yield info


def params_of(config):
    """The params of the pipeline that spaCy initializes, by component and their own name: ("tok2vec/E", array)."""
    nlp = init_nlp(config.interpolate())
    for name, pipe in nlp.pipeline:
        for node in pipe.model.walk():
            yield from ((f"{name}/{key}", node.get_param(key)) for key in node.param_names if node.has_param(key))


def state_of(optimizer, array):
    """Bytes of the state that torch's optimizer has after a step."""
    param = torch.zeros(array.shape, requires_grad=True)
    param.grad = torch.zeros(array.shape)
    made = optimizer([param])
    made.step()
    return sum(value.nbytes for value in made.state[param].values() if value is not None)


def sizes_in(text):
    """The sizes in a text: the number, and its unit in bytes."""
    units = {"bytes": 1, "kB": 1e3, "MB": 1e6}
    return [(float(number), units[unit]) for number, unit in re.findall(r"([\d.]+) (bytes|kB|MB)\b", text)]


def momentum(params):
    return torch.optim.SGD(params, momentum=0.9)


def budget(limit):
    told = {"@schedules": "thinc-torchopt.warmup_stable_decay.v1", "initial_rate": 0.01, "decay_begins": "when told"}
    block = {"@misc": "thinc-torchopt.Budget.v1", "limit": limit}
    return {"learn_rate": told | {"warmup_steps": 0, "decay_steps": 2}, "budget": block}


WORDS = {"tolerance": 0.2, "discard_oversize": False}
GROUPS = {
    "heads": {"params": ["tagger/*"], "learn_rate": WARMUP, "weight_decay": 0.0},
    "embedded": {"params": ["tok2vec/*/E"], "lr_scale": 0.5, "unfreeze_at": 10},
    "never": {"params": ["ner/*"], "freeze": True},
}
HEAD = {"head": {"params": ["tagger/*"], "algorithm": SGD}}
GROWING = {"@schedules": "compounding.v1", "start": 12, "stop": 60, "compound": 1.1}
CHECKPOINT = {"@misc": "thinc-torchopt.Checkpoint.v1", "keep": 2, "in_background": True}
PADDED = batches("padded", size=24, buffer=6, discard_oversize=False)
# Components, settings of the optimizer, and of the training; how it ends; and what differs from most: the rows of the
# table, where params are given by patterns over component and name, torch's optimizers by such patterns, and others.
CASES = {
    "words": (["ner"], {}, {"max_steps": 20, **batches("words", size=20, **WORDS)}, "At step 20 (max_steps).", {}),
    "texts": (
        ["tagger", "parser"], {"algorithm": SGD, "use_averages": True, "grad_clip": 0.0, "learn_rate": WARMUP},
        {"max_epochs": 3, "eval_frequency": 1, **batches("sequence", size=5)}, "After epoch 3 (max_epochs).",
        {"groups": [("default", "*", "0.02", "0", "", "0, 0.02 at step 5, 0.008 at step 14")], "averages": True,
         "optimizer": "torch.SGD.v1", "state": {"*": momentum}},
    ),
    "padded": (
        ["textcat"], {"clip_by": "component"}, {"max_epochs": 2, "max_steps": 100, "patience": 30, **PADDED},
        "At step 100 (max_steps), or after epoch 2 (max_epochs), or when the score got no better for 30 steps "
        "(patience), whichever comes first.",
        {"groups": [("default", "*", "0.01", "0.01", "1 component", "constant")]},
    ),
    "accumulated": (
        ["spancat"], {"learn_rate": WARMUP, "checkpoint": CHECKPOINT},
        {"max_steps": 25, "accumulate_gradient": 2, **batches("words", size=GROWING, **WORDS)},
        "At step 25 (max_steps).",
        {"groups": [("default", "*", "0.02", "0.01", "1 global", "0, 0.02 at step 5, 0 at step 20, 0 at step 25")],
         "checkpoints": 3},
    ),
    "frozen": (
        ["tagger", "textcat"], {}, {"max_steps": 3, "frozen_components": ["textcat"], **batches("sequence", size=1)},
        "At step 3 (max_steps).",
        {"groups": [("default", "t[ao]*", *CONSTANT), ("textcat/*", "textcat/*", "", "", "", "frozen_components")],
         "frozen": "textcat/*"},
    ),
    "groups": (
        ["tagger", "ner"], {"param_groups": GROUPS}, {"max_steps": 20, **batches("sequence", size=24)},
        "At step 20 (max_steps).",
        {"groups": [("embedded", "tok2vec/E", "0.005", "0.01", "1 global", "from step 10 on: constant"),
                    ("default", "tok2vec/[!E]*", *CONSTANT),
                    ("heads", "tagger/*", "0.02", "0", "1 global", "0, 0.02 at step 5, 0 at step 20"),
                    ("never", "ner/*", "", "0.01", "1 global", "frozen")],
         "frozen": "ner/*"},
    ),
    "algorithms": (
        ["tagger"], {"param_groups": HEAD}, {"max_steps": 9, **batches("sequence", size=7)}, "At step 9 (max_steps).",
        {"groups": [("default", "tok2vec/*", "torch.AdamW.v1", *CONSTANT),
                    ("head", "tagger/*", "torch.SGD.v1", "0.01", "0", "1 global", "constant")],
         "optimizer": "torch.AdamW.v1, torch.SGD.v1",
         "state": {"tok2vec/*": torch.optim.AdamW, "tagger/*": momentum}},
    ),
    "stream": (
        ["ner"], {}, {"max_epochs": -1, "max_steps": 9, **batches("sequence", size=4)},
        "At step 9 (max_steps). The corpus is streamed again and again (max_epochs = -1): its end does not end the "
        "training.",
        {"epochs": "counted in the 24 texts in [corpora.train]"},
    ),
    "no end": (
        ["ner"], {"learn_rate": WARMUP}, {"patience": 7, **batches("words", size=25, **WORDS)},
        "When the score got no better for 7 steps (patience).",
        {"groups": [("default", "*", "0.02", "0.01", "1 global", "0, 0.02 at step 5, 0 at step 20, 0 at step 20,000")],
         "until": lambda info: info["epoch"] < 1, "is_endless": True},
    ),
    "discarded": (
        ["ner"], {}, {"max_epochs": 2, **batches("words", size=6, tolerance=0.0, discard_oversize=True)},
        "After epoch 2 (max_epochs).", {"in_epoch": 4 * (3 + 4 + 5 + 6)},
    ),
    "JSONL": (
        ["ner"], {}, {"max_epochs": 12, **batches("sequence", size=10)}, "After epoch 12 (max_epochs).",
        {"train": "24 texts in [corpora.train] with 132 words. Entities: A 24 and B 12."},
    ),
    "budget of steps": (
        ["ner"], budget("12 steps"), batches("sequence", size=5), "After 12 steps (budget).",
        {"until": lambda info: info["step"] < 12},
    ),
    "budget of words": (  # it ends within
        ["ner"], budget("300 words"), batches("sequence", size=6), "After 300 words (budget).",
        {"until": lambda info: info["words"] <= 300},
    ),
    "thinc": (
        ["tagger"], {"@optimizers": "Adam.v1", "use_averages": True, "L2": 0.02},
        {"max_steps": 400, **batches("sequence", size=24)}, "At step 400 (max_steps).",
        {"groups": [("default", "*", "0.01", "0.02", "1 param", "constant")], "optimizer": "Adam.v1", "averages": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_explain_numbers(case, folder):
    pipeline, optimizer, training, ends, more = CASES[case]
    groups = more.get("groups", [("default", "*", *CONSTANT)])
    config = config_for(folder, pipeline, optimizer, training)
    if "train" in more:
        config["corpora"]["train"] = {"@readers": "thinc-torchopt.Texts.v1", "path": str(folder / "train.jsonl")}
    shown = explain(config)
    lines = dict(shown.lines)
    assert not shown.stops and shown.checked == [more.get("train", TRAIN), DEV]
    of_optimizers = [note[:7] for note in shown.notes if note.startswith(("This is thinc", "learn_rate falls"))]
    assert of_optimizers == ["This is"] * (case == "thinc")
    assert lines["Time"].startswith("Not measured.")

    params = list(params_of(config))
    trained = [(name, array) for name, array in params if not fnmatch(name, more.get("frozen", ""))]
    sizes = Counter()
    for name, array in trained:
        sizes[name.split("/")[0]] += array.size
    parts = ", ".join(f"{name} {n:,}" for name, n in sizes.items())
    assert lines["Trains"] == f"{sizes.total():,} numbers in {len(trained)} params on the CPU: {parts}."
    of_groups = [sum(array.size for name, array in params if fnmatch(name, pattern)) for _, pattern, *_ in groups]
    assert shown.groups.rows == [[name, f"{n:,}", *rest] for n, (name, _, *rest) in zip(of_groups, groups)]
    assert lines["Optimizer"] == f"{more.get('optimizer', 'torch.AdamW.v1')}."
    every = config["training"]["eval_frequency"]
    latest = ", and after each ninth of the budget at the latest" * ("budget" in optimizer)
    assert lines["Ends"] == f"{ends} It is evaluated every {every} step{'s' * (every > 1)}{latest}."

    steps = list(takewhile(more.get("until", bool), spacys_steps(config.interpolate())))
    n, words = len(steps), steps[-1]["words"]
    each, epochs = f"{words / n:.0f} words each", words / more.get("in_epoch", 132)
    of = more.get("epochs", f"{epochs:.{int(epochs < 10)}f} epochs of 24 texts with 132 words")
    told = f"{n:,} steps (0 to {n - 1:,}) of {each}: {words:,} words, {of}"
    told = f"No limit until something else ends the training, {each}" if "is_endless" in more else told
    assert lines["Steps"] == f"{told}."
    counted = (None, None) if "is_endless" in more else (n, words)
    assert (shown.costs["steps"], shown.costs["words"]) == counted

    whole, moving = (sum(array.nbytes for _, array in some) for some in (params, trained))
    of_algorithms = more.get("state", {"*": torch.optim.AdamW}).items()
    state = sum(
        state_of(one, array) for pattern, one in of_algorithms for name, array in trained if fnmatch(name, pattern)
    )
    memory, disk = [whole, moving, state, *[moving] * more.get("averages", False)], [whole]
    memory.insert(0, sum(memory))
    assert shown.costs["bytes"]["total"] == pytest.approx(memory[0], rel=1e-3)
    assert shown.costs["bytes"]["model"] == whole
    if "checkpoints" in more:
        memory.append(whole + state)
        disk.append(whole + state)
        assert f"up to {more['checkpoints']} of them" in lines["Disk"]
    for label, expected in (("Memory", memory), ("Disk", disk)):
        shown_sizes = sizes_in(lines[label].partition(" them while")[0])
        assert len(shown_sizes) == len(expected)
        for (number, unit), size in zip(shown_sizes, expected):
            assert number == pytest.approx(size / unit, abs=0.05 if number < 10 and unit > 1 else 0.5)  # its last digit


@pytest.mark.parametrize(
    ("optimizer", "training", "steps", "evaluated", "has_gpu"),
    [
        ({}, {"max_steps": 20}, 21, [0, 4, 8, 12, 16, 20], False),
        # As a training was found to do in addons/budget/test_budget.py.
        (budget("20 steps"), {"eval_frequency": 7}, 20, [0, 3, 6, 7, 10, 13, 14, 17, 19], True),
    ],
    ids=["steps", "budget on a GPU"],
)
def test_explain_time(optimizer, training, steps, evaluated, has_gpu, folder, monkeypatch):
    """A step takes two seconds, on a GPU when it is waited for; an evaluated text half of one; 3 of 6 are enough."""
    clock, costs = Namespace(now=0.0, waiting=0.0, peak=9000), "thinc_torchopt.addons.preview.costs"

    def wait(seconds=0.0):
        clock.now, clock.waiting = clock.now + clock.waiting + seconds, 0.0

    def step(nlp, args):
        clock.waiting += 2.0
        has_gpu or wait()

    gpu = Namespace(is_available=lambda: has_gpu, synchronize=wait, max_memory_allocated=lambda: clock.peak)
    gpu.reset_peak_memory_stats = lambda: setattr(clock, "peak", 700)
    monkeypatch.setattr(f"{costs}.torch", Namespace(cuda=gpu, float32=torch.float32))
    monkeypatch.setattr(f"{costs}._EVALUATED", 12)
    monkeypatch.setattr(f"{costs}.default_timer", lambda: clock.now)
    monkeypatch.setattr(Language, "evaluate", lambda nlp, examples: wait(0.5 * len(examples)))
    registry.callbacks.register("test_description.two_seconds.v1", func=lambda: step)
    config = config_for(folder, ["tagger"], optimizer, {**training, **batches("sequence", size=24)})
    config["training"]["before_update"] = {"@callbacks": "test_description.two_seconds.v1"}
    each = f"66 words a second in 10 timed steps, 2 seconds a step, {1.5 * 33 / 12:.1f} seconds an evaluation."
    whole = steps * 2 + len(evaluated) * 1.5 * 33 / 12
    found = explain(config, is_timed=True)
    told = f"About {whole:.0f} seconds for {steps} steps and {len(evaluated)} evaluations: {each} Measured with"
    assert dict(found.lines)["Time"].startswith(told)
    seconds = {"step": 2.0, "evaluation": 1.5 * 33 / 12, "words": 66.0, "peak": 700 if has_gpu else None}
    assert found.costs["seconds"] == seconds and has_gpu == any("add --gpu-id 0" in note for note in found.notes)
    assert (("Memory", "At most 700 bytes of the GPU were in use.") in found.lines) == has_gpu


def test_explain_times_nothing_that_would_stop(folder, tmp_path):
    """A pattern without a param, beside a rate that is too high; texts without tags; and what can't be made at all."""
    block = CHECKPOINT | {"path": str(tmp_path / "state"), "in_background": False}
    optimizer = {"checkpoint": block, "learn_rate": 9.0, "param_groups": {"none": {"params": ["none/*"]}}}
    config = config_for(folder, ["tagger"], optimizer, {"max_steps": 9, **batches("sequence", size=24)})
    found = explain(config, is_timed=True)
    lines = dict(found.lines)
    assert [stop[:26] for stop in found.stops] == ["Can't use pattern 'none/*'"]
    assert "Time" not in lines and "main memory" not in lines["Memory"]
    assert [note[:20] for note in found.notes if "--gpu-id" not in note] == [
        "The learning rate go",
        "1 step at the end is",
    ]
    assert lines["Disk"].endswith(f"are free in '{tmp_path}'.") and found.costs["bytes"]["checkpoint"] > 0
    config["corpora"]["train"] = {"@readers": "thinc-torchopt.Texts.v1", "path": str(folder / "train.jsonl")}
    assert [stop.split(":")[0] for stop in explain(config).stops] == ["'tagger' has nothing to learn"]
    config["components"]["tagger"] = {"factory": "test_description_broken"}
    Language.factory("test_description_broken", func=lambda nlp, name: {}["broken"])
    with pytest.raises(KeyError, match="broken"):
        explain(config)


@pytest.mark.parametrize(("epochs", "limit", "told"), [(0, 24, TRAIN), (-1, 25, TRAIN), (-1, 24, f"first {TRAIN}")])
def test_explain_reads_a_part_of_a_stream(epochs, limit, told, folder, monkeypatch):
    monkeypatch.setattr("thinc_torchopt.addons.preview.description._STREAMED", limit)
    config = config_for(folder, ["tagger"], {}, {"max_epochs": epochs, "max_steps": 9, **batches("sequence", size=24)})
    assert explain(config).checked == [told, DEV]


def test_explain_resuming(folder, tmp_path, monkeypatch):
    """As the checkpoints of the run say; they are looked at if their folder is known."""
    look = Mock(side_effect=["", "Resuming.", "Resuming.", StateError("Of another run.")])
    made, told = Mock(return_value=Namespace(look=look)), []
    monkeypatch.setattr("thinc_torchopt.addons.preview.description.RunCheckpoints", made)
    for path, output in ((None, None), (tmp_path, None), (None, tmp_path), (tmp_path, tmp_path), (tmp_path, None)):
        block = CHECKPOINT | {"path": path and str(path)}
        config = config_for(folder, ["tagger"], {"checkpoint": block}, {"max_steps": 9, **batches("sequence", size=9)})
        found = explain(config, output=output)
        told.append(found.stops + [note for note in found.notes if "Resuming" in note])
    assert [call.kwargs["output"] for call in made.call_args_list] == [None, tmp_path, tmp_path, None]
    assert all(list(call.args[2].describe()) for call in made.call_args_list)
    assert told == [[], [], ["Resuming."], ["Resuming."], ["Of another run."]]
