"""What eligibility traces cost and what they are worth: docs/online-rnn.md shows the results.

    python benchmarks/online_rnn.py speed                  milliseconds for 64 steps, side by side
    python benchmarks/online_rnn.py stream                 the same, token by token
    python benchmarks/online_rnn.py grid                   for several sizes, also beside braintrace, if it is installed
    python benchmarks/online_rnn.py memory --plot out.svg  peak memory against the length of the sequence
    python benchmarks/online_rnn.py cosines                how near the gradient is to the exact one, by relation
    python benchmarks/online_rnn.py task adding            tasks that need memory: adding, copy
    python benchmarks/online_rnn.py tagger --data folder   spacy train on ud-english-ewt, with each kind of encoder
    python benchmarks/online_rnn.py words --data folder    words a second in training, side by side

All run on one thread. In `speed` the contestants take turns, and figures are medians. In `memory` each measurement is a
process of its own; what it needs before the sequence begins is taken off.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy
import torch
from thinc.api import Optimizer, fix_random_seed

from thinc_torchopt.addons.online.adjoint import adjoint_gradients
from thinc_torchopt.addons.online.cells import CELLS, Cell
from thinc_torchopt.addons.online.eligibility import ParamDimTraces
from thinc_torchopt.addons.online.gradients import Method, TracedGradients, eligibility_gradients, exact_gradients
from thinc_torchopt.addons.online.node import recurrent_nodes, weights_of
from thinc_torchopt.addons.online.online_rnn import OnlineRNN
from thinc_torchopt.addons.online.online_trainer import OnlineTrainer
from thinc_torchopt.addons.online.scan import scan

CONFIG = Path(__file__).parent.parent / "configs" / "online_rnn.cfg"


def weights_for(cell: Any, width: int, units: int) -> dict[str, torch.Tensor]:
    """As torch's modules begin."""
    shapes = {name: shape for relation in cell.relations for name, shape in relation.shapes(width, units).items()}
    return {name: torch.empty(*shape).uniform_(-1, 1) / units**0.5 for name, shape in shapes.items()}


# ---------------------------------------------------------------------- speed


def stream(args: argparse.Namespace) -> None:
    """A token of each stream at a time, through OnlineTrainer, with a loss at each."""
    n_steps, n_batch, units = args.steps, args.batch, args.units
    print(f"{n_steps} tokens of {n_batch} streams, {units} units and inputs; ms, and times a loop with BPTT")
    for name in args.cells:
        fix_random_seed(0)
        layer = OnlineRNN(units, units, cell=name)
        layer.initialize()
        X, dY = (numpy.random.normal(size=(n_steps, n_batch, units)).astype("f") for _ in range(2))
        trainers = {
            every: OnlineTrainer(layer, _Nothing(), batch_size=n_batch, update_every=every) for every in (1, 16)
        }
        contestants = {"a loop with BPTT": _contestants(name, n_steps, n_batch, units, vmap=False)["a loop with BPTT"]}
        for every, trainer in trainers.items():
            contestants[f"OnlineTrainer, update_every = {every}"] = partial(_read, trainer, X, dY)
        _take_turns(name, contestants, args.rounds)


