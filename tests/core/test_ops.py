"""Matrix products by other libraries. The oracle: NumPy's in float64, and thinc's own errors."""

import copy
import pickle
from importlib.metadata import version

import numpy
import pytest
import spacy
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from thinc.api import CupyOps, Linear, Maxout, Model, MPSOps, NumpyOps, Relu, get_current_ops, get_ops

import thinc_torchopt
from thinc_torchopt.core import ops as core_ops
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.ops import FastOps, PipelineOps, Products, _multiply, choose, fastest, products_by

LIBRARIES = ["numpy", "torch"]
THINCS = NumpyOps()


def ops_by(library, **options):
    return FastOps(NumpyOps(**options), _multiply(products_by(library)))


OPS = {library: ops_by(library) for library in LIBRARIES}

# ---------------------------------------------------------------------- products

LAYOUTS = {
    "C": numpy.ascontiguousarray,
    "Fortran": numpy.asfortranarray,
    "every second": lambda a: numpy.repeat(numpy.repeat(a, 2, axis=0), 2, axis=1)[::2, ::2],
    "reversed": lambda a: numpy.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "a part": lambda a: numpy.pad(a, 2)[2:-2, 2:-2],
    "unaligned": lambda a: numpy.ndarray(a.shape, a.dtype, bytearray(b"x" + a.tobytes()), 1),
    "read-only": lambda a: (a := a.copy(), a.setflags(write=False))[0],
}
# Some above the size from which torch computes.
SIZES = st.one_of(st.integers(0, 12), st.integers(80, 130))


@pytest.mark.parametrize("library", LIBRARIES)
@given(
    sizes=st.tuples(SIZES, SIZES, SIZES),
    layouts=st.tuples(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(LAYOUTS))),
    trans=st.tuples(st.booleans(), st.booleans()),
    into=st.sampled_from([None, "C", "Fortran", "every second"]),
)
def test_ops_products_of_any_shape_and_layout(library, sizes, layouts, trans, into):
    generator = numpy.random.default_rng(0)
    m, k, n = sizes
    x = generator.uniform(-1, 1, (k, m) if trans[0] else (m, k)).astype("float32")
    y = generator.uniform(-1, 1, (n, k) if trans[1] else (k, n)).astype("float32")
    expected = (x.T if trans[0] else x).astype("float64") @ (y.T if trans[1] else y).astype("float64")
    x, y = LAYOUTS[layouts[0]](x), LAYOUTS[layouts[1]](y)
    out = None if into is None else LAYOUTS[into](numpy.full((m, n), numpy.nan, dtype="float32"))
    before = x.copy(), y.copy()
    found = OPS[library].gemm(x, y, out=out, trans1=trans[0], trans2=trans[1])
    assert found.dtype == numpy.float32 and (out is None or found is out)
    # Each sum has k terms of at most 1, each rounded: half of the last of 24 bits.
    assert_allclose(found, expected, rtol=0, atol=(k + 1) * k * 2**-24)
    assert numpy.array_equal(x, before[0]) and numpy.array_equal(y, before[1])


@pytest.mark.parametrize("library", LIBRARIES)
def test_ops_out_may_be_an_input(library):
    x, y = numpy.random.default_rng(0).random((2, 100, 100), dtype="float32")
    expected = x @ y
    assert_allclose(OPS[library].gemm(x, y, out=x), expected, rtol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_ops_out_of_another_shape_or_type_is_refused(library):
    """thinc writes behind the end of it."""
    x = numpy.ones((4, 4), dtype="float32")
    for out in (numpy.zeros((3, 4), "float32"), numpy.zeros((4, 4), "float64")):
        with pytest.raises(ValueError):
            OPS[library].gemm(x, x, out=out)


FLOATS = numpy.ones((3, 2), dtype="float32")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "x, y, use_blis",
    [
        (FLOATS, FLOATS, True),
        (FLOATS, FLOATS, False),
        (FLOATS[0], FLOATS, True),
        (FLOATS, FLOATS[None], False),
        (FLOATS.astype("float16"), FLOATS.T.astype("float16"), True),
        (FLOATS, FLOATS.T.astype("int32"), True),
        ([[1.0]], FLOATS.T, True),
        (None, FLOATS, True),
    ],
)
def test_ops_errors_are_thincs(library, x, y, use_blis):
    with pytest.raises((ValueError, TypeError)) as expected:
        NumpyOps(use_blis=use_blis).gemm(x, y)
    with pytest.raises(type(expected.value)) as found:
        ops_by(library, use_blis=use_blis).gemm(x, y)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("library", LIBRARIES)
