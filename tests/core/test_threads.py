import pytest
import torch

from thinc_torchopt.core.threads import ONE_THREAD, threads_for


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("size, expected", [(10, 1), (ONE_THREAD, 1), (ONE_THREAD + 1, 2)])
def test_threads_one_for_a_small_model(size, expected):
    with threads_for([torch.empty(size)]):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 2


def test_threads_come_back_after_an_error():
    with pytest.raises(RuntimeError), threads_for([torch.empty(1)]):
        raise RuntimeError
    assert torch.get_num_threads() == 2
