"""What is said of costs, and of a machine that does not have them: of numbers that are given, in words."""

import os
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Namespace

import pytest
import spacy
import torch
from spacy.training import Example

from thinc_torchopt.addons.preview import costs
from thinc_torchopt.addons.preview.costs import Disk, Sizes, Times, TrainingWork
from thinc_torchopt.core.ops import Choice, Products

SIZES = Sizes(params=1, gradients=20, state=300, averages=4000, masters=50_000, vectors=600_000, device="cpu")
WORK = TrainingWork(steps=3000, batch_words=10.0, epochs=9.96, evaluations=15)
TIMES = Times(step=2.0, evaluation=10.0, words=5000.0, peak=None)


def setup_of(attachments=None, **training):
    config = {"training": {"gpu_allocator": None, **training}}
    return Namespace(optimizer=Namespace(attachments=attachments or {}), config=config)


def test_costs_count_steps(monkeypatch):
    """By a seed, whatever was drawn before; by words, where not all batches are counted; and of a small budget."""
    nlp = spacy.blank("xx")
    block = {"@batchers": "spacy.batch_by_words.v1", "size": 6, "tolerance": 0.0, "discard_oversize": False}

    def work(lengths, attachments={}, **changes):
        training = {"seed": 0, "max_steps": 0, "max_epochs": 1, "eval_frequency": 2, "batcher": block, **changes}
        setup = Namespace(nlp=nlp, config={"training": training}, optimizer=Namespace(attachments=attachments))
        examples = [Example.from_dict(nlp.make_doc("a " * n), {}) for n in lengths]
        return costs.count_work(setup, Namespace(examples=examples))

    assert len({random.seed(i) or work([1, 5, 2, 5, 3]) for i in range(9)}) == 1
    monkeypatch.setattr(costs, "_MOST_BATCHES", 10)
    assert work([4] * 6, max_epochs=2) == TrainingWork(12, 4.0, 2.0, 6)
    budget = Namespace(unit="words", amount=1.0, count_evaluations=lambda *asked: asked)
    assert work([4] * 6, {"budget": budget}, max_epochs=0) == TrainingWork(2, 4.0, 2 / 6, (2, 2))
    assert work([], max_epochs=0, max_steps=9) is None


def test_costs_of_memory_in_words():
    assert (SIZES.total, SIZES.checkpoint, SIZES.model) == (654_321, 54_301, 600_001)
    parts = (
        "params 1 bytes, gradients 20 bytes, the optimizer's state 300 bytes, averages 4.0 kB, float32 masters 50 kB"
    )
    needs = "Each batch needs more on top of that."
    assert costs.tell_memory(SIZES, 0) == f"About 654 kB: {parts}, static vectors 600 kB. {needs}"
    told = costs.tell_memory(replace(SIZES, vectors=0), 2000)
    assert told == f"About 54 kB: {parts}. {needs} A checkpoint takes 2.0 kB of main memory while it is written."


def test_costs_of_steps_in_words():
    train = Namespace(told="99 texts in [corpora.train]", examples=[0] * 99, words=1234)
    tell = lambda **changes: costs.tell_work(replace(WORK, **changes), train)  # noqa: E731
    text = "3,000 steps (0 to 2,999) of 10 words each: 30,000 words"
    assert tell() == f"{text}, 10.0 epochs of 99 texts with 1,234 words."
    assert tell(epochs=10.0) == f"{text}, 10 epochs of 99 texts with 1,234 words."
    assert tell(epochs=None) == f"{text}, counted in the 99 texts in [corpora.train]."
    assert tell(steps=None) == "No limit until something else ends the training, 10 words each."
    assert replace(WORK, steps=None).words is None


def test_costs_of_time_in_words():
    each = "5,000 words a second in 10 timed steps, 2 seconds a step, 10 seconds an evaluation."
    told = costs.tell_time(TIMES, WORK)
    assert told == (
        f"About 1.7 hours for 3,000 steps and 15 evaluations: {each} Measured with whatever else runs on this "
        "machine now."
    )
    for unknown in ({"steps": None}, {"evaluations": None}):
        assert costs.tell_time(TIMES, replace(WORK, **unknown)) == each


THINCS, NUMPYS = Products("thinc", 1, "BLIS"), Products("numpy", 1, "NumPy 2")
FASTER = "BLIS. NumPy 2, 1 thread, is 2.9 times as fast"
STEP = "A step then takes 2 seconds in place of 3 seconds."
GAIN, NONE, SAME = Choice(NUMPYS, "why.", 2.94), Choice(NUMPYS, "why."), Choice(THINCS, "why.", 1.5)


