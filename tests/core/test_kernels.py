"""Fused kernels walk raw memory: which tensors they are given, and that they compute what torch's plain steps do."""

import copy
import re
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from thinc.api import PyTorchWrapper
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from thinc_torchopt import SGD as DropInSGD
from thinc_torchopt import Adam as DropInAdam
from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core import kernels
from thinc_torchopt.core.algorithms import torch_classes as torch_optimizers
from thinc_torchopt.core.algorithms.torch_classes import SGD, Adagrad, Adam, AdamW
from thinc_torchopt.core.errors import ParamError

from ..models import same, toy_pipeline

# Without masters, half precision loses small updates, as in torch.
pytestmark = pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.PrecisionWarning")

# Ours, and the same as a plain torch one without kernels. thinc's own forms: their formulas are tested in
# core/test_drop_ins.py.
FUSED = {
    "AdamW": (AdamW, lambda params: torch.optim.AdamW(params, lr=0.01, fused=False, foreach=False)),
    "Adam": (
        lambda: Adam(weight_decay=0.1),
        lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.1, fused=False, foreach=False),
    ),
    "amsgrad": (
        lambda: AdamW(amsgrad=True),
        lambda params: torch.optim.AdamW(params, lr=0.01, amsgrad=True, fused=False, foreach=False),
    ),
    "Adagrad": (Adagrad, lambda params: torch.optim.Adagrad(params, lr=0.01, fused=False, foreach=False)),
    "SGD": (SGD, lambda params: torch.optim.SGD(params, lr=0.01, fused=False, foreach=False)),
    "momentum": (
        lambda: SGD(momentum=0.9),
        lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, fused=False, foreach=False),
    ),
}
DROP_INS = {"drop-in Adam": DropInAdam, "drop-in SGD": lambda lr, **kwargs: DropInSGD(lr, **kwargs)}


def make(name, **options):
    if name in DROP_INS:
        return DROP_INS[name](0.01, grad_clip=0.0, use_averages=False, **options)
    return TorchOptimizer(FUSED[name][0](), 0.01, grad_clip=0.0)


class Holder(torch.nn.Module):
    """Params as they are given, in no layer."""

    def __init__(self, **params):
        super().__init__()
        for name, param in params.items():
            setattr(self, name, torch.nn.Parameter(param))

    def forward(self, x):
        return x


def update(optimizer, module, grads):
    """One update of a module in a thinc layer, the same layer each time."""
    model = module.__dict__.setdefault("_wrapper", PyTorchWrapper(module))
    for param, grad in zip(module.parameters(), grads):
        param.grad = grad.clone()
    model.finish_update(optimizer)


def some_grads(params, seed):
    rng = numpy.random.default_rng(seed)
    return [torch.from_numpy(rng.normal(size=tuple(param.shape))).to(param.dtype) for param in params]


# ---------------------------------------------------------------- memory


def naive_cells(tensor):
    """The cell of each index, one by one."""
    cells = [0]
    for stride, size in zip(tensor.stride(), tensor.shape):
        cells = [cell + i * stride for cell in cells for i in range(size)]
    return cells


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=0, max_size=4))
@example([(2, 1), (1, 9), (3, 2)])  # the stride of one index means nothing
def test_kernels_know_dense_and_overlapping_tensors(dims):
    shape, strides = [size for size, _ in dims], [stride for _, stride in dims]
    reach = 1 + sum((size - 1) * stride for size, stride in dims)
    tensor = torch.zeros(reach).as_strided(shape, strides)
    cells = naive_cells(tensor)
    overlaps = len(set(cells)) < len(cells)
    assert kernels.is_dense(tensor) == (not overlaps and sorted(cells) == list(range(len(cells))))
    # It may refuse a few odd ones more: those whose dimensions are woven into each other.
    assert kernels.may_overlap(tensor) or not overlaps
    if kernels.is_dense(tensor):
        assert not kernels.may_overlap(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*FUSED, *DROP_INS])
