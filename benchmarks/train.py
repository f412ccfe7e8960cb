"""Words a second of whole trainings, side by side: spaCy with thinc's Adam, with ours, with ours in bf16, and a Hugging
Face Trainer.

    python benchmarks/train.py [--device cuda] [--quick] [--json out.json]

A tagger on a CNN, and a tagger or an entity recognizer on BERT base with random weights, on texts of random words: 32
texts of 40 to 90 words a batch. All train on the same batches, without dropout of spaCy's, with AdamW and gradients
clipped; `sorted`: the same texts in batches of similar lengths, spaCy's by
`thinc-torchopt.batch_by_padded_pieces.v1`. spaCy's loop is timed in its second epoch. The Trainer has a linear layer
for each word's first piece, as the tagger has, fused AdamW, and the texts as word pieces, made before. Contestants take
turns; figures are medians of the turns. What can't run here is left out, with the reason.

`--quick`: four batches, and a small BERT.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example, loop
from spacy.util import minibatch
from thinc.api import Adam, fix_random_seed, require_gpu, set_gpu_allocator

N_TAGS = 17
N_WORDS = 2000
WARM_UP = 2
Pass = Callable[[], float]  # trains on all batches, and tells the words a second
PARSER = {"extra_state_tokens": False, "hidden_width": 64, "maxout_pieces": 2, "use_upper": False}
OURS = {
    "@optimizers": "thinc-torchopt.TorchOptimizer.v1",
    "learn_rate": 1e-4,
    "grad_clip": 1.0,
    "algorithm": {"@torch_optimizers": "torch.AdamW.v1", "weight_decay": 0.01},
}


def texts(n_batches: int, size: int) -> list[list[list[int]]]:
    """Batches of texts: numbers of words."""
    rng = random.Random(0)
    rows = [[rng.randrange(N_WORDS) for _ in range(rng.randint(40, 90))] for _ in range(n_batches * size)]
    return [list(batch) for batch in minibatch(rows, size)]


def bert_in(folder: Path, *, quick: bool) -> Path:
    """A BERT with random weights on disk. Each word is one piece."""
    import transformers

    config = transformers.BertConfig(
        **({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2} if quick else {})
    )
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(N_WORDS))]
    words += [f"[unused{i}]" for i in range(config.vocab_size - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def in_order(batches: list[list[list[int]]]) -> list[list[list[int]]]:
    """The same texts in batches of similar lengths, which come in any order."""
    rows = sorted((text for batch in batches for text in batch), key=len)
    found = [list(batch) for batch in minibatch(rows, len(batches[0]))]
    random.Random(1).shuffle(found)
    return found


def pipeline(batches: list[list[list[int]]], bert: Path | None, component: str) -> tuple[Language, list[list[Example]]]:
    """A component on a CNN or on a transformer, and its examples."""
    fix_random_seed(0)
    nlp = spacy.blank("en")
    if bert is None:
        listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96, "upstream": "*"}
        nlp.add_pipe("tok2vec")
    else:
        listener = {
            "@architectures": "spacy-transformers.TransformerListener.v1",
            "grad_factor": 1.0,
            "pooling": {"@layers": "reduce_first.v1"},
        }
        model = {
            "@architectures": "spacy-transformers.TransformerModel.v3",
            "name": str(bert),
            "get_spans": {"@span_getters": "spacy-transformers.doc_spans.v1"},
        }
        nlp.add_pipe("transformer", config={"model": model})
    model = {"@architectures": "spacy.Tagger.v2"}
    if component == "ner":
        model = {"@architectures": "spacy.TransitionBasedParser.v2", "state_type": "ner", **PARSER}
    nlp.add_pipe(component, config={"model": {**model, "tok2vec": listener}})

    def example(text: list[int]) -> Example:
        truth = {
            "tags": [f"T{i % N_TAGS}" for i in text],
            "entities": [f"U-T{i % 4}" if i < 200 else "O" for i in text],
        }
        return Example.from_dict(Doc(nlp.vocab, words=[f"w{i}" for i in text]), truth)

    examples = [[example(text) for text in batch] for batch in batches]
    nlp.initialize(lambda: [example for batch in examples for example in batch])
    return nlp, examples


def reason(error: Exception) -> str:
    """Why a contestant does not run, in a line."""
    return f"left out: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def spacy_pass(
    batches: list[list[list[int]]], bert: Path | None, optimizer: Any, device: str, *, component: str, in_pieces: bool
) -> Pass:
    """Training by spaCy's loop, or ours. in_pieces (bool): In batches by wordpieces."""
    nlp, examples = pipeline(batches, bert, component)
    if in_pieces:
        size = max(map(len, batches[0])) * len(batches[0])
        batcher = spacy.registry.batchers.get("thinc-torchopt.batch_by_padded_pieces.v1")(size=size)
        examples = list(batcher.for_pipeline(nlp)(example for batch in examples for example in batch))
    settings = {"eval_frequency": 10**9, "accumulate_gradient": 1, "patience": 0, "max_steps": 0, "exclude": []}
    settings |= {"dropout": 0.0, "annotating_components": [], "before_update": None}

    def run() -> float:
        stream = ((epoch, batch) for epoch in range(2) for batch in examples)
        steps = loop.train_while_improving(nlp, optimizer, stream, evaluate=lambda: (0.0, {"score": 0.0}), **settings)
        for step, _ in enumerate(steps, 1):
            if step == len(examples):
                wait_for(device)
                start = time.perf_counter()
        wait_for(device)
        return sum(len(text) for batch in batches for text in batch) / (time.perf_counter() - start)

    return run


