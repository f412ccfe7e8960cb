"""Whatever the chain: its config rebuilds it, its state resumes it, and what fails leaves everything as it was."""

import copy
import json
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thinc_torchopt.addons.modular.optimizer import Modular
from thinc_torchopt.addons.modular.scaffold import ScaffoldAuxVar
from thinc_torchopt.core.errors import AuxVarError, StateError
from thinc_torchopt.modular import from_bytes, to_bytes

from .compare import assert_same
from .test_every_module import fill_grads, like, params

BETA = st.floats(0.0, 0.99)
ALPHA = st.floats(0.0, 1.0)
RESET = {"round_reset": st.booleans()}
MODULES = {
    "adagrad": {"eps": st.floats(1e-8, 1.0), **RESET},
    "adam": {"beta_1": BETA, "beta_2": BETA, "amsgrad": st.booleans(), **RESET},
    "agc": {"clip": ALPHA},
    "centralize": {},
    "ewma": {"beta": BETA, **RESET},
    "gaussian-noise": {"std": ALPHA, "safe_mode": st.just(False), "seed": st.integers(0, 9)},
    "l2-clipping": {"max_norm": ALPHA},
    "l2-global-clipping": {"max_norm": ALPHA},
    "lion": {"beta_1": BETA, "beta_2": BETA, **RESET},
    "lookahead": {"k": st.integers(1, 3), "alpha": ALPHA},
    "momentum": {"beta": BETA, "nesterov": st.booleans(), **RESET},
    "rmsprop": {"beta": BETA, **RESET},
    "scaffold-client": {},
    "torch-optim": {
        "optim_cls": st.sampled_from(["torch.optim.SGD", "torch.optim.RMSprop"]),
        "kwargs": st.fixed_dictionaries({"momentum": BETA}),
    },
    "yogi": {"beta_1": BETA, "beta_2": BETA, **RESET},
    "yogi-momentum": {"beta": BETA, **RESET},
}
REGULARIZERS = {name: {"alpha": ALPHA} for name in ("fedprox", "l2-sp", "lasso", "ridge")}


def specs(table, most):
    one = st.sampled_from(sorted(table)).flatmap(
        lambda name: st.tuples(
            st.just(name),
            st.fixed_dictionaries({}, optional={**table[name], "params": st.just(["re:^[bm]"])})
            if name not in ("torch-optim", "gaussian-noise")
            else st.fixed_dictionaries(table[name]),
        )
    )
    return st.lists(one, max_size=most)


def one_exchange(found):
    return sum(name == "scaffold-client" for name, _ in found) <= 1


CHAINS = st.fixed_dictionaries(
    {
        "lr": st.floats(0.0, 0.1),
        "weight_decay": st.floats(0.0, 0.1),
        "decay": st.sampled_from(["adamw", "declearn"]),
        "regularizers": specs(REGULARIZERS, 2),
        "modules": specs(MODULES, 4).filter(one_exchange),
    }
)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
EXAMPLES = settings(derandomize=True, suppress_health_check=[HealthCheck.too_slow])
quiet = pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.ConfigWarning")


def steps(found, optimizer, first, n, round_at=None):
    for step in range(first, first + n):
        if step == round_at:
            optimizer.start_round()
        fill_grads(found, step)
        if step == 1:
            found["cube"].grad = None
        optimizer.step()


@quiet
@EXAMPLES
@given(chain=CHAINS, cut=st.integers(0, 4), round_at=st.integers(0, 6), as_json=st.booleans(), dtype=DTYPES)
def test_properties_config_rebuilds_and_state_resumes(chain, cut, round_at, as_json, dtype):
    found = params(dtype=dtype)
    optimizer = Modular(found.items(), **chain)
    steps(found, optimizer, 0, cut, round_at)
    again = like(found)
    config = json.loads(json.dumps(optimizer.get_config()))
    resumed = Modular.from_config(again.items(), config)
    assert resumed.get_config() == optimizer.get_config()
    state = optimizer.get_state(as_json=as_json)
    resumed.set_state(json.loads(json.dumps(state)) if as_json else state)
    assert_same(resumed.get_state(), optimizer.get_state())
    kept = copy.deepcopy(state)
    for own, each in ((found, optimizer), (again, resumed)):
        steps(own, each, cut, 3, round_at)
    assert_same(state, kept)  # it is a copy
    assert all(torch.equal(found[name].isnan(), again[name].isnan()) for name in found)
    assert all(torch.equal(found[name].nan_to_num(), again[name].nan_to_num()) for name in found)