def test_kernels_write_to_no_foreign_memory(name, dtype):
    """Two params in one buffer, of which one is frozen: the fused kernel would change the one for the other."""
    buffer = torch.ones(5, 6, dtype=dtype)
    module = Holder(a=buffer[:, :3], plain=torch.ones(4, 3, dtype=dtype))
    twin = Holder(a=torch.ones(5, 3, dtype=dtype), plain=torch.ones(4, 3, dtype=dtype))
    optimizer, other = make(name), make(name)
    bare = FUSED[name][1](list(twin.parameters())) if name in FUSED else None
    for step in range(5):
        grads = some_grads(twin.parameters(), step)
        update(optimizer, module, grads)
        if bare is None:
            update(other, twin, grads)
        else:
            for param, grad in zip(twin.parameters(), grads):
                param.grad = grad.clone()
            bare.step()
    assert (buffer[:, 3:] == 1.0).all()
    # Of what can be fused, fused and plain results differ by rounding: a few units in the last place after five steps.
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(module.a, twin.a, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(module.plain, twin.plain, rtol=tolerance, atol=tolerance)
    assert not torch.equal(module.a, torch.ones(5, 3, dtype=dtype))


@pytest.mark.parametrize("name", ["AdamW", "drop-in Adam"])
@pytest.mark.parametrize("param", [torch.ones(1, 64).expand(64, 64), torch.arange(9.0).as_strided((5, 5), (1, 1))])
def test_kernels_refuse_params_whose_cells_overlap(name, param):
    module = Holder(wide=param)
    with pytest.raises(ParamError, match=r"'pytorch/wide': expected a tensor without overlapping memory.*expand\(\)"):
        update(make(name), module, some_grads([param], 0))


def test_kernels_are_left_where_torch_has_none_when_asked_for():
    """`fused = true` is a wish: of what the kernel can't take, the results are right all the same."""
    buffer = torch.ones(3, 6)
    module, optimizer = (
        Holder(a=buffer[:, :3], b=torch.ones(2)),
        TorchOptimizer(SGD(fused=True, momentum=0.5), 0.1, grad_clip=0.0),
    )
    for _ in range(2):
        update(optimizer, module, [torch.ones(3, 3), torch.ones(2)])
    assert (buffer[:, 3:] == 1.0).all()
    torch.testing.assert_close(module.a.data, torch.full((3, 3), 1.0 - 0.1 - 0.15))
    torch.testing.assert_close(module.b.data, torch.full((2,), 1.0 - 0.1 - 0.15))
    # In a group of its own, without the kernel.
    groups = optimizer.torch_optimizers["algorithm"].param_groups
    fused = {len(group["params"][0].shape): group["fused"] for group in groups}
    assert fused == {2: None, 1: True} and len(groups) == 2


def test_kernels_do_not_swallow_clipping():
    """The factor rides along in a kernel; where one param can't be fused, it is applied before."""
    buffer = torch.zeros(3, 6)
    module, optimizer = Holder(a=buffer[:, :3], b=torch.zeros(4)), TorchOptimizer(SGD(), 1.0, grad_clip=0.5)
    update(optimizer, module, [torch.ones(3, 3), torch.ones(4)])
    moved = torch.cat([module.a.data.flatten(), module.b.data])
    torch.testing.assert_close(
        moved.norm(), torch.tensor(0.5), rtol=1e-4, atol=0.0
    )  # clip_grad_norm_ adds 1e-6 to the norm of 3.6


# ---------------------------------------------------------------- dtypes


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(16, 16), (7,), (33, 5)])
@pytest.mark.parametrize("name", [*FUSED, *DROP_INS])
def test_kernels_compute_the_plain_step_in_every_dtype(name, shape, dtype):
    """Against one step of the plain form in double precision, from the same values. Sizes with and without a rest of a
    vector.
    """
    start = torch.randn(shape).to(dtype)
    module, wide = Holder(p=start.clone()), Holder(p=start.to(torch.float64, copy=True))
    grads = some_grads(module.parameters(), 1)
    update(make(name), module, grads)
    if name in DROP_INS:
        update(make(name), wide, [grad.double() for grad in grads])
    else:
        wide.p.grad = grads[0].double()
        FUSED[name][1]([wide.p]).step()
    eps = torch.finfo(dtype).eps
    # One rounding of the param (half a unit in the last place), and a few of the step, whose size is up to 0.03.
    torch.testing.assert_close(module.p.data.double(), wide.p.data, rtol=eps, atol=max(1e-12, 0.1 * eps))
    if dtype.itemsize >= 4 or name != "Adam":
        assert not torch.equal(module.p.data, start)