class _Nothing(Optimizer):
    """Takes the gradients, and changes nothing: the time of an optimizer is not that of a layer."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def __call__(self, key: Any, weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> Any:
        gradient[...] = 0.0
        return weights, gradient


def _read(trainer: OnlineTrainer, X: Any, dY: Any) -> None:
    for x, dy in zip(X, dY):
        trainer.predict(x)
        trainer.update(x, dy)


def speed(args: argparse.Namespace) -> None:
    n_steps, n_batch, units = args.steps, args.batch, args.units
    print(f"{n_steps} steps, batch {n_batch}, {units} units and inputs; ms, and times the loop with BPTT")
    for name in args.cells:
        fix_random_seed(0)
        _take_turns(name, _contestants(name, n_steps, n_batch, units, vmap=args.vmap), args.rounds)


def _take_turns(name: str, contestants: dict[str, Callable[[], Any]], rounds: int) -> None:
    times: dict[str, list[float]] = {title: [] for title in contestants}
    for turn in range(rounds + 2):
        for title, work in contestants.items():
            start = time.perf_counter()
            work()
            if turn >= 2:
                times[title].append(1e3 * (time.perf_counter() - start))
    medians = {title: statistics.median(found) for title, found in times.items()}
    for title, ms in medians.items():
        print(f"  {name:10} {title:34} {ms:9.2f} {ms / medians['a loop with BPTT']:7.2f}")


def _contestants(name: str, n_steps: int, n_batch: int, units: int, *, vmap: bool) -> dict[str, Callable[[], Any]]:
    cell = CELLS[name]()
    weights = weights_for(cell, units, units)
    x, dh = torch.randn(n_steps, n_batch, units), torch.randn(n_steps, n_batch, units)
    zero = tuple(torch.zeros(n_batch, units) for _ in cell.states)
    active = [n_batch] * n_steps

    def online(*, reads: bool, cell: Any = cell) -> None:
        with torch.no_grad():
            traces = ParamDimTraces(cell, weights, n_batch)
            state = zero
            for t in range(n_steps):
                state = traces.update(x[t], state)
                if reads:
                    traces.solve(dh[t])

    def traced() -> None:
        with torch.no_grad():
            scan(cell, weights, x, zero, active)
            TracedGradients(cell, weights, n_batch, Method()).read(x, zero, dh, active)

    def adjoint() -> None:
        with torch.no_grad():
            _, _, before = scan(cell, weights, x, zero, active, keep=1)
            adjoint_gradients(cell, weights, x, before, dh, active)

    found: dict[str, Callable[[], Any]] = {
        "a loop with BPTT": lambda: exact_gradients(cell, weights, x, zero, dh, active),
        'layer, traces = "adjoint"': adjoint,
        'layer, traces = "forward"': traced,
        "online, step by step": lambda: online(reads=True),
        "online, without reading gradients": lambda: online(reads=False),
    }
    if name in (modules := {"torch-gru": torch.nn.GRU, "torch-lstm": torch.nn.LSTM, "rnn": torch.nn.RNN}):
        module = modules[name](units, units)
        found["torch.nn with BPTT"] = lambda: module(x)[0].backward(dh)
    if vmap:
        slow = type("WithoutClosedForm", (type(cell),), {"linearize": Cell.linearize})()
        found["online, by torch.func"] = lambda: online(reads=True, cell=slow)
    return found


# ---------------------------------------------------------------------- a grid of sizes

# braintrace's name of a cell with as many gates and states.
BRAINTRACE = {"torch-gru": "GRUCell", "gru": "GRUCell", "mgu": "MGUCell", "rnn": "ValinaRNNCell", "mingru": "MiniGRU"}
BRAINTRACE |= dict.fromkeys(("torch-lstm", "lstm"), "LSTMCell")


def grid(args: argparse.Namespace) -> None:
    """Times of all contestants for each cell and size, as lines of JSON. Sizes that are there already are skipped."""
    path = Path(args.output)
    done = {line.split(', "ms"')[0] for line in path.read_text().splitlines()} if path.exists() else set()
    for units, n_batch, n_steps, name in product((64, 256), (1, 16), (16, 64, 256, 1024), args.cells):
        size = {"cell": name, "steps": n_steps, "batch": n_batch, "units": units}
        if json.dumps(size)[:-1] in done:
            continue
        fix_random_seed(0)
        found = _medians(_on_grid(name, n_steps, n_batch, units), args.seconds)
        with path.open("a") as file:
            file.write(json.dumps({**size, "ms": found}) + "\n")
        print(size, found, flush=True)


def _on_grid(name: str, n_steps: int, n_batch: int, units: int) -> dict[str, Callable[[], Any]]:
    every = _contestants(name, n_steps, n_batch, units, vmap=False)
    titles = ("a loop with BPTT", 'layer, traces = "adjoint"', 'layer, traces = "forward"', "torch.nn with BPTT")
    found = {title: every[title] for title in titles if title in every}
    layer = OnlineRNN(units, units, cell=name)
    layer.initialize()
    X, dY = (numpy.random.normal(size=(n_steps, n_batch, units)).astype("f") for _ in range(2))
    trainer = OnlineTrainer(layer, _Nothing(), batch_size=n_batch, update_every=16)
    found["OnlineTrainer, update_every = 16"] = partial(_read, trainer, X, dY)
    if name in BRAINTRACE and find_spec("braintrace"):
        found["braintrace, D_RTRL"] = _by_braintrace(BRAINTRACE[name], n_steps, n_batch, units)
    return found


def _by_braintrace(cell: str, n_steps: int, n_batch: int, units: int) -> Callable[[], Any]:
    """Compiled by XLA, on one thread."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import brainstate
    import braintrace
    import jax

    x, dh = (brainstate.random.randn(n_steps, n_batch, units) for _ in range(2))
    model = getattr(braintrace.nn, cell)(units, units)
    learner = braintrace.compile(model, braintrace.D_RTRL, x[0], batch_size=n_batch)

    def loss(x: Any, dh: Any) -> Any:
        return (learner.update(x) * dh).sum()

    gradients = brainstate.transform.jit(lambda x, dh: learner.etrace_grad(x, dh, step_fn=loss))
    return lambda: jax.block_until_ready(gradients(x, dh))


