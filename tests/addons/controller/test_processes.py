"""What rules know of other processes. The oracle: torch.distributed."""

import sys

import pytest
import torch.distributed as dist

from .kit import LOG, STOP, config_for, definition, firings, part, rule, run

PROCESS = part("process", "PerProcessState")


@pytest.fixture
def process_group(monkeypatch):
    """This process as the third of four, which do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    yield
    dist.destroy_process_group()


def fired(corpus, folder, text):
    rules = definition(
        rule("x", "on_step_end", text, STOP),
        rule("y", "on_train_begin", text, LOG),
        metrics=[PROCESS],
    )
    return firings(run(config_for(folder, corpus, rules, steps=2))[1])


def test_process_alone(corpus, tmp_path, monkeypatch):
    """Also where torch has no torch.distributed, or nobody has imported it."""
    assert fired(corpus, tmp_path, 'process == {"rank": 0, "world_size": 1}')[-1] == (0, "x", "should_training_stop")
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert fired(corpus, tmp_path, 'process == {"rank": 0, "world_size": 1}')[-1] == (0, "x", "should_training_stop")
    assert "torch.distributed" not in sys.modules


def test_process_of_several(process_group, corpus, tmp_path):
    assert (dist.get_rank(), dist.get_world_size()) == (2, 4)
    found = fired(corpus, tmp_path, 'process["rank"] == 2 and process["world_size"] == 4')
    assert found == [(-1, "y", "should_log"), (0, "x", "should_training_stop")]