@pytest.mark.parametrize(
    "options", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}, {"maximize": True}]
)
def test_kernels_move_half_precision_under_sgd(options):
    """torch's fused SGD leaves out whole vectors of it on a CPU (pytorch/pytorch#191763). Bit-equal to torch without
    the kernel.
    """
    torch.manual_seed(0)
    module = torch.nn.Linear(16, 16).bfloat16()
    twin = copy.deepcopy(module)
    optimizer = TorchOptimizer(SGD(**options), 0.1, grad_clip=0.0)
    bare = torch.optim.SGD(twin.parameters(), lr=0.1, fused=False, foreach=False, **options)
    for step in range(3):
        grads = some_grads(twin.parameters(), step)
        update(optimizer, module, grads)
        for param, grad in zip(twin.parameters(), grads):
            param.grad = grad.clone()
        bare.step()
    assert torch.equal(module.weight, twin.weight) and torch.equal(module.bias, twin.bias)


# ---------------------------------------------------------------- memory order that changes


def transposed_pipeline():
    """A component with a transposed matrix, a channels_last filter and a plain bias."""
    torch.manual_seed(0)
    filters = torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    module = Holder(matrix=torch.randn(3, 5).t(), filters=filters, bias=torch.randn(5))
    nlp = toy_pipeline(["tagger"], shared=False)
    nlp.get_pipe("tagger").model = module.__dict__["_wrapper"] = PyTorchWrapper(module)
    return nlp, module


@pytest.mark.parametrize("through", ["disk", "memory", "rollback"])
@pytest.mark.parametrize("name", ["AdamW", "momentum", "Adagrad", "drop-in Adam", "amsgrad"])
def test_kernels_find_loaded_state_in_the_order_of_its_param(name, through, tmp_path):
    nlp, module = transposed_pipeline()
    optimizer = make(name)
    optimizer.initialize(nlp)
    grads = [some_grads(module.parameters(), step) for step in range(6)]
    for step in range(3):
        update(optimizer, module, grads[step])
    params = [param.detach().clone() for param in module.parameters()]
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.to_disk(tmp_path / "state")
    for step in range(3, 6):
        update(optimizer, module, grads[step])
    expected = [param.detach().clone() for param in module.parameters()]
    if through == "rollback":
        optimizer.roll_back(saved)
    else:
        nlp, module = transposed_pipeline()
        optimizer = make(name)
        optimizer.initialize(nlp)
        if through == "disk":
            optimizer.from_disk(tmp_path / "state")
        else:
            optimizer.load_state_dict({**saved, "params": contiguous(saved["params"])})
    with torch.no_grad():
        for param, value in zip(module.parameters(), params):
            param.copy_(value)
    for step in range(3, 6):
        update(optimizer, module, grads[step])
    assert all(map(torch.equal, module.parameters(), expected))


def contiguous(value):
    """As another program might give it."""
    if isinstance(value, dict):
        return {key: contiguous(item) for key, item in value.items()}
    return value.contiguous() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", ["AdamW", "momentum", "Adagrad", "drop-in Adam"])
