"""The copy of the best model. The oracle: the files that were copied."""

import os
import random
import shutil

import pytest

from thinc_torchopt.core.errors import ConfigError, StateError
from thinc_torchopt.loop.saved_models import BestModel

from ..conftest import resize


def model_in(folder, size=1000):
    (folder / "tagger").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "meta.json").write_text("{}")
    (folder / "tagger" / "model").write_bytes(random.Random(0).randbytes(size))
    return folder


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_best_model_comes_back_as_it_was(tmp_path):
    model, best = model_in(tmp_path / "out" / "model-best"), BestModel(tmp_path / "state")
    before = files_in(model)
    best.keep(model, 5)
    # As `nlp.to_disk` does: into the files that are there.
    (model / "tagger" / "model").write_bytes(b"changed")
    with (model / "meta.json").open("a") as file:
        file.write("changed")
    again = tmp_path / "elsewhere"
    assert BestModel(tmp_path / "state").put_back(again) == 5 and files_in(again) == before
    best.keep(model, 7)
    assert best.put_back(tmp_path / "third") == 7 and files_in(tmp_path / "third") == files_in(model)
    assert sorted(os.listdir(tmp_path / "state")) == ["best"]


@pytest.mark.parametrize("harm", ["cut", "flip", "gone", "more", "manifest"])
def test_best_model_that_is_damaged_is_not_put_back(harm, tmp_path):
    best = BestModel(tmp_path / "state")
    best.keep(model_in(tmp_path / "model"), 5)
    path = best.path / "tagger" / "model"
    content = path.read_bytes()
    if harm == "cut":
        path.write_bytes(content[:500])
    elif harm == "flip":
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif harm == "gone":
        path.unlink()
    elif harm == "more":
        (best.path / "more").write_text("")
    else:
        (best.path / "torchopt-manifest.json").write_text("{")
    with pytest.raises(StateError, match=r"Can't use the best model in '.*best': expected .* damaged"):
        best.put_back(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["model", "state"] and best.is_there


def test_best_model_leaves_what_is_not_ours(tmp_path):
    mine = model_in(tmp_path / "state" / "best")
    before, best = files_in(mine), BestModel(tmp_path / "state")
    with pytest.raises(
        ConfigError,
        match=r"Can't keep the best model in '.*best': expected a copy made by this package.*Move them elsewhere",
    ):
        best.check_place()
    best.remove()
    assert not best.is_there and files_in(mine) == before
    shutil.rmtree(best.path)
    best.path.mkdir()
    BestModel(tmp_path / "state").check_place()  # an empty one may be there


def test_best_model_and_a_full_disk(small_disk, tmp_path):
    """What was there before is whole; what could not be written is not there at all."""
    small, large = model_in(tmp_path / "small"), model_in(tmp_path / "large", 2_000_000)
    best = BestModel(small_disk)
    best.keep(small, 1)
    with pytest.raises(OSError, match="No space left"):
        best.keep(large, 2)
    assert os.listdir(small_disk) == ["best"] and best.put_back(tmp_path / "out") == 1
    resize(small_disk, 4_000_000)
    best.keep(large, 2)
    best = BestModel(tmp_path / "state")
    best.keep(large, 2)
    with pytest.raises(OSError, match="No space left"):
        best.put_back(small_disk / "model-best")
    assert os.listdir(small_disk) == ["best"]