def _medians(contestants: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Milliseconds: medians of rounds in which the contestants take turns, the first one not counted. Those that take
    longer than 5 seconds have one more turn only.

    seconds (float): For all, at least, and three rounds.
    """
    times: dict[str, list[float]] = {title: [] for title in contestants}
    end, turn = time.perf_counter() + seconds, 0
    while turn < 4 or time.perf_counter() < end:
        for title, work in contestants.items():
            if turn >= 2 and times[title][-1] > 5e3:
                continue
            start = time.perf_counter()
            work()
            times[title].append(1e3 * (time.perf_counter() - start))
        turn += 1
    return {title: round(statistics.median(found[1:]), 3) for title, found in times.items()}


# ---------------------------------------------------------------------- memory


# Title and settings of a layer.
MEMORY: dict[str, tuple[str, dict[str, Any]]] = {
    "bptt": ("GRU, BPTT", {"learning": "bptt"}),
    "forward": ('GRU, D-RTRL, traces = "forward"', {"traces": "forward"}),
    "adjoint": ('GRU, D-RTRL, traces = "adjoint"', {"traces": "adjoint"}),
    "exact": ("MinGRU, BPTT", {"cell": "mingru", "learning": "bptt"}),
}


def memory(args: argparse.Namespace) -> None:
    found: dict[str, list[float]] = {}
    lengths = [16 * 4**i for i in range(6)]
    for how in MEMORY:
        for n_steps in lengths:
            command = [sys.executable, __file__, "peak", how, str(n_steps)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found.setdefault(how, []).append(float(out))
    print("MiB beside input, output and their gradients; T =", *lengths)
    for how, values in found.items():
        print(f"  {how:8}", *(f"{value:8.1f}" for value in values))
    if args.plot:
        _plot(lengths, found, args.plot)


def peak(args: argparse.Namespace) -> None:
    """In a process of its own: the peak of a forward and a backward pass of the layer, over what was there before, less
    its output and the gradient of its input, which every layer makes.
    """
    n_batch, units = 16, 64
    layer = OnlineRNN(units, units, **MEMORY[args.how][1])
    layer.initialize()

    def work(n_steps: int) -> float:
        X, dY = (numpy.ones((n_steps, n_batch, units), dtype="f") for _ in range(2))
        base = _peak_mib(reset=True)
        Y, backprop = layer(X, is_train=True)
        dX = backprop(dY)
        return _peak_mib() - base - (Y.nbytes + dX.nbytes) / 2**20

    work(16)  # what torch loads when it is first used
    print(work(args.steps))


def _peak_mib(*, reset: bool = False) -> float:
    """Of this process. On Linux the peak can be set back to what is used now."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return float(line.split()[1]) / 1024


def _plot(lengths: list[int], found: dict[str, list[float]], path: str) -> None:
    from matplotlib.figure import Figure

    from thinc_torchopt.addons.report.style import save, style

    with style(**{"svg.hashsalt": "online_rnn"}):
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        axes = figure.subplots()
        for (how, values), marker in zip(found.items(), "o^sD"):
            axes.plot(lengths, values, marker=marker, label=MEMORY[how][0])
        axes.set(xscale="log", xlabel="steps", ylabel="MiB")
        axes.set_title("Peak memory beside input and output: 64 units, batch 16", fontsize=10)
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axes.legend()
        save(figure, Path(path))


# ---------------------------------------------------------------------- the gradient


def cosines(args: argparse.Namespace) -> None:
    """Of random sequences and weights as torch's modules begin, or as they are after training: these times `scale`."""
    units, n_batch = 64, 16
    for name in CELLS:
        for scale in (1.0, 3.0):
            fix_random_seed(0)
            torch.manual_seed(0)
            weights = {key: weight * scale for key, weight in weights_for(CELLS[name](), units, units).items()}
            x, dh = torch.randn(args.steps, n_batch, units), torch.randn(args.steps, n_batch, units)
            found, _ = eligibility_gradients(name, weights, x, dh)
            exact, _ = eligibility_gradients(name, weights, x, dh, vjp_method="multi-step", window=args.steps)
            parts = {key: torch.cosine_similarity(found[key].flatten(), exact[key].flatten(), dim=0) for key in found}
            shown = {key.removesuffix(".weight"): f"{value:.2f}" for key, value in parts.items() if "bias" not in key}
            print(f"{name:10} weights x {scale:g}  ", *(f"{key} {value}" for key, value in shown.items()))


# ---------------------------------------------------------------------- a task that needs memory


@dataclass
class Arm:
    """A cell, and how its gradient is computed. features (int): Fixed random units (relu) between input and cell."""

    cell: str
    way: str
    features: int = 0


MEMORY_ARMS = {
    "GRU, BPTT": Arm("torch-gru", "bptt"),
    "GRU, BPTT, cut": Arm("torch-gru", "truncated"),
    "GRU, D-RTRL": Arm("torch-gru", "d-rtrl"),
    "GRU, D-RTRL, windows": Arm("torch-gru", "multi-step"),
    "LSTM, BPTT": Arm("torch-lstm", "bptt"),
    "LSTM, D-RTRL": Arm("torch-lstm", "d-rtrl"),
    "MinGRU, exact": Arm("mingru", "d-rtrl"),
    "MinGRU on fixed features, exact": Arm("mingru", "d-rtrl", features=32),
}


def memory_task(args: argparse.Namespace) -> None:
    """adding: the second row of the input marks two numbers of the first; their sum is the target. Mean squared error;
    always 1: 0.167. copy: ten symbols of eight, `length` blanks, then the symbols again. Accuracy; by chance: 0.125.
    """
    print(
        f"{args.task}, {args.length} steps, {args.units} units, rate {args.learn_rate}: mean (lowest to highest) at the"
    )
    print(f"end of {args.updates} updates over {args.seeds} seeds; CPU ms an update; at quarters of the updates")
    for title, arm in MEMORY_ARMS.items():
        if args.only and args.only not in title:
            continue
        began = time.process_time()
        curves = [_curve(arm, args, seed) for seed in range(args.seeds)]
        ms = 1e3 * (time.process_time() - began) / args.seeds / args.updates
        ends = [curve[-1] for curve in curves]
        means = " ".join(f"{statistics.mean(column):.4f}" for column in zip(*curves))
        spread = f"({min(ends):.4f} to {max(ends):.4f})"
        print(f"{title:34} {statistics.mean(ends):.4f} {spread} {ms:7.1f} ms   {means}", flush=True)


def _curve(arm: Arm, args: argparse.Namespace, seed: int) -> list[float]:
    fix_random_seed(seed)
    torch.manual_seed(seed)
    task = {"adding": _adding_batch, "copy": _copy_batch}[args.task]
    rng = torch.Generator().manual_seed(1000 + seed)
    x, _ = task(args, torch.Generator().manual_seed(0))
    below = torch.randn(x.shape[2] + 1, arm.features)
    layer = OnlineRNN(args.units, arm.features or x.shape[2], cell=arm.cell, chrono=len(x))
    layer.initialize()
    [node] = recurrent_nodes(layer)
    cell = CELLS[arm.cell]()
    weights = {name: weight.clone() for name, weight in weights_of(node, cell).items()}
    head = torch.zeros(args.units + 1, 1 if args.task == "adding" else 8)
    params = [*weights.values(), head]
    optimizer = torch.optim.Adam(params, lr=args.learn_rate)
    scores, curve = [], []
    for step in range(1, args.updates + 1):
        x, target = task(args, rng)
        if arm.features:
            x = torch.relu(x @ below[:-1] + below[-1])
        with torch.no_grad():
            zero = tuple(torch.zeros(args.batch, args.units) for _ in cell.states)
            outputs, _, _ = scan(cell, weights, x, zero, [args.batch] * len(x))
        last = outputs[-len(target) :].requires_grad_()
        head.requires_grad_()
        guess = last @ head[:-1] + head[-1]
        if args.task == "adding":
            loss = ((guess[..., 0] - target) ** 2).mean()
            scores.append(loss.item())
        else:
            loss = torch.nn.functional.cross_entropy(guess.reshape(-1, 8), target.reshape(-1))
            scores.append(float((guess.argmax(-1) == target).float().mean()))
        of_last, head.grad = torch.autograd.grad(loss, [last, head])
        dh = torch.zeros_like(outputs)
        dh[-len(target) :] = of_last
        for name, grad in _grads(arm, cell, weights, x, dh, outputs.detach(), args.window).items():
            weights[name].grad = grad
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        if step % (args.updates // 4) == 0:
            curve.append(statistics.mean(scores[-50:]))
    return curve


def _grads(arm: Arm, cell: Any, weights: Any, x: Any, dh: Any, outputs: Any, window: int) -> Any:
    if arm.way == "d-rtrl":
        return eligibility_gradients(cell, weights, x, dh, traces="adjoint")[0]
    if arm.way == "multi-step":
        return eligibility_gradients(cell, weights, x, dh, vjp_method="multi-step", window=window)[0]
    cut = len(x) - window if arm.way == "truncated" else 0  # the loss is at the end: all before the window is cut
    state = tuple(outputs[cut - 1] if cut else torch.zeros_like(outputs[0]) for _ in cell.states)
    return exact_gradients(cell, weights, x[cut:], state, dh[cut:], [x.shape[1]] * (len(x) - cut))[0]


def _adding_batch(args: argparse.Namespace, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.rand(args.length, args.batch, generator=rng)
    marks = torch.zeros(args.length, args.batch)
    half = args.length // 2
    for start in (0, half):
        rows = torch.randint(start, start + half, (args.batch,), generator=rng)
        marks[rows, torch.arange(args.batch)] = 1.0
    return torch.stack((values, marks), -1), (values * marks).sum(0)[None]


def _copy_batch(args: argparse.Namespace, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    symbols = torch.randint(0, 8, (10, args.batch), generator=rng)
    rows = torch.full((20 + args.length, args.batch), 8)
    rows[:10], rows[-10:] = symbols, 9
    return torch.nn.functional.one_hot(rows, 10).float(), symbols


# ---------------------------------------------------------------------- a tagger


# Changes of the block of OnlineRNNEncoder, or another block.
ARMS: dict[str, dict[str, Any]] = {
    "CNN (MaxoutWindowEncoder)": {
        "@architectures": "spacy.MaxoutWindowEncoder.v2",
        "window_size": 1,
        "maxout_pieces": 3,
        "width": 96,
        "depth": 4,
    },
    "torch's BiLSTM": {"@architectures": "spacy.TorchBiLSTMEncoder.v1", "width": 96, "depth": 1, "dropout": 0.0},
    "both directions, d-rtrl": {"learning": "d-rtrl"},
    "both directions, bptt": {"learning": "bptt"},
    "forwards, d-rtrl": {"learning": "d-rtrl", "bidirectional": False},
    "forwards, bptt": {"learning": "bptt", "bidirectional": False},
    "MinGRU, both directions, bptt": {"cell": "mingru", "learning": "bptt"},
    "MinGRU, two layers, both, bptt": {"cell": "mingru", "learning": "bptt", "depth": 2},
    "two layers, both, d-rtrl": {"learning": "d-rtrl", "depth": 2},
    "two layers, both, bptt": {"learning": "bptt", "depth": 2},
}


def tagger(args: argparse.Namespace) -> None:
    for title, changes in ARMS.items():
        if not title.startswith(args.only):
            continue
        runs = [_train_tagger(changes, args, seed) for seed in range(args.seeds)]
        accuracies = [run["accuracy"] for run in runs]
        spread = f"({min(accuracies):.2%} to {max(accuracies):.2%})"
        print(f"{title:28} tag_acc {statistics.mean(accuracies):.2%} {spread}", flush=True)
        for step, found in runs[0]["cosines"].items():
            print(f"    step {step:4}: cosine to the exact gradient", json.dumps(found), flush=True)


def words(args: argparse.Namespace) -> None:
    """The contestants take turns, each with the same batch; of the whole training, and of the encoder alone."""
    from spacy.tokens import Doc
    from spacy.training import Corpus, Example
    from spacy.training.batchers import minibatch_by_words
    from spacy.training.initialize import init_nlp

    pipelines = {}
    for title, changes in ARMS.items():
        config = _config(changes, args)
        pipelines[title] = init_nlp(config.interpolate())
    times: dict[str, list[float]] = {title: [] for title in ARMS}
    alone: dict[str, list[float]] = {title: [] for title in ARMS}
    examples: list[Any] = list(Corpus(config["paths"]["train"], limit=300)(pipelines["forwards, bptt"]))
    if args.sentences:
        docs = [sentence.as_doc() for example in examples for sentence in example.reference.sents]
        random.Random(0).shuffle(docs)
        examples = [
            Example(Doc(doc.vocab, [t.text for t in doc], [bool(t.whitespace_) for t in doc]), doc) for doc in docs
        ]
    batches = minibatch_by_words(examples, size=1000, tolerance=0.2, discard_oversize=False)
    for i, batch in zip(range(args.rounds + 2), batches):
        n_words = sum(len(example) for example in batch)
        vectors = [numpy.random.normal(size=(len(example), 96)).astype("f") for example in batch]
        for title, nlp in pipelines.items():
            encoder = nlp.get_pipe("tagger").model.get_ref("tok2vec").layers[-1]
            start = time.perf_counter()
            nlp.update(batch, drop=0.1, sgd=nlp._optimizer)
            between = time.perf_counter()
            outputs, backprop = encoder.begin_update(vectors)
            backprop(outputs)
            end = time.perf_counter()
            for node in encoder.walk():  # these gradients are not for the optimizer
                for name in node.param_names:
                    if node.has_grad(name):
                        node.get_grad(name)[...] = 0.0
            if i >= 2:
                times[title].append(n_words / (between - start))
                alone[title].append(1e3 * (end - between))
    for title, found in times.items():
        ms = statistics.median(alone[title])
        print(f"{title:28} {statistics.median(found):8,.0f} words/s in training, encoder alone {ms:6.1f} ms")


def _config(changes: dict[str, Any], args: argparse.Namespace) -> Any:
    from spacy.util import load_config

    config = load_config(CONFIG)
    encode = config["components"]["tagger"]["model"]["tok2vec"]["encode"]
    if "@architectures" in changes:
        encode.clear()
    encode |= changes
    config["paths"] = {name: str(Path(args.data) / f"ud-english-ewt-{name}.spacy") for name in ("train", "dev")}
    return config


def _train_tagger(changes: dict[str, Any], args: argparse.Namespace, seed: int) -> dict[str, Any]:
    import tempfile

    import spacy
    from spacy.cli.train import train
    from spacy.training import Corpus

    config = _config(changes, args)
    config["training"] |= {"max_steps": args.updates, "before_update": {"@callbacks": "online-rnn.Watch.v1"}}
    config["training"]["seed"] = config["system"]["seed"] = seed
    cosines: dict[int, dict[str, float]] = {}

    @spacy.registry.callbacks("online-rnn.Watch.v1")
    def watch() -> Callable[[Any, dict[str, Any]], None]:
        def before_update(nlp: Any, info: dict[str, Any]) -> None:
            step = info["step"]
            if changes.get("learning") == "d-rtrl" and step in args.marks:
                docs = list(Corpus(config["paths"]["dev"])(nlp))[:20]
                cosines[step] = _cosines(nlp.get_pipe("tagger"), docs)

        return before_update

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.cfg"
        config.to_disk(path)
        train(path, Path(folder) / "out")
        scores = spacy.load(Path(folder) / "out" / "model-last").meta["performance"]
    return {"accuracy": scores["tag_acc"], "cosines": cosines}


def _cosines(pipe: Any, examples: list[Any]) -> dict[str, float]:
    """Of the gradient of this model by traces to that by BPTT, by what it is of."""
    from thinc.api import set_dropout_rate

    from thinc_torchopt.addons.online.node import SETTINGS, recurrent_nodes

    found: dict[str, dict[str, torch.Tensor]] = {}
    set_dropout_rate(pipe.model, 0.0)
    for learning in ("d-rtrl", "bptt"):
        model = pipe.model.copy()
        for node in recurrent_nodes(model):
            node.attrs[SETTINGS] = replace(node.attrs[SETTINGS], learning=learning)
        scores, backprop = model.begin_update([example.predicted for example in examples])
        backprop(pipe.get_loss(examples, scores)[1])
        parts: dict[str, list[torch.Tensor]] = {}
        for node in model.walk():
            for name in node.param_names:
                recurrent = SETTINGS in node.attrs
                part = ("recurrent" if name[0] == "U" else "input") if recurrent else "embed"
                if node.has_grad(name) and node.name != "softmax":
                    parts.setdefault(part, []).append(torch.from_numpy(node.get_grad(name)).flatten())
        found[learning] = {part: torch.cat(grads) for part, grads in parts.items()}
    one, other = found.values()
    return {part: round(float(torch.cosine_similarity(one[part], other[part], dim=0)), 3) for part in sorted(one)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("speed")
    one.add_argument("--cells", nargs="+", default=["torch-gru", "torch-lstm", "mingru", "gru", "rnn"])
    one.add_argument("--steps", type=int, default=64)
    one.add_argument("--batch", type=int, default=16)
    one.add_argument("--units", type=int, default=64)
    one.add_argument("--rounds", type=int, default=20)
    one.add_argument("--vmap", action="store_true", help="Also by torch.func, which takes a while.")
    one.set_defaults(run=speed)
    one = commands.add_parser("stream")
    one.add_argument("--cells", nargs="+", default=["torch-gru", "torch-lstm", "mingru", "rnn"])
    one.add_argument("--steps", type=int, default=64)
    one.add_argument("--batch", type=int, default=16)
    one.add_argument("--units", type=int, default=64)
    one.add_argument("--rounds", type=int, default=20)
    one.set_defaults(run=stream)
    one = commands.add_parser("grid")
    one.add_argument("--cells", nargs="+", default=sorted(CELLS))
    one.add_argument("--seconds", type=float, default=2.0, help="For each size and cell.")
    one.add_argument("--output", default=str(Path(__file__).with_name("online_rnn.jsonl")))
    one.set_defaults(run=grid)
    one = commands.add_parser("memory")
    one.add_argument("--plot", help="Draw a picture: an .svg or .png file.")
    one.set_defaults(run=memory)
    one = commands.add_parser("peak")
    one.add_argument("how", choices=sorted(MEMORY))
    one.add_argument("steps", type=int)
    one.set_defaults(run=peak)
    one = commands.add_parser("cosines")
    one.add_argument("--steps", type=int, default=64)
    one.set_defaults(run=cosines)
    one = commands.add_parser("task")
    one.add_argument("task", choices=("adding", "copy"))
    one.add_argument("--only", help="Part of a title.")
    one.add_argument("--length", type=int, default=100)
    one.add_argument("--window", type=int, default=10)
    one.add_argument("--units", type=int, default=32)
    one.add_argument("--batch", type=int, default=20)
    one.add_argument("--updates", type=int, default=800)
    one.add_argument("--seeds", type=int, default=5)
    one.add_argument("--learn-rate", type=float, default=0.01)
    one.set_defaults(run=memory_task)
    one = commands.add_parser("tagger")
    one.add_argument("--data", required=True, help="A folder with ud-english-ewt-train.spacy and -dev.spacy.")
    one.add_argument("--updates", type=int, default=600)
    one.add_argument("--seeds", type=int, default=1)
    one.add_argument("--only", default="", help="The beginning of a title.")
    one.add_argument("--marks", type=int, nargs="*", default=[1, 50, 100, 300, 599], help="Steps with a cosine.")
    one.set_defaults(run=tagger)
    one = commands.add_parser("words")
    one.add_argument("--data", required=True, help="As for tagger.")
    one.add_argument("--rounds", type=int, default=20)
    one.add_argument("--sentences", action="store_true", help="Of whole documents otherwise.")
    one.set_defaults(run=words)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.run(args)


if __name__ == "__main__":
    main()
