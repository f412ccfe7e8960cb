"""What is in a folder of checkpoints: ours is known by name and content, and nothing else is touched."""

import json
import os
import random
from contextlib import nullcontext

import numpy
import pytest

from thinc_torchopt.core.errors import CheckpointWarning, StateError, StateReadError
from thinc_torchopt.core.schema import write as to_dicts
from thinc_torchopt.core.state.files import MANIFEST, write_folder
from thinc_torchopt.loop.checkpoint_folder import (
    STOPPED,
    VERSION,
    SavedTraining,
    bytes_of,
    name_of,
    newest_whole,
    prune,
    read_checkpoint,
    remove,
    resumable,
    room_for,
    step_of,
    steps_of,
    whole_ones,
)
from thinc_torchopt.loop.config_check import Identity
from thinc_torchopt.loop.data_stream import DataStream
from thinc_torchopt.loop.model_state import ModelState
from thinc_torchopt.loop.progress import Progress
from thinc_torchopt.loop.random_state import collect_random

from ..core.state.test_files import damage
from ..spacy_cli import refusal, spacy_cli


def write(folder, *steps):
    for step in steps:
        write_folder(folder / name_of(step), {"step": step})


def left(folder):
    return sorted(step for path in steps_of(folder) if (step := step_of(path)) is not None)


def test_checkpoint_folder_counts_only_whole_ones(tmp_path):
    """Damaged ones are newer than all that are written; of one its size tells, of the other it is known."""
    write(tmp_path, 25, 27)
    (tmp_path / name_of(25) / MANIFEST).write_text("{}")
    for step in range(1, 18):
        write(tmp_path, step)
        prune(tmp_path, 2, {tmp_path / name_of(27)})
    assert left(tmp_path) == [16, 17, 25, 27]
    write(tmp_path, 28, 29)
    prune(tmp_path, 2, {tmp_path / name_of(27)})
    assert left(tmp_path) == [28, 29]  # what is older than those goes, damaged or not


@pytest.mark.parametrize("seed", range(5))
def test_checkpoint_folder_removes_no_whole_one_for_a_damaged_one(seed, tmp_path):
    write(tmp_path, 1, 2, 3)
    kind = damage(tmp_path / name_of(3), random.Random(seed))
    prune(tmp_path, 2)
    # A flipped bit in a file of the same size is not looked for; what is older than two is never needed then.
    assert {2, 3} <= set(left(tmp_path)) and (1 in left(tmp_path) or kind.startswith(("flip", "swap"))), kind


def saved_run(step):
    """All that a run saves. It has done nothing."""
    return to_dicts(
        SavedTraining(
            version=VERSION,
            values={},
            identity=Identity("none", {}),
            label_data={},
            late_labels={},
            progress=Progress(step, results=[(0.5, 5)], losses={"ner": numpy.float32(1.0)}, run_id="one"),
            optimizer={},
            model=ModelState(),
            data=DataStream(iter([])).snapshot(),
            random=collect_random(),
            performance={},
            listeners={},
            ranks=None,
            own={},
        )
    )


PROGRESS = saved_run(6)["progress"]


@pytest.mark.parametrize(
    "progress",
    [
        3,
        "text",
        None,
        ["step"],
        {},
        *(
            {**PROGRESS, name: value}
            for name, values in {
                "step": ("text", None),
                "results": (3, "text", "ab", None, [3], ["ab"], [(10**400, 5)]),
                "losses": (3, "text", {"ner": "3"}, {"ner": "ab"}, {"ner": [1.0]}, {"ner": True}, {"ner": 10**400}),
                "rollbacks": (3, "text"),
            }.items()
            for value in values
        ),
    ],
    ids=lambda progress: repr(progress)[:200],
)
def test_checkpoint_folder_passes_over_one_with_a_damaged_progress(progress, tmp_path):
    """Its checksums are right, as if another program had written it."""
    write_folder(tmp_path / name_of(5), saved_run(5))
    write_folder(tmp_path / name_of(6), {**saved_run(6), "progress": progress})
    with pytest.warns(CheckpointWarning, match="expected 'progress.* The next one is used"):
        assert [saved.progress.step for saved in whole_ones(reversed(steps_of(tmp_path)))] == [5]
    with pytest.raises(StateError, match="expected 'progress"):
        read_checkpoint(tmp_path / name_of(6))
    assert "progress" in refusal("torchopt", "checkpoint", tmp_path / name_of(6))


def test_checkpoint_folder_passes_over_none_that_can_not_be_read(without_privileges, tmp_path):
    """It may be undamaged. Neither is it counted among those that are kept."""
    for step in (1, 4, 5, 6):
        write_folder(tmp_path / name_of(step), saved_run(step))
    for step in (1, 6):
        (tmp_path / name_of(step)).chmod(0)
    with pytest.raises(StateReadError, match="step-00000006"):
        next(whole_ones(reversed(steps_of(tmp_path))))
    prune(tmp_path, 1)
    assert left(tmp_path) == [1, 5, 6]
    (tmp_path / name_of(6)).chmod(0o700)
    assert next(whole_ones(reversed(steps_of(tmp_path)))).progress.step == 6