def test_ops_float64_by_blis_is_thincs(library):
    """Newer versions of thinc refuse it."""
    x = FLOATS.astype("float64")
    try:
        expected = NumpyOps(use_blis=True).gemm(x, x.T)
    except ValueError as error:
        with pytest.raises(ValueError) as found:
            ops_by(library, use_blis=True).gemm(x, x.T)
        assert str(found.value) == str(error)
    else:
        computed = ops_by(library, use_blis=True).gemm(x, x.T)
        assert computed.dtype == expected.dtype and numpy.array_equal(computed, expected)


@pytest.mark.parametrize("library", LIBRARIES)
def test_ops_other_types_are_computed_as_before(library):
    """float64 where thinc has NumPy's, and classes of arrays."""
    x = numpy.random.default_rng(0).random((3, 3))
    assert numpy.array_equal(ops_by(library, use_blis=False).gemm(x, x), x @ x)
    special = x.astype("float32").view(numpy.memmap)
    assert type(OPS[library].gemm(special, special)) is type(THINCS.gemm(special, special))


def test_ops_threads_of_torch_stay(monkeypatch):
    monkeypatch.setattr(torch, "mm", lambda x, y: torch.full((1, 1), float(torch.get_num_threads())))
    ops = FastOps(NumpyOps(), _multiply(products_by("torch", 1)))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        big = numpy.ones((100, 100), dtype="float32")
        assert ops.gemm(big[:50], big) == 1.0 and torch.get_num_threads() == 2
        small = numpy.ones((1, 1000), dtype="float32"), numpy.ones((1000, 499), dtype="float32")
        assert (ops.gemm(*small) == 1000.0).all()  # by NumPy
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("drop", [None, 0.0, 0.1, numpy.float32(0.3), 0.35, 1.0, 1.5])
@pytest.mark.parametrize("shape", [(), 3, (4, 5), (2, 0), (2, 3, 4)])
def test_ops_dropout_masks_are_thincs_to_the_last_bit(drop, shape):
    """And leave the random generator where thinc does."""
    found = []
    for ops in (THINCS, OPS["numpy"]):
        numpy.random.seed(0)
        mask = ops.get_dropout_mask(shape, drop)
        found.append((mask.dtype, mask.shape, mask.tobytes(), numpy.random.random()))
    assert found[0] == found[1]


# ---------------------------------------------------------------------- where they are


def test_ops_nobody_else_gets_them():
    """thinc looks for ops by name. Copies and pickles are thinc's own."""
    ops = OPS["numpy"]
    assert isinstance(ops, NumpyOps) and ops.name == "numpy"
    assert {type(get_ops(name)) for name in ("numpy", "cpu")} == {NumpyOps} == {type(get_current_ops())}
    for other in (copy.copy(ops), copy.deepcopy(ops), pickle.loads(pickle.dumps(ops))):
        assert type(other) is NumpyOps and vars(other) == vars(THINCS)
    assert not copy.copy(ops_by("numpy", use_blis=False)).use_blis


@pytest.fixture
def nlp():
    nlp = spacy.blank("xx")
    nlp.add_pipe("tagger").add_label("A")
    nlp.initialize()
    return nlp


