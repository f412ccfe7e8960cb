"""A Hugging Face Trainer and EDS-NLP on the batch of `fine_tuning.py batch`, which starts this in a venv of its own:

    python -m venv peers && peers/bin/pip install 'edsnlp[ml]==0.23.0' transformers==4.53.2
    python benchmarks/fine_tuning.py batch --peers peers/bin/python

All read the same texts in one batch, in windows of 128 wordpieces that overlap by 32, and update all params by torch's
AdamW with gradients clipped. The Trainer has a linear layer over a word's first piece, and its texts as pieces, made
before; EDS-NLP has its CRF (`eds.ner_crf`), and makes the pieces in each update, as its training does.
"""

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from fine_tuning import Watch, write_batch

LABELS = ["O", "B-NAME"]
WINDOW, OVERLAP = 128, 32


def texts_of(words: int) -> tuple[list[Any], int]:
    """The docs of the batch, and their words."""
    import spacy
    from spacy.tokens import DocBin

    with tempfile.TemporaryDirectory() as name:
        count = write_batch(Path(name), words)
        docs = DocBin().from_disk(Path(name) / "train.spacy").get_docs(spacy.blank("en").vocab)
        return list(docs), count


def trainer(docs: list[Any], watch: Watch, transformer: str, device: str, steps: int, *, checkpointing: bool) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(transformer)
    model = transformers.AutoModelForTokenClassification.from_pretrained(transformer, num_labels=len(LABELS))
    batch = tokenizer(
        [[token.text for token in doc] for doc in docs],
        is_split_into_words=True,
        truncation=True,
        max_length=WINDOW,
        stride=OVERLAP,
        return_overflowing_tokens=True,
        padding=True,
        return_tensors="pt",
    )
    rows = []
    for i, doc_index in enumerate(batch.pop("overflow_to_sample_mapping").tolist()):
        places = batch.word_ids(i)
        firsts = [place if place != before else None for place, before in zip(places, [None, *places])]
        tags = [LABELS.index("B-NAME" if token.ent_type_ else "O") for token in docs[doc_index]]
        rows.append([-100 if place is None else tags[place] for place in firsts])
    inputs = {**batch, "labels": torch.tensor(rows)}

    class Notes(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.note()

    args = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=1,  # one of our batches
        max_steps=steps + 1,
        learning_rate=1e-4,
        weight_decay=0.01,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        gradient_checkpointing=checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if checkpointing else None,
        use_cpu=device == "cpu",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    args._n_gpu = min(args.n_gpu, 1)  # with several GPUs it would give each a part of the batch
    transformers.Trainer(
        model=model,
        args=args,
        train_dataset=[inputs] * (steps + 1),
        data_collator=lambda found: found[0],
        callbacks=[Notes()],
    ).train()


def eds_nlp(docs: list[Any], watch: Watch, transformer: str, device: str, steps: int) -> None:
    """SOURCE: edsnlp/training/trainer.py, `train`, without its loggers."""
    import edsnlp
    import edsnlp.pipes as eds

    nlp = edsnlp.blank("eds")
    # Its windows are counted without the two pieces around them.
    embedding = eds.transformer(model=transformer, window=WINDOW - 2, stride=WINDOW - 2 - OVERLAP)
    nlp.add_pipe(eds.ner_crf(mode="joint", target_span_getter={"ents": True}, embedding=embedding), name="ner")
    nlp.post_init(docs)
    nlp.to(device)
    nlp.train(True)
    params = list(nlp.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-4, weight_decay=0.01, fused=True)
    for _ in range(steps):
        watch.note()
        found = [nlp.preprocess(doc, supervision=True) for doc in docs]
        batch = nlp.collate(found, device=torch.device(device))
        loss = nlp.get_pipe("ner")(batch["ner"])["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    watch.note()


def run(part: str, row: str, transformer: str, device: str, seed: int, steps: int, words: int) -> dict[str, Any]:
    """Train once, in this process."""
    torch.manual_seed(seed)
    docs, count = texts_of(words)
    watch = Watch(device)
    if row.startswith("HF"):
        packages = ["transformers", "accelerate"]
        trainer(docs, watch, transformer, device, steps, checkpointing="checkpointing" in row)
    else:
        packages = ["edsnlp", "transformers"]
        eds_nlp(docs, watch, transformer, device, steps)
    told = ", ".join(f"{name} {version(name)}" for name in [*packages, "torch"])
    return {
        "row": row,
        "peak": watch.peak,
        "seconds": watch.seconds,
        "words": count,
        "versions": f"{row.split()[0].strip(',')}: {told}",
    }


if __name__ == "__main__":
    print(json.dumps(run(*json.loads(sys.argv[2]))))