def test_checkpoint_folder_shows_which_ones_can_not_be_read(without_privileges, monkeypatch, tmp_path):
    """And leaves out those that a running training has just removed."""
    for step in (5, 6):
        write_folder(tmp_path / name_of(step), {**saved_run(step), "optimizer": {"groups": {}}})
    (tmp_path / name_of(6)).chmod(0)
    assert room_for(tmp_path, 100_000, 1) == 200_000 - bytes_of(tmp_path / name_of(5)) < 200_000
    there = [*steps_of(tmp_path), tmp_path / name_of(7)]
    monkeypatch.setattr("thinc_torchopt.cli.checkpoint.resumable", lambda folder: there)
    shown = json.loads(spacy_cli("torchopt", "checkpoint", tmp_path, "--json").stdout)
    assert [(entry["name"], entry["whole"]) for entry in shown] == [(name_of(5), True), (name_of(6), None)]
    assert "Permission denied" in shown[1]["problem"]
    (tmp_path / name_of(5)).chmod(0)
    said = refusal("torchopt", "checkpoint", tmp_path)
    assert said.count("unreadable") == 3 and "found 0 damaged and 2 unreadable. Make these readable" in said


@pytest.mark.parametrize(
    ("place", "is_spacys", "agrees"),
    [
        ({}, True, True),
        ({"left_out": 2, "position": 8, "sizes": [(1, 5), (2, 3)]}, True, True),
        ({"left_out": 2}, True, False),
        ({"position": 7}, True, False),
        ({"sizes": [(1, 5), (2, 2)]}, True, False),
        ({"step": 7}, True, False),
        ({"step": 7}, False, True),
        ({"position": 7}, False, False),
    ],
)
def test_checkpoint_folder_compares_batches_and_steps(place, is_spacys, agrees, tmp_path):
    write_folder(tmp_path / name_of(5), saved_run(5))
    saved = read_checkpoint(tmp_path / name_of(5))
    saved.progress.left_out, saved.data.position = place.get("left_out", 0), place.get("position", 6)
    saved.data.sizes, saved.optimizer = place.get("sizes", [(1, 6)]), {"step": place.get("step", 6)}
    with nullcontext() if agrees else pytest.raises(StateError, match="batches and steps should agree"):
        saved.check_place(is_spacys=is_spacys)


def test_checkpoint_folder_shows_no_renamed_one_as_whole(tmp_path):
    """Unless its new name is none of a checkpoint."""
    for name in (name_of(9), "copy"):
        write_folder(tmp_path / name, saved_run(6))
    with pytest.raises(StateError, match="expected the checkpoint of step 9, found that of step 6"):
        read_checkpoint(tmp_path / name_of(9))
    assert read_checkpoint(tmp_path / "copy").progress.step == 6


def test_checkpoint_folder_resumes_from_that_of_a_stop_and_does_not_go_back_to_it(tmp_path):
    for folder, step in ((tmp_path, 99_999_999), (tmp_path / STOPPED, 100_000_000)):
        write_folder(folder / name_of(step), {**saved_run(step), "optimizer": {"groups": {}}})
    assert newest_whole(tmp_path).progress.step == 100_000_000
    assert [saved.progress.step for saved in whole_ones(reversed(steps_of(tmp_path)))] == [99_999_999]
    # Both stay until the next one is written.
    assert room_for(tmp_path, 100_000, 1) == 300_000 - sum(map(bytes_of, resumable(tmp_path)))
    shown = json.loads(spacy_cli("torchopt", "checkpoint", tmp_path, "--json").stdout)
    assert [entry["step"] for entry in shown] == [99_999_999, 100_000_000]


def test_checkpoint_folder_leaves_what_is_not_ours(tmp_path):
    others = [
        "step-backup",
        "step-notes",
        "step-5",
        "step-000000005",
        "step-\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0661",
    ]
    for name in (*others, name_of(7)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    write(tmp_path, 6, 7, 8, 9)
    (tmp_path / name_of(7) / "notes.txt").write_text("mine")
    (tmp_path / "linked").mkdir()
    write(tmp_path / "linked", 0)
    os.symlink(tmp_path / "linked" / name_of(0), tmp_path / name_of(0))
    assert left(tmp_path) == [0, 6, 7, 8, 9]
    prune(tmp_path, 1)
    assert set(os.listdir(tmp_path)) == {*others, "linked", *map(name_of, (0, 7, 9))}
    remove(steps_of(tmp_path))
    assert left(tmp_path) == [0, 7] and left(tmp_path / "linked") == [0]
    assert [path.name for path in (tmp_path / name_of(7)).iterdir()] == ["notes.txt"]
    assert next(whole_ones(steps_of(tmp_path / name_of(7))), 0) == 0