def nodes(nlp):
    return [node for _, pipe in nlp.pipeline for node in pipe.model.walk()]


class Mine(NumpyOps):
    """As thinc-apple-ops' are, a subclass."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_ops_nodes_get_their_own_back(nlp, library):
    """Also after an error. Those of other classes are left alone, and what was put in meanwhile stays."""
    all_nodes = nodes(nlp)
    own, moved, copied = Mine(), NumpyOps(), []
    all_nodes[3].ops = own
    before = [node.ops for node in all_nodes]
    with pytest.raises(RuntimeError), PipelineOps(nlp, products_by(library)) as in_use:
        assert [type(node.ops) for node in all_nodes].count(FastOps) == len(all_nodes) - 1
        assert len({id(node.ops) for node in all_nodes}) == 2 and all_nodes[3].ops is own
        copied += [nlp.get_pipe("tagger").model.copy(), copy.deepcopy(nlp.get_pipe("tagger").model)]
        with_ops = Model("other", lambda model, X, is_train: (X, lambda dY: dY), ops=all_nodes[0].ops)
        all_nodes[4].ops = moved
        all_nodes[5].ops = moved
        in_use.cover()
        assert type(all_nodes[4].ops) is FastOps is type(all_nodes[5].ops)
        all_nodes[5].ops = own
        raise RuntimeError
    before[4], before[5] = moved, own
    assert all(node.ops is ops for node, ops in zip(all_nodes, before))
    assert {type(node.ops) for model in copied for node in model.walk()} <= {NumpyOps, Mine}
    # What still has ours computes as thinc.
    x = numpy.random.default_rng(0).random((50, 50), dtype="float32")
    assert numpy.array_equal(with_ops.ops.gemm(x, x), THINCS.gemm(x, x))


@pytest.mark.parametrize("kind", [type("AppleOps", (NumpyOps,), {"name": "apple"}), CupyOps, MPSOps])
def test_ops_of_other_devices_are_left_alone(nlp, kind):
    """Doubles of them: neither measured nor covered, and nodes that move there in between stay there."""
    theirs = object.__new__(kind)
    moved, *others = nodes(nlp)
    for node in others:
        node.ops = theirs
    with PipelineOps(nlp, products_by("numpy")) as in_use:
        assert type(moved.ops) is FastOps and all(node.ops is theirs for node in others)
        moved.ops = theirs
        in_use.cover()
        assert moved.ops is theirs
    assert all(node.ops is theirs for node in nodes(nlp))
    choice = fastest(nlp)
    assert choice.products.library == "thinc" and choice.gain is None


def test_ops_of_thinc_change_nothing(nlp):
    with PipelineOps(nlp, products_by("thinc")) as in_use:
        in_use.cover()
        assert {type(node.ops) for node in nodes(nlp)} == {NumpyOps} and not in_use.changes_anything


def test_ops_new_nodes_are_covered(nlp):
    with PipelineOps(nlp, products_by("numpy")) as in_use:
        new = nlp.add_pipe("tagger", name="new")
        new.add_label("B")
        assert {type(node.ops) for node in new.model.walk()} == {NumpyOps}
        in_use.cover()
        assert {type(node.ops) for node in new.model.walk()} == {FastOps}
    assert {type(node.ops) for node in nodes(nlp)} == {NumpyOps}


# ---------------------------------------------------------------------- the choice


def measured(**seconds):
    return {Products(name.rstrip("2"), 2 if "2" in name else 1, f"k-{name}"): one for name, one in seconds.items()}


@pytest.mark.parametrize(
    "seconds, expected, reason",
    [
        ({"thinc": 2.9, "numpy": 1.0, "torch": 1.02}, "k-numpy", "2.9 times as fast as k-thinc."),
        ({"thinc": 2.9, "numpy": 1.0, "torch": 0.98}, "k-numpy", "2.9 times as fast"),
        ({"thinc": 3.0, "numpy": 1.0, "torch": 0.5}, "k-torch", "6.0 times as fast"),
        ({"thinc": 1.0, "numpy": 0.97, "torch": 1.5}, "k-thinc", "k-numpy, 1 thread takes 1.0 times as long."),
        ({"thinc": 1.1, "numpy": 1.0, "torch": 1.05}, "k-thinc", "k-numpy, 1 thread takes 0.9 times as long."),
        ({"thinc": 1.0, "numpy": 2.0, "torch": 1.5}, "k-thinc", "k-torch, 1 thread takes 1.5 times as long."),
        ({"thinc": 3.0, "numpy": 1.0, "numpy2": 0.6, "torch": 1.0, "torch2": 0.9}, "k-numpy2", "5.0 times as fast"),
    ],
)
def test_ops_choice_by_time(seconds, expected, reason):
    """Where BLIS is as fast, thinc's stay."""
    choice = choose(measured(**seconds))
    assert choice.products.kernel == expected and reason in choice.reason
    assert choice.gain == (1.0 if expected == "k-thinc" else seconds["thinc"] / seconds[expected[2:]])


