"""Trainings with the code of another commit and with this one, whose weights must be the same to the last bit.

    git worktree add /tmp/before COMMIT
    python -m tests.reference_runs /tmp/before [cnn loop modular ranks minilm]

Each training runs in a process of its own, on one thread, once with each tree first on the path; with the data of
`../shared/data`. The digests are those of all files of the model, and of what the optimizer keeps. What a tree can't
train, for lack of spacy-transformers for example, is told and left out.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
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
    spacy_train(ROOT / "configs" / config, folder / "model", overrides=corpus | steps | overrides)


def cnn(folder: Path) -> None:
    train("checkpoint.cfg", folder, training__optimizer__checkpoint__path=str(folder / "state"))


def modular(folder: Path) -> None:
    train("modular.cfg", folder)


def minilm(folder: Path) -> None:
    train("transformer.cfg", folder, training__max_steps=6, training__eval_frequency=3)


def ranks(folder: Path) -> None:
    paths = ["--paths.train", DATA / "ud-english-ewt-dev.spacy", "--paths.dev", DATA / "ud-english-ewt-test.spacy"]
    steps = ["--training.max_steps", 12, "--training.eval_frequency", 6]
    command = ["torchopt", "train", ROOT / "configs" / "distributed.cfg", "--output", folder / "model", *paths, *steps]
    arguments = list(map(str, [*command, "--nproc-per-node", 2]))
    subprocess.run([sys.executable, "-m", "spacy", *arguments], check=True)


def loop(folder: Path) -> None:
    """A loop of `nlp.update`, in which each component is updated by itself."""
    import spacy
    from spacy.training import Corpus

    from thinc_torchopt import TorchOptimizer
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
    for i in range(0, len(examples), 10):
        nlp.update(examples[i : i + 10], sgd=optimizer, drop=0.1)
        optimizer.step_schedules()
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

    content = hashlib.sha256()
    with safe_open(path, "pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name)
            content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor.reshape(-1).double().numpy().tobytes())
    return content.hexdigest()[:16]


def run_with(tree: Path, name: str, folder: Path) -> dict[str, str] | None:
    code = f"import sys; from pathlib import Path; sys.path.append({str(ROOT)!r}); "
    code += f"import importlib.util as u; s = u.spec_from_file_location('runs', {str(Path(__file__))!r}); "
    code += f"m = u.module_from_spec(s); s.loader.exec_module(m); m.RUNS[{name!r}](Path({str(folder)!r}))"
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        print(f"{name}, {tree}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
        return None
    return digests(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="A worktree of another commit.")
    parser.add_argument("runs", nargs="*", default=list(RUNS), help=f"Of {', '.join(RUNS)}. Default: all.")
    args = parser.parse_args()
    differs = False
    for name in args.runs:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            before, now = (run_with(tree, name, Path(to)) for tree, to in ((args.before.resolve(), one), (ROOT, two)))
        if not before or not now:
            continue
        different = sorted(path for path in before.keys() & now.keys() if before[path] != now[path])
        only = sorted(before.keys() ^ now.keys())
        differs |= bool(different)
        print(f"{name}: {len(before.keys() & now.keys()) - len(different)} files are the same", end="")
        print(f", these differ: {different}" if different else "", f"; in one only: {only}" if only else "")
    sys.exit(differs)


if __name__ == "__main__":
    main()