@pytest.mark.parametrize(
    ("choice", "ops", "steps", "told"),
    [
        (GAIN, "fastest", [1.0], f"{FASTER}, and is what the training takes."),
        (NONE, "fastest", [1.0], "BLIS stays: why."),
        (SAME, "fastest", [1.0], "BLIS stays: why."),
        (GAIN, "thinc", [1.0], f'{FASTER}. ops = "fastest" changes nothing here.'),
        (GAIN, "thinc", [3.0, 2.0], f'{FASTER}: ops = "fastest" {{}} takes it. {STEP}'),
        (
            NONE,
            "thinc",
            [3.0, 2.0],
            f'BLIS stays: why. ops = "fastest" {{}} makes parsers and NER do fewer of them. {STEP}',
        ),
    ],
)
def test_costs_of_products_in_words(choice, ops, steps, told):
    for has, where in ((True, "in [training.optimizer]"), (False, "of the optimizers of thinc-torchopt")):
        assert costs.tell_products(choice, THINCS, ops, steps, has_setting=has) == told.format(where)


ROOM = Disk(9, 9, Path("there"), True)


@pytest.mark.parametrize("path", [None, "there"])
@pytest.mark.parametrize(
    ("memory", "disk", "told"),
    [
        (654_321, ROOM, []),
        (None, ROOM, []),
        (654_320, ROOM, ["Params, gradients and the optimizer's state need 654 kB, and this"]),
        (
            10**9,
            Disk(2000, 1999, Path("there"), True),
            ["No room for checkpoints: 4 checkpoints of 54 kB (keep = 3, and one that is being written) need 2.0 kB"],
        ),
        (10**9, Disk(10, 9, Path("there"), False), ["Can't write checkpoints: 'there' is not a writable folder."]),
    ],
)
def test_costs_that_there_is_no_room_for(memory, disk, told, path, monkeypatch):
    looked = []
    monkeypatch.setattr(costs, "memory_of", lambda device: memory)
    monkeypatch.setattr(costs, "look_at_disk", lambda *asked: looked.append(asked) or disk)
    found = list(costs.lack_of_room(setup_of({"checkpoint": Namespace(path=path, keep=3)}), SIZES))
    assert len(found) == len(told) and all(text.startswith(begin) for text, begin in zip(found, told))
    assert looked == [(Path(path or "."), 54_301, 3)]
    if found and "heckpoint" in found[0]:
        where = "--output." if path is None else "[training.optimizer.checkpoint] path = 'there'."
        assert found[0].endswith(f"It comes from {where}")
    of_memory = [text for text in found if "Params" in text]
    assert list(costs.lack_of_room(setup_of(), SIZES)) == of_memory and len(looked) == 1
    other = list(costs.lack_of_room(setup_of(), replace(SIZES, device="cuda:1")))
    assert [text.replace("cuda:1", "this machine") for text in other] == of_memory


def test_costs_look_at_the_machine(tmp_path, monkeypatch):
    assert costs.memory_of("cpu") == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for error in (AttributeError, ValueError, OSError):
        monkeypatch.setattr(os, "sysconf", lambda name, error=error: (_ for _ in ()).throw(error))
        assert costs.memory_of("cpu") is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Namespace(total_memory=len(device)))
    assert costs.memory_of("cuda:0") == 6 and costs.memory_of("cpu") is None
    found = costs.look_at_disk(tmp_path / "new" / "folder", 1000, 2)
    assert (found.needed, found.folder, found.is_writable) == (3000, tmp_path, True)
    (tmp_path / "file").touch()
    assert not costs.look_at_disk(tmp_path / "file", 1000, 2).is_writable


@pytest.mark.parametrize(
    ("gpu", "has_gpu", "allocator", "backend", "told"),
    [
        (-1, False, None, None, []),
        (-1, True, None, None, ["The training runs on the CPU, but this machine has a GPU: add --gpu-id 0."]),
        (0, True, "pytorch", None, []),
        (0, True, None, None, ["[training] gpu_allocator is not set"]),
        (0, True, "pytorch", "nccl", ["This machine has 2 GPUs: --nproc-per-node can't be larger than that."]),
        (-1, False, None, "nccl", ['backend = "nccl" in [training.optimizer.distributed] is for GPUs']),
        (-1, False, None, "gloo", []),
    ],
)
def test_costs_doubts_of_a_device(gpu, has_gpu, allocator, backend, told, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    several = {} if backend is None else {"distributed": Namespace(backend=backend)}
    found = list(costs.doubts_of_device(setup_of(several, gpu_allocator=allocator), gpu))
    assert len(found) == len(told) and all(text.startswith(begin) for text, begin in zip(found, told))


@pytest.mark.parametrize(("there", "told"), [(0, "no GPU here that torch can use"), (3, "3 GPUs here")])
def test_costs_problem_of_a_device(there, told, monkeypatch):
    def setup_gpu(device, silent):
        assert silent
        if device != 1:
            raise RuntimeError(" none of that kind. ")

    monkeypatch.setattr(costs, "cli_util", lambda: Namespace(setup_gpu=setup_gpu))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    assert costs.device_problem(-1) is None and costs.device_problem(1) is None
    found = costs.device_problem(0)
    assert found.startswith(f"Can't train on the GPU of --gpu-id 0: none of that kind; {told}. The rest of")