def trainer_pass(batches: list[list[list[int]]], bert: Path, folder: Path, device: str, *, bf16: bool) -> Pass:
    """The same training by a Hugging Face Trainer."""
    import transformers

    model = transformers.BertForTokenClassification.from_pretrained(bert, num_labels=N_TAGS)
    encoded = []
    for batch in batches:
        length = max(map(len, batch)) + 2
        rows = [[2, *(5 + i for i in text), 3] for text in batch]
        tags = [[-100, *(i % N_TAGS for i in text), -100] for text in batch]
        encoded.append(
            {
                "input_ids": torch.tensor([row + [0] * (length - len(row)) for row in rows]),
                "attention_mask": torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows]),
                "labels": torch.tensor([row + [-100] * (length - len(row)) for row in tags]),
            }
        )

    class Clock(transformers.TrainerCallback):
        """Tells how long the steps after the first ones took."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (WARM_UP, WARM_UP + len(batches)):
                wait_for(device)
                self.last = time.perf_counter()
                if state.global_step == WARM_UP:
                    self.first = self.last

    def run() -> float:
        clock = Clock()
        args = transformers.TrainingArguments(
            output_dir=str(folder / "trainer"),
            per_device_train_batch_size=1,  # one of our batches
            max_steps=WARM_UP + len(batches),
            learning_rate=1e-4,
            weight_decay=0.01,
            max_grad_norm=1.0,
            optim="adamw_torch_fused",
            bf16=bf16,
            use_cpu=device == "cpu",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        args._n_gpu = min(args.n_gpu, 1)  # with several GPUs it would give each a part of a batch
        transformers.Trainer(
            model=model,
            args=args,
            train_dataset=encoded[:WARM_UP] + encoded,
            data_collator=lambda rows: rows[0],
            callbacks=[clock],
        ).train()
        return sum(len(text) for batch in batches for text in batch) / (clock.last - clock.first)

    return run


def contestants_for(
    batches: list[list[list[int]]], folder: Path, device: str, *, quick: bool
) -> dict[str, Callable[[], Pass]]:
    def ours(bert: Path | None, component: str = "tagger", in_pieces: bool = False, **settings: Any) -> Pass:
        optimizer = spacy.registry.resolve({"optimizer": OURS | settings})["optimizer"]
        return spacy_pass(batches, bert, optimizer, device, component=component, in_pieces=in_pieces)

    def with_bert(build: Callable[..., Pass], **settings: Any) -> Pass:
        return build(bert_in(folder, quick=quick), **settings)

    def theirs(bert: Path | None, component: str = "tagger") -> Pass:
        optimizer = Adam(1e-4, L2=0.01, grad_clip=1.0)
        return spacy_pass(batches, bert, optimizer, device, component=component, in_pieces=False)

    def trainer(bert: Path, *, is_sorted: bool = False, **settings: Any) -> Pass:
        return trainer_pass(in_order(batches) if is_sorted else batches, bert, folder, device, **settings)

    return {
        "CNN: spaCy, thinc's Adam": lambda: theirs(None),
        "CNN: spaCy, torch.AdamW": lambda: ours(None),
        "BERT: spaCy, thinc's Adam": lambda: with_bert(theirs),
        "BERT: spaCy, torch.AdamW": lambda: with_bert(ours),
        "BERT: spaCy, torch.AdamW, bf16": lambda: with_bert(ours, precision="bf16"),
        "BERT: spaCy, torch.AdamW, sorted": lambda: with_bert(ours, in_pieces=True),
        "BERT, NER: spaCy, thinc's Adam": lambda: with_bert(theirs, component="ner"),
        "BERT, NER: spaCy, torch.AdamW": lambda: with_bert(ours, component="ner"),
        "BERT: Trainer": lambda: with_bert(trainer, bf16=False),
        "BERT: Trainer, sorted": lambda: with_bert(trainer, bf16=False, is_sorted=True),
        "BERT: Trainer, bf16": lambda: with_bert(trainer, bf16=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--json", help="Also write the figures to this file.")
    parser.add_argument("--quick", action="store_true", help="One round of four small batches, and a small BERT.")
    args = parser.parse_args()
    if args.device == "cuda":
        set_gpu_allocator("pytorch")
        require_gpu()
    rounds = 1 if args.quick else args.rounds
    batches = texts(4 if args.quick else args.batches, 8 if args.quick else 32)
    print("; ".join(f"{name}: {value}" for name, value in machine.describe(args.device).items()))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        passes: dict[str, Pass] = {}
        for title, build in contestants_for(batches, Path(name), args.device, quick=args.quick).items():
            try:
                passes[title] = build()
            except Exception as error:  # a library or a setting that is not there
                found[title] = reason(error)
        times: dict[str, list[float]] = {title: [] for title in passes}
        for _ in range(rounds):
            for title, run in passes.items():
                try:
                    times[title].append(run())
                except Exception as error:
                    found[title] = reason(error)
        found |= {title: statistics.median(speeds) for title, speeds in times.items() if speeds}
    for title, speed in found.items():
        print(f"  {title:34} {f'{speed:10,.0f} words/s' if isinstance(speed, float) else speed}")
    if args.json:
        machine.write(args.json, "train", args.device, found)


if __name__ == "__main__":
    main()
