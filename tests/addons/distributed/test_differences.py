"""Two processes that differ in what they must have alike. What they did is in differences.py."""

import re

import pytest
import torch


def test_differences_of_the_config_are_named(ranks):
    """On both ranks, before anything is written; only those that there are, and no paths."""
    first, second = ranks("other_settings")
    assert first["error"] == second["error"] and first["wrote"] == []
    found = re.findall(r"^  (\S+): .* on rank 0, .* on rank 1$", first["error"], re.MULTILINE)
    assert found == [
        "training.accumulate_gradient",
        "training.dropout",
        "training.max_steps",
        "training.optimizer.distributed",
        "training.optimizer.distributed.@misc",
        "training.optimizer.distributed.reduce",
        "training.optimizer.use_averages",
        "training.seed",
    ]
    assert "training.dropout: 0.1 on rank 0, 0.3 on rank 1" in first["error"]


def test_differences_of_arguments_are_named(ranks):
    """Of a loop that Python calls, with an optimizer from Python."""
    for found in ranks("other_arguments"):
        assert "training.dropout: 0.1 on rank 0, 0.2 on rank 1" in found["error"]
        assert "training.accumulate_gradient: 1 on rank 0, 2 on rank 1" in found["error"]
        assert "training.optimizer.distributed.reduce: 'sum' on rank 0, 'mean' on rank 1" in found["error"]


def test_differences_of_vectors_and_labels_are_named(ranks):
    for found in ranks("other_vectors_and_labels"):
        assert "static vectors: 'None' of 2 x 3, checksum" in found["error"]
        assert "labels of tagger: 4 on rank 0, 4 on rank 1; number 0: 'A' on rank 0, 'B' on rank 1" in found["error"]


def test_differences_of_annotations_are_found_at_the_start(ranks):
    """One tag in the whole corpus."""
    for found in ranks("other_annotations"):
        assert "1 of 72 differ: the annotations of 'Anna likes red London .' on rank 1" in found["error"]
        assert found["wrote"] == []


def test_differences_of_annotations_are_found_before_they_are_learned(ranks):
    """Where only batches are known, in the step of the first that differs."""
    for found in ranks("other_annotations_of_a_stream"):
        assert "reads other batches or annotations" in found["error"] and found["steps"] == 4
        assert all(torch.equal(value, found["after"][name]) for name, value in found["before"].items())


@pytest.mark.parametrize("scenario", ["drift_before_the_end", "drift_before_a_save", "drift_before_a_checkpoint"])
def test_differences_of_params_are_found_before_they_are_saved(ranks, scenario):
    """And at the end: the next regular check would be in step 100."""
    for found in ranks(scenario):
        assert "expected the same params on all 2 ranks, but they differ in tagger/" in found["error"]
        step = re.search(r"Can't continue after step (\d+)", found["error"])[1]
        if scenario == "drift_before_the_end":
            assert step == "7"
        elif scenario == "drift_before_a_save":
            assert step == "4" and found["evaluated"] == 1
        else:
            assert step == "3" and found["written"] == ["step-00000000"]


def test_differences_of_params_are_allowed_without_checks(ranks):
    assert all("error" not in found for found in ranks("drift_that_is_allowed"))