def test_kernels_follow_a_module_into_another_memory_format(name):
    torch.manual_seed(0)
    module = torch.nn.Conv2d(3, 8, 3)
    twin = copy.deepcopy(module)
    optimizer, other = make(name), make(name)
    for step in range(6):
        if step == 3:
            module.to(memory_format=torch.channels_last)
            assert not module.weight.is_contiguous()
        grads = some_grads(twin.parameters(), step)
        update(optimizer, module, grads)
        update(other, twin, grads)
    # The same numbers in another order: vectors and their rest are others, which may round the last bit in another way.
    torch.testing.assert_close(module.weight, twin.weight.contiguous(), rtol=1e-6, atol=1e-7)


# ---------------------------------------------------------------- state keeps its dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["NAdam", "ASGD", "AdamW", "Adafactor"])
def test_kernels_state_comes_back_in_its_own_dtype(name, dtype, tmp_path):
    def build():
        nlp, module = transposed_pipeline()
        module.to(dtype)
        optimizer = TorchOptimizer(getattr(torch_optimizers, name)(), 0.01, grad_clip=0.0)
        optimizer.initialize(nlp)
        return nlp, module, optimizer  # the pipeline lives as long as somebody holds it

    _nlp, module, optimizer = build()
    for step in range(3):
        update(optimizer, module, some_grads(module.parameters(), step))
    optimizer.to_disk(tmp_path / "state")
    _other_nlp, _, other = build()
    other.from_disk(tmp_path / "state")
    ours, theirs = (o.torch_optimizers["algorithm"].state.values() for o in (optimizer, other))
    assert len(ours) == len(list(module.parameters()))
    for state, loaded in zip(ours, theirs, strict=True):
        assert state.keys() == loaded.keys()
        for key, value in state.items():
            assert loaded[key].dtype == value.dtype and torch.equal(loaded[key], value), key


def test_kernels_state_follows_a_param_into_another_dtype():
    """What was of the param's dtype is of its new one; counts and products of rates stay what they are."""
    module = torch.nn.Linear(4, 4)
    optimizer = TorchOptimizer(torch_optimizers.NAdam(), 0.01, grad_clip=0.0)
    update(optimizer, module, some_grads(module.parameters(), 0))
    module.double()
    update(optimizer, module, some_grads(module.parameters(), 1))
    state = optimizer.torch_optimizers["algorithm"].state[module.weight]
    assert {key: value.dtype for key, value in state.items()} == {
        "step": torch.float32,
        "mu_product": torch.float32,
        "exp_avg": torch.float64,
        "exp_avg_sq": torch.float64,
    }


def test_kernels_state_goes_to_a_param_of_another_dtype():
    """A pipeline that was trained in bfloat16 is trained on in float32."""
    _nlp, module = transposed_pipeline()
    module.bfloat16()
    optimizer = make("AdamW")
    optimizer.initialize(_nlp)
    update(optimizer, module, some_grads(module.parameters(), 0))
    saved = copy.deepcopy(optimizer.state_dict())
    _other_nlp, other_module = transposed_pipeline()
    other = make("AdamW")
    other.initialize(_other_nlp)
    other.load_state_dict(saved)
    state = other.torch_optimizers["algorithm"].state[other_module.matrix]
    assert state["exp_avg"].dtype == torch.float32 and state["exp_avg"].stride() == other_module.matrix.stride()
    expected = optimizer.torch_optimizers["algorithm"].state[module.matrix]["exp_avg"].float()
    assert torch.equal(state["exp_avg"], expected)
    update(other, other_module, some_grads(other_module.parameters(), 1))


# ---------------------------------------------------------------- list ops and fused kernels against their public forms

SIZES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), max_size=6)
DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])


