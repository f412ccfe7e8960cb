"""What the block [training.optimizer.fine_tuning] saves: memory and time of a transformer with NER, and its F-score.

    python benchmarks/fine_tuning.py batch --transformer path/to/all-MiniLM-L6-v2 [--words 2500] [--steps 3]
    python benchmarks/fine_tuning.py food --transformer path/to/all-MiniLM-L6-v2 [--seeds 0 1 2] [--steps 300]

`batch`: updates of one batch, 15 short texts and a long one of docs-issues; words that begin with a capital are the
entities. `food`: whole trainings on the corpus food, with the F-score on its development data, of the run and of the
saved model loaded again. Each run is a process of its own, with one thread, and the rows take turns. Memory is the
peak of resident memory in updates less that before the first. A run that takes more than --most GB is ended, and told
as such. Rows with settings that this version does not have are left out.
"""

import argparse
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

import machine

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
WINDOWS: dict[str, Any] = {"@misc": "thinc-torchopt.FineTuning.v1", "window_pieces": 128, "stride_pieces": 96}
ROWS: dict[str, dict[str, Any] | None] = {
    "template": None,
    "windows 128/128": WINDOWS | {"stride_pieces": 128},
    "windows 128/96": WINDOWS,
    "checkpointing": {"@misc": WINDOWS["@misc"], "window_pieces": None, "gradient_checkpointing": True},
    "frozen layers": {"@misc": WINDOWS["@misc"], "window_pieces": None, "freeze_layers": 3},
    "windows, checkpointing": WINDOWS | {"gradient_checkpointing": True},
    "windows, frozen layers": WINDOWS | {"freeze_layers": 3},
    "all together": WINDOWS | {"gradient_checkpointing": True, "freeze_layers": 3},
}


# ---------------------------------------------------------------------- in the process of a run


def memory(name: str) -> int:
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


def run(part: str, row: str, transformer: str, seed: int, steps: int, words: int) -> dict[str, Any]:
    """Train once, in this process."""
    import spacy
    from confection import Config
    from spacy.training.initialize import init_nlp
    from spacy.training.loop import create_evaluation_callback, train
    from spacy.util import registry, resolve_dot_names

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
    config["system"] |= {"seed": seed, "gpu_allocator": None}
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
    seen: dict[str, Any] = {"cpu": 0.0, "steps": 0, "words": 0}

    @registry.callbacks("fine-tuning-benchmark.v1")
    def before_update() -> Any:
        def note(nlp: Any, info: dict[str, Any]) -> None:
            if "before" not in seen:
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
                seen["before"] = memory("VmRSS")
            elif (info["step"] - 1) % training["eval_frequency"] or part == "batch":  # no evaluation in between
                seen["cpu"] += time.process_time() - seen["began"]
                seen["steps"] += 1
            seen["began"] = time.process_time()
            seen["peak"] = memory("VmHWM") - seen["before"]

        return note

    training["before_update"] = {"@callbacks": "fine-tuning-benchmark.v1"}
    nlp = init_nlp(config)
    with open(os.devnull, "w") as out:
        train(nlp, folder / "out", stdout=out)
    found: dict[str, Any] = {"row": row, "peak": seen["peak"], "cpu": seen["cpu"] / max(1, seen["steps"])}
    if part == "batch":
        return found | {"words": batch}
    spacy_config = nlp.config.interpolate()
    [dev] = resolve_dot_names(spacy_config, [spacy_config["training"]["dev_corpus"]])
    best = spacy.load(folder / "out" / "model-best")
    _, scores = create_evaluation_callback(best, dev, {"ents_f": 1.0})()
    return found | {"seed": seed, "in training": best.meta["performance"]["ents_f"], "loaded": scores["ents_f"]}


# ---------------------------------------------------------------------- all runs


def start(args: argparse.Namespace, row: str, seed: int) -> dict[str, Any] | None:
    """Run in a process of its own. RETURNS (dict | None): None: the row can't be run by this version."""
    settings = [args.part, row, args.transformer, str(seed), str(args.steps), str(args.words)]
    command = [sys.executable, __file__, "--run", json.dumps(settings)]
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
            print(f"{row}: {errors.read().strip().splitlines()[-1][:300]}", file=sys.stderr)
            return None
        found: dict[str, Any] = json.loads(out.read().strip().splitlines()[-1])
        return found


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        part, row, transformer, seed, steps, words = json.loads(sys.argv[2])
        print(json.dumps(run(part, row, transformer, int(seed), int(steps), int(words))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["batch", "food"])
    parser.add_argument("--transformer", required=True, help="folder of the encoder")
    parser.add_argument("--rows", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--words", type=int, default=2500, help="of the long text in `batch`")
    parser.add_argument("--steps", type=int, default=None, help="of a run: 3 in `batch`, 300 in `food`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--most", type=float, default=12.0, help="GB of resident memory")
    parser.add_argument("--json")
    args = parser.parse_args()
    args.steps = args.steps or (3 if args.part == "batch" else 300)
    rows = args.rows.split(";") if args.rows else list(ROWS)
    runs: list[dict[str, Any]] = []
    for seed in args.seeds:
        for row in rows:
            found = start(args, row, seed)
            if found is not None:
                runs.append(found)
                print(json.dumps(found), file=sys.stderr, flush=True)
    print(table(runs, rows, args))
    if args.json:
        machine.write(args.json, f"fine_tuning {args.part}", "cpu", {"runs": runs})


def table(runs: list[dict[str, Any]], rows: list[str], args: argparse.Namespace) -> str:
    if args.part == "batch":
        lines = ["|  | memory, GB | CPU seconds an update | CPU seconds per 1,000 words |", "| --- | --- | --- | --- |"]
    else:
        lines = [
            "|  | memory, GB | CPU seconds a step | F in training | F of the loaded model |",
            "| --- |" + " --- |" * 4,
        ]
    for row in rows:
        own = [one for one in runs if one["row"] == row]
        if not own:
            continue
        if any("ended" in one for one in own):
            lines.append(f"| {row} | more than {args.most:g}: ended" + " |" * (lines[0].count("|") - 2))
            continue
        cells = [f"{max(one['peak'] for one in own) / 1e9:.2f}", f"{statistics.median(one['cpu'] for one in own):.2f}"]
        if args.part == "batch":
            cells.append(f"{statistics.median(1000 * one['cpu'] / one['words'] for one in own):.2f}")
        else:
            cells += [", ".join(f"{100 * one[key]:.1f}" for one in own) for key in ("in training", "loaded")]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
