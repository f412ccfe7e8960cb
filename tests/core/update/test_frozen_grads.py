"""Which params of torch take gradients, inside a step and outside."""

import numpy
import torch

from thinc_torchopt.core.params.param import Param
from thinc_torchopt.core.update.frozen_grads import FrozenGrads


def test_frozen_grads_are_those_of_the_params_that_are_frozen_now():
    one, two = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    still = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    params = [Param(f"tagger/{i}", i, source, source) for i, source in enumerate((one, two, still))]
    params.append(Param("tagger/W", "W", numpy.ones(2, "f"), torch.ones(2)))
    one.grad, grads = torch.ones(2), FrozenGrads()

    def takes():
        assert not still.requires_grad
        assert grads.ids == {id(source) for source in (one, two) if not source.requires_grad}
        return one.requires_grad, two.requires_grad

    grads.stop(params)
    assert takes() == (True, True) and one.grad is not None
    for _ in range(2):
        with grads.stopping([params[0], *params[2:]]):
            assert takes() == (False, True) and one.grad is None
            with grads.stopping(params):
                assert takes() == (False, True)
            assert takes() == (False, True)
            with grads.put_aside():
                grads.stop(params)
                assert takes() == (True, True)
            assert takes() == (False, True)
            grads.stop_only(params[1:])
            assert takes() == (True, False)
        grads.stop(params)
        assert takes() == (True, True)