def tensors_of(shapes, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


# Each by our name: how it is called on lists, and its public form on one tensor of each list.
LIST_OPS = {
    "zero_": (lambda a, b, x: kernels.zero_(a), lambda a, b, x: a.zero_()),
    "add_": (lambda a, b, x: kernels.add_(a, b, alpha=x), lambda a, b, x: a.add_(b, alpha=x)),
    "mul_": (lambda a, b, x: kernels.mul_(a, [x] * len(a)), lambda a, b, x: a.mul_(x)),
    "clamp_": (lambda a, b, x: kernels.clamp_(a, abs(x)), lambda a, b, x: a.clamp_(-abs(x), abs(x))),
    "copy_": (lambda a, b, x: kernels.copy_(a, b), lambda a, b, x: a.copy_(b)),
    "lerp_": (lambda a, b, x: kernels.lerp_(a, b, x), lambda a, b, x: a.lerp_(b, x)),
}


@pytest.mark.parametrize("name", LIST_OPS)
@given(SIZES, DTYPES, st.floats(-2.0, 2.0, width=16), st.integers(0, 9))
@settings(max_examples=40)
def test_kernels_list_ops_are_the_public_ops_one_by_one(name, shapes, dtype, number, seed):
    ours, others = tensors_of(shapes, dtype, seed), tensors_of(shapes, dtype, seed + 1)
    expected = [tensor.clone() for tensor in ours]
    on_lists, on_one = LIST_OPS[name]
    on_lists(ours, others, number)
    for tensor, other in zip(expected, others):
        on_one(tensor, other, number)
    eps = torch.finfo(dtype).eps
    for tensor, found in zip(
        expected, ours
    ):  # one rounding more or less, where a product and a sum are one instruction
        torch.testing.assert_close(found, tensor, rtol=2 * eps, atol=4 * eps)


@given(SIZES, DTYPES, st.booleans(), st.integers(0, 9))
@settings(max_examples=40)
def test_kernels_norms_are_torchs(shapes, dtype, wide, seed):
    dtype_of_norm = torch.promote_types(dtype, torch.float32) if wide else dtype
    ours = tensors_of(shapes, dtype, seed)
    found = kernels.norms(ours, dtype_of_norm)
    expected = [torch.linalg.vector_norm(tensor, dtype=dtype_of_norm) for tensor in ours]
    assert len(found) == len(expected)
    for a, b in zip(found, expected):  # sums in another order
        torch.testing.assert_close(a, b, rtol=8 * torch.finfo(a.dtype).eps, atol=0.0)


NUMBERS = st.floats(0.0, 0.5)


@given(
    SIZES,
    st.sampled_from([torch.float64, torch.float32]),
    st.integers(1, 50),
    NUMBERS,
    NUMBERS,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
)
def test_kernels_fused_adam_is_torchs(shapes, dtype, step, lr, weight_decay, maximize, amsgrad, decoupled, seed):
    lists = [tensors_of(shapes, dtype, seed + i) for i in range(5 if amsgrad else 4)]
    lists[3:] = [[tensor.abs() for tensor in moments] for moments in lists[3:]]  # second moments
    expected = [[tensor.clone() for tensor in tensors] for tensors in lists]
    options = {
        "lr": lr,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay": weight_decay,
        "eps": 1e-3,
        "amsgrad": amsgrad,
        "maximize": maximize,
    }
    kernels.adam_(*lists[:2], lists[2:], [torch.tensor(float(step)) for _ in shapes], decoupled=decoupled, **options)
    steps = [torch.tensor(step - 1.0) for _ in shapes]
    public, one_by_one = adamw if decoupled else adam, {"foreach": False, "fused": False, "capturable": False}
    public(*expected[:4], [*expected[4:], []][0], steps, differentiable=False, **one_by_one, **options)
    for found, public in zip(lists, expected):
        for a, b in zip(found, public):  # a few roundings of terms of order 1 to 10
            torch.testing.assert_close(
                a, b, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-5 if dtype == torch.float32 else 1e-12
            )


@given(
    SIZES,
    st.sampled_from([torch.float64, torch.float32]),
    NUMBERS,
    NUMBERS,
    st.sampled_from([(0.0, 0.0, False), (0.9, 0.0, True), (0.9, 0.1, False)]),
    st.booleans(),
    st.integers(0, 9),
)
def test_kernels_fused_sgd_is_torchs(shapes, dtype, lr, weight_decay, of_momentum, maximize, seed):
    ours, grads, buffers = (tensors_of(shapes, dtype, seed + i) for i in range(3))
    expected, expected_buffers = ([tensor.clone() for tensor in tensors] for tensors in (ours, buffers))
    names = ("momentum", "dampening", "nesterov")
    options = {"lr": lr, "weight_decay": weight_decay, "maximize": maximize, **dict(zip(names, of_momentum))}
    kernels.sgd_(ours, [grad.clone() for grad in grads], buffers if of_momentum[0] else None, **options)
    sgd(expected, grads, expected_buffers, foreach=False, fused=False, has_sparse_grad=False, **options)
    for a, b in zip(ours + buffers, expected + expected_buffers):
        torch.testing.assert_close(a, b, rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)


@given(SIZES, st.sampled_from([torch.float64, torch.float32]), NUMBERS, NUMBERS, st.booleans(), st.integers(0, 9))
def test_kernels_fused_adagrad_is_torchs(shapes, dtype, lr, weight_decay, maximize, seed):
    lists = [tensors_of(shapes, dtype, seed + i) for i in range(3)]
    lists[2] = [tensor.abs() for tensor in lists[2]]  # sums of squares
    expected = [[tensor.clone() for tensor in tensors] for tensors in lists]
    options = {"lr": lr, "weight_decay": weight_decay, "lr_decay": 0.1, "eps": 1e-3, "maximize": maximize}
    kernels.adagrad_(*lists[:2], lists[2], [torch.tensor(3.0) for _ in shapes], **options)
    steps = [torch.tensor(2.0) for _ in shapes]
    adagrad(*expected, steps, foreach=False, fused=False, differentiable=False, **options)
    eps = 1e-5 if dtype == torch.float32 else 1e-12  # a few roundings of terms of order 1 to 10
    for found, public in zip(lists, expected):
        for a, b in zip(found, public):
            torch.testing.assert_close(a, b, rtol=eps, atol=eps)


def test_kernels_blocks_have_room_for_some_tensors_of_a_kind(monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK", 10)

    def on_gpu(size, dtype="float32"):
        return SimpleNamespace(is_cuda=True, device="cuda:0", dtype=dtype, numel=lambda: size)

    here = torch.zeros(7)
    given = [on_gpu(6), here, on_gpu(4), on_gpu(5, "float16"), on_gpu(8), on_gpu(2), on_gpu(12), on_gpu(3)]
    found = [[one.numel() for one in row] for (row,) in kernels.blocks(given)]
    assert found == [[7], [6, 4], [8, 2], [12], [3], [5]]


def test_kernels_join_and_part_and_make_alike():
    tensors = [torch.arange(6.0).reshape(2, 3), torch.arange(6.0, 10.0)]
    assert kernels.joined(tensors).tolist() == list(range(10)) and kernels.joined(tensors[:1]) is tensors[0]
    assert kernels.parted(tensors[0], [tensors[0]])[0] is tensors[0]
    assert same(kernels.parted(torch.arange(10.0), tensors), tensors)
    like = [tensors[0], tensors[1].double(), tensors[0].to("meta")]
    found = kernels.alike([*tensors, tensors[0]], like)
    assert found[0] is tensors[0] and found[1].dtype == torch.float64 and torch.equal(found[1], like[1])
    assert found[2].is_meta


def test_kernels_private_ops_are_called_in_one_place():
    package = Path(kernels.__file__).parent
    users = [path.name for path in package.rglob("*.py") if re.search(r"torch\._(foreach|fused)_", path.read_text())]
    assert users == ["kernels.py"]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("size, expected", [(10, 1), (kernels.ONE_THREAD, 1), (kernels.ONE_THREAD + 1, 2)])
def test_kernels_have_one_thread_for_a_small_model(two_threads, size, expected):
    """And their own ones back after an error."""
    with pytest.raises(RuntimeError), kernels.threads_for([torch.empty(size)]):
        assert torch.get_num_threads() == expected
        raise RuntimeError
    assert torch.get_num_threads() == 2