@pytest.mark.parametrize("threads", [1, 3, "auto"])
@pytest.mark.parametrize("processes", [None, "2", "8"])
def test_ops_candidates(nlp, monkeypatch, threads, processes):
    """As many threads as were asked for; "auto": up to the part that each process has of the processors."""
    seen = []
    monkeypatch.setattr("thinc_torchopt.core.ops._measure", lambda given, shapes: seen.extend(given) or measured(k=1.0))
    monkeypatch.setattr("os.sched_getaffinity", {0: range(6)}.get, raising=False)
    if processes is not None:
        launcher = {"RANK": "0", "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        for name, value in (launcher | {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}).items():
            monkeypatch.setenv(name, value)
    fastest(nlp, *[threads] * (threads != 1))
    part = {None: [1, 2, 4, 6], "2": [1, 2, 3], "8": [1]}[processes]
    expected = part if threads == "auto" else [threads]
    assert [one.threads for one in seen] == [1, *(n for n in expected for _ in LIBRARIES)]
    assert [one.library for one in seen] == ["thinc", *LIBRARIES * len(expected)]


@pytest.mark.parametrize(("processors", "threads"), [(None, [1]), (4, [1, 2, 4])])
def test_ops_threads_where_the_system_tells_no_more(monkeypatch, processors, threads):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    assert core_ops._numbers_of_threads() == threads


def test_ops_are_measured_on_the_most_costly_weights(monkeypatch):
    """Each as a matrix. Left out: other ops, no weights yet, one dimension, none at all."""
    layers = [Linear(3, 4), Linear(3, 4), Linear(5, 6), Maxout(2, 4, nP=4), Linear(10, 1), Linear(2, 2), Linear(2, 2)]
    layers = [layer.initialize() for layer in layers] + [Linear(9, 9), Relu(9, 9).initialize(), Model("", print)]
    layers[8].ops = Mine()
    layers[9].set_param("W", numpy.ones(99, dtype="float32"))
    monkeypatch.setattr(core_ops, "_nodes", lambda nlp: layers)
    assert core_ops._shapes(None) == [((8, 4), 1), ((5, 6), 1), ((3, 4), 2), ((10, 1), 1)]


def test_ops_are_measured_by_the_best_of_their_turns(monkeypatch):
    """By a clock that only products move: each product of a step, as often as it is there."""
    clock, seen = [0.0], []

    def product(seconds):
        def gemm(self, x, y, trans1=False, trans2=False):
            seen.append((x.shape[:: -1 if trans1 else 1], y.shape[:: -1 if trans2 else 1]))
            clock[0] += seconds / len(seen)

        return gemm

    monkeypatch.setattr(core_ops, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(core_ops, "NumpyOps", type("Thincs", (NumpyOps,), {"gemm": product(2.0)}))
    monkeypatch.setattr(FastOps, "gemm", product(1.0))
    products = [products_by("thinc"), products_by("torch")]
    found = core_ops._measure(products, [((2, 3), 1), ((4, 5), 7)])
    n = core_ops._ROWS
    of_step = [((n, 3), (3, 2)), ((n, 2), (2, 3)), ((2, n), (n, 3))]
    of_step += [((n, 5), (5, 4)), ((n, 4), (4, 5)), ((4, n), (n, 5))]
    turns = len(seen) // 12
    assert seen == of_step * 2 * turns and turns == 4
    first = 12 * (turns - 1)
    for one, begin, seconds in zip(products, (first + 1, first + 7), (2.0, 1.0)):
        assert found[one] == pytest.approx(sum(seconds * (1, 7)[i > 2] / (begin + i) for i in range(6)))


@pytest.mark.parametrize(
    ("paths", "said"),
    [(["scipy.libs/a", "numpy.libs/b"], " (openblas 2)"), (["scipy.libs/a"], " (openblas 1)"), ([], "")],
)
def test_ops_kernels_have_versions(monkeypatch, paths, said):
    """SciPy's BLAS is not NumPy's. What is loaded for other things is none."""
    infos = [{"user_api": "openmp", "filepath": "numpy.libs/o", "internal_api": "x"}]
    infos += [
        {"user_api": "blas", "filepath": path, "internal_api": "openblas", "version": f"{i}", "architecture": None}
        for i, path in enumerate(paths, start=1)
    ]
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: infos)
    assert products_by("numpy").kernel == f"NumPy {numpy.__version__}{said}"
    assert version("blis") in products_by("thinc").kernel and torch.__version__ in products_by("torch").kernel


def test_ops_choice_for_a_pipeline(nlp):
    """It draws no random numbers of the process's."""
    numpy.random.seed(0)
    choice = fastest(nlp)
    assert numpy.random.random() == numpy.random.RandomState(0).random_sample()
    assert choice.products in [products_by(library) for library in ("thinc", *LIBRARIES)]
    for node in nodes(nlp):
        node.ops = Mine()
    choice = fastest(nlp)
    assert choice.products.library == "thinc" and "NumpyOps" in choice.reason


# ---------------------------------------------------------------------- in own loops


def test_ops_fastest_ops(nlp, monkeypatch):
    """Predictions are the same to rounding."""
    docs = [nlp.make_doc("some words and others") for _ in range(3)]
    scores = [array.copy() for array in nlp.get_pipe("tagger").model.predict(docs)]
    monkeypatch.setattr("thinc_torchopt.core.ops.choose", lambda seconds: choose({p: _rank(p) for p in seconds}))
    with thinc_torchopt.fastest_ops(nlp) as choice:
        assert (choice.products.library, choice.products.threads) == ("numpy", 1) and type(nodes(nlp)[0].ops) is FastOps
        found = nlp.get_pipe("tagger").model.predict(docs)
    assert {type(node.ops) for node in nodes(nlp)} == {NumpyOps}
    for one, other in zip(found, scores):
        assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def _rank(products):
    return {"thinc": 3.0, "numpy": 1.0, "torch": 2.0}[products.library]


def test_ops_threads_are_limited(nlp):
    """NumPy's too, inside only."""
    from threadpoolctl import threadpool_info, threadpool_limits

    def threads():
        return {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with PipelineOps(nlp, products_by("numpy", 1)):
            assert threads() <= {1}
        with PipelineOps(nlp, products_by("torch", 2)):
            assert threads() <= {1}
        assert threads() == before


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", "all", None])
def test_ops_threads_that_can_not_be(nlp, threads):
    with pytest.raises(ConfigError, match="'threads' in fastest_ops"), thinc_torchopt.fastest_ops(nlp, threads=threads):
        pass