def leaves(tree, path=()):
    """Paths to everything in a tree."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from leaves(value, (*path, key))


class Odd:
    """Of a type that no state has, and that objects to everything."""

    def __eq__(self, other):
        raise RuntimeError("not comparable")

    __hash__ = None

    def __repr__(self):
        return "Odd()"


DAMAGE = {
    "none": lambda value: None if value is not None else 3,
    "text": lambda value: "damaged",
    "number": lambda value: -1,
    "true": lambda value: value is not True,
    "float": lambda value: 0.5,
    "odd": lambda value: Odd(),
    "list": lambda value: [value, value],
    "empty": lambda value: {} if value != {} else {"more": 1},
    "nan": lambda value: value * torch.nan if isinstance(value, torch.Tensor) else float("nan"),
    "shape": lambda value: torch.zeros(2, 2, 2, 2),
    "dtype": lambda value: value.to(torch.complex64) if isinstance(value, torch.Tensor) else torch.zeros(1),
    "meta": lambda value: torch.zeros((), device="meta"),
}


def damaged(state, path, how):
    """A copy with other content at a path. how: A key of DAMAGE, "gone", or "more"."""
    state = copy.deepcopy(state)
    *above, last = path
    inside = state
    for key in above:
        inside = inside[key]
    if how == "gone":
        del inside[last]
    elif how == "more" and isinstance(inside, list):
        inside.append(copy.deepcopy(inside[last]))
    elif how == "more":
        inside["one too many"] = inside[last]
    else:
        inside[last] = DAMAGE[how](inside[last])
    return state


@quiet
@settings(EXAMPLES)
@given(chain=CHAINS, data=st.data(), how=st.sampled_from([*DAMAGE, "gone", "more"]))
def test_properties_a_damaged_state_changes_nothing(chain, data, how):
    found = params()
    optimizer = Modular(found.items(), **chain)
    steps(found, optimizer, 0, 2)
    before = optimizer.get_state()
    other = like(found)
    donor = Modular(other.items(), **chain)
    steps(other, donor, 0, 3)
    good = donor.get_state()
    path = data.draw(st.sampled_from([path for path in leaves(good) if path]))
    bad = damaged(good, path, how)
    held = {id(value) for state in optimizer.state.values() for value in state.values()}
    try:
        optimizer.set_state(bad)
    except StateError as error:
        assert "Can't load the state of" in str(error)
        assert_same(optimizer.get_state(), before)
        assert {id(value) for state in optimizer.state.values() for value in state.values()} == held
    else:
        # What was loaded is a state that could have been: a smaller count, or nothing yet for a param.
        assert_same(optimizer.get_state(), bad)


@EXAMPLES
@given(
    data=st.data(),
    how=st.sampled_from([*DAMAGE, "gone", "more"]),
    side=st.sampled_from(["client", "server"]),
)
def test_properties_damaged_aux_vars_change_nothing(data, how, side):
    found = params()
    optimizer = Modular(found.items(), 0.1, modules=[f"scaffold-{side}"])
    field = "state" if side == "client" else "delta"
    steps(found, optimizer, 0, 2)
    vector = {name: torch.ones_like(param) for name, param in found.items()}
    optimizer.process_aux_var({"scaffold": ScaffoldAuxVar(**{field: vector})})
    steps(found, optimizer, 2, 1)
    before = optimizer.get_state()
    tree = {"scaffold": {"vector": vector}}
    path = data.draw(st.sampled_from([path for path in leaves(tree) if path]))
    bad = damaged(tree, path, how)
    aux = None
    try:
        aux = {
            name: ScaffoldAuxVar(**{field: value["vector"]}) if isinstance(value, dict) and "vector" in value else value
            for name, value in bad.items()
        }
        if not aux:
            return
        optimizer.check_aux_var(aux)
        assert_same(optimizer.get_state(), before)
        optimizer.process_aux_var(aux)
    except AuxVarError:
        assert_same(optimizer.get_state(), before)
        if aux is not None:
            with pytest.raises(AuxVarError):
                optimizer.process_aux_var(aux)
    else:
        assert how in ("float", "number", "true", "more", "none", "empty", "shape") and found


@quiet
def test_properties_errors_of_any_type_undo_everything(monkeypatch):
    """Also those that nobody expects, in the middle of loading."""
    found = params()
    optimizer = Modular(found.items(), 0.1, modules=["adam", "momentum"])
    steps(found, optimizer, 0, 2)
    good, before = optimizer.get_state(), optimizer.get_state()
    good["modules"][0][1]["params"]["matrix"]["step"] = 7
    for error in (KeyboardInterrupt, MemoryError, OSError, ZeroDivisionError):

        def fail(*arguments, error=error):
            raise error()

        monkeypatch.setattr(type(optimizer.modules[1]), "example_state", fail)
        with pytest.raises(BaseException):  # noqa: B017
            optimizer.set_state(good)
        assert_same(optimizer.get_state(), before)
        monkeypatch.undo()


@EXAMPLES
@given(
    shapes=st.dictionaries(
        st.text("abcé/:_.", min_size=1, max_size=8), st.lists(st.integers(0, 3), max_size=3), max_size=4
    ),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    is_delta=st.booleans(),
)
def test_properties_aux_vars_come_back_from_the_wire(shapes, dtype, is_delta):
    vector = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    aux = ScaffoldAuxVar(delta=vector, clients=("a", "é")) if is_delta else ScaffoldAuxVar(state=vector)
    assert from_bytes(to_bytes({"scaffold": sum([ScaffoldAuxVar(delta=0.0)] * 2)}))["scaffold"].delta == 0.0
    again = from_bytes(to_bytes({"scaffold": aux}))["scaffold"]
    assert again.clients == aux.clients
    for field in ("state", "delta"):
        assert_same(getattr(again, field), getattr(aux, field))


@EXAMPLES
@given(at=st.floats(0, 1), byte=st.integers(0, 255), cut=st.booleans())
def test_properties_damaged_bytes_are_refused_or_harmless(at, byte, cut):
    data = bytearray(to_bytes({"scaffold": ScaffoldAuxVar(delta={"w": torch.ones(3)}, clients=("a",))}))
    assert from_bytes(bytes(data))["scaffold"].clients == ("a",)
    place = int(at * (len(data) - 1))
    if cut:
        data = data[:place]
    else:
        data[place] = byte
    with suppress(AuxVarError):
        assert all(isinstance(aux, ScaffoldAuxVar) for aux in from_bytes(bytes(data)).values())
