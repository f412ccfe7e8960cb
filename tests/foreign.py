"""What the configs in foreign_configs/ find on disk: corpora, vectors, a knowledge base, a trained pipeline.

All of it is made by code, and always the same.
"""

import io
import json
from importlib.util import find_spec
from pathlib import Path

import numpy
import spacy
from confection import Config
from spacy.kb import InMemoryLookupKB
from spacy.tokens import Doc, DocBin, Span
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import import_file
from spacy.vectors import Mode, Vectors

FOLDER = Path(__file__).parent / "foreign_configs"
FUNCTIONS = FOLDER / "functions.py"

PEOPLE, CITIES = ("Anna", "Boris", "Chloé", "Dmitri"), ("London", "Paris", "Bonn", "Turin")
ADJECTIVES, NOUNS = ("old", "red", "small", "quiet"), ("houses", "gardens", "bridges", "cafés")

# word, tag, pos, morph, lemma, head, dep
FIRST = """
    {person} NNP PROPN Number=Sing    {person} 1 nsubj
    {verb}s  VBZ VERB  Tense=Pres     {verb}   1 ROOT
    {adj}    JJ  ADJ   Degree=Pos     {adj}    3 amod
    {noun}s  NNS NOUN  Number=Plur    {noun}   1 dobj
    in       IN  ADP   _              in       5 case
    {city}   NNP PROPN Number=Sing    {city}   1 obl
    .        .   PUNCT _              .        1 punct
"""
SECOND = """
    {she}    PRP PRON  Number=Sing    she      8 nsubj
    lives    VBZ VERB  Tense=Pres     live     8 ROOT
    in       IN  ADP   _              in      10 case
    {other}  NNP PROPN Number=Sing    {other}  8 obl
    .        .   PUNCT _              .        8 punct
"""


def english_docs(numbers: range) -> list[Doc]:
    """Texts of one sentence or two, with all that a component can learn from a text."""
    vocab, docs = spacy.blank("en").vocab, []
    for i in numbers:
        person, city, is_good = PEOPLE[i % 4], CITIES[i // 2 % 4], i % 3 > 0
        text = FIRST + SECOND * (i % 4 > 0)
        text = text.format(
            person=person,
            city=city,
            other=CITIES[(i + 1) % 4],
            verb="love" if is_good else "hate",
            adj=ADJECTIVES[i // 3 % 4],
            noun=NOUNS[i // 4 % 4][:-1],
            she="She" if i % 2 else "He",
        )
        words, tags, pos, morphs, lemmas, heads, deps = zip(
            *(line.split() for line in text.splitlines() if line.strip())
        )
        morphs, heads = ["" if morph == "_" else morph for morph in morphs], [int(head) for head in heads]
        doc = Doc(vocab, words=words, tags=tags, pos=pos, morphs=morphs, lemmas=lemmas, heads=heads, deps=deps)
        entities = [("PERSON", 0, f"Q{i % 4}"), ("GPE", 5, ""), ("GPE", 10, "")][: 2 + (len(doc) > 7)]
        doc.ents = [Span(doc, start, start + 1, label=label, kb_id=kb_id) for label, start, kb_id in entities]
        doc.spans["phrases"] = [
            Span(doc, 2, 4, label="THING"),
            Span(doc, 0, 1, label="WHO"),
            Span(doc, 4, 6, label="WHERE"),
        ]
        doc.cats = {"GOOD": float(is_good), "BAD": float(not is_good)}
        doc._.relations = {(0, 5): {"LOVES": float(is_good), "KNOWS": 1.0}}
        docs.append(doc)
    return docs


def chinese_docs(numbers: range) -> list[Doc]:
    """One sentence each, in words, with names and a category."""
    vocab, docs = spacy.blank("zh").vocab, []
    for i in numbers:
        words = [
            ("安娜", "王小明", "李华")[i % 3],
            "喜欢" if i % 2 else "讨厌",
            ("北京", "上海")[i // 2 % 2],
            "的",
            ("花园", "桥")[i // 3 % 2],
            "。",
        ]
        doc = Doc(vocab, words=words, spaces=[False] * len(words))
        doc.ents = [Span(doc, 0, 1, label="PERSON"), Span(doc, 2, 3, label="GPE")]
        doc.cats = {"GOOD": float(i % 2), "BAD": float(1 - i % 2)}
        docs.append(doc)
    return docs


def make_files(folder: Path) -> dict[str, Path]:
    """Write everything. RETURNS: Where it is, by the names in [paths]; the Chinese corpora are zh_train and zh_dev."""
    import_file("foreign_functions", FUNCTIONS)
    parts = {"train": english_docs(range(24)), "dev": english_docs(range(24, 28))}
    parts |= {"zh_train": chinese_docs(range(24)), "zh_dev": chinese_docs(range(24, 28))}
    paths = {name: folder / f"{name}.spacy" for name in parts}
    for name, docs in parts.items():
        DocBin(docs=docs, store_user_data=True).to_disk(paths[name])
    paths |= {"raw_text": folder / "raw_text.jsonl", "labels": folder / "labels.json"}
    paths["raw_text"].write_text("".join(json.dumps({"text": doc.text}) + "\n" for doc in parts["train"]))
    for name in ("vectors", "floret", "kb", "source", "pieces", "transformer"):
        paths[name] = folder / name
    _write_vectors(paths["vectors"], paths["floret"])
    _write_kb(paths["kb"])
    _write_transformer(paths["transformer"], paths["pieces"])
    _write_pipeline(paths["source"], paths)
    return paths


def _write_vectors(vectors: Path, floret: Path) -> None:
    rng, nlp = numpy.random.default_rng(0), spacy.blank("en")
    words = sorted({token.text for doc in english_docs(range(20)) for token in doc})
    rows = rng.normal(size=(len(words), 12)).astype("f")
    nlp.vocab.vectors = Vectors(strings=nlp.vocab.strings, data=rows, keys=words, name="random")
    nlp.to_disk(vectors)
    nlp = spacy.blank("xx")
    rows = rng.normal(size=(100, 12)).astype("f")
    nlp.vocab.vectors = Vectors(
        strings=nlp.vocab.strings,
        data=rows,
        mode=Mode.floret,
        minn=2,
        maxn=4,
        hash_count=2,
        hash_seed=2166136261,
        bow="<",
        eow=">",
        name="floret",
    )
    nlp.to_disk(floret)


def _write_kb(folder: Path) -> None:
    """For each name the person that it means, and another one."""
    kb, rng = InMemoryLookupKB(spacy.blank("en").vocab, entity_vector_length=16), numpy.random.default_rng(0)
    for i in range(5):
        kb.add_entity(entity=f"Q{i}", freq=10 + i, entity_vector=rng.normal(size=16).astype("f"))
    for i, person in enumerate(PEOPLE):
        kb.add_alias(alias=person, entities=[f"Q{i}", f"Q{i + 1}"], probabilities=[0.5, 0.4])
    kb.to_disk(folder)


def _write_transformer(folder: Path, pieces: Path) -> None:
    """The pieces of a BERT that reads letters; and, where there is the library, such a BERT itself."""
    letters = sorted({letter for doc in english_docs(range(20)) for letter in doc.text.lower() if not letter.isspace()})
    pieces.write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)])
    )
    if find_spec("transformers"):
        from transformers import BertConfig, BertModel, BertTokenizerFast

        sizes = {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "vocab_size": 80,
        }
        BertModel(BertConfig(**sizes)).save_pretrained(folder)
        BertTokenizerFast(str(pieces)).save_pretrained(folder)


def _write_pipeline(folder: Path, paths: dict[str, Path]) -> None:
    """A tagger, a parser and names, as spaCy trains them."""
    config = Config().from_disk(FOLDER / "pretrain.cfg", interpolate=False)
    config["nlp"]["pipeline"] = ["tok2vec", "tagger", "parser", "ner"]
    config["components"]["ner"] = {
        "factory": "ner",
        "model": config["components"]["parser"]["model"].copy() | {"state_type": "ner"},
    }
    config["paths"] |= {"train": str(paths["train"]), "dev": str(paths["dev"])}
    config["training"] |= {"max_steps": 4}
    config.pop("pretraining")
    config.pop("initialize")
    config["training"]["logger"] = {"@loggers": "spacy.ConsoleLogger.v3"}
    nlp = init_nlp(config)
    train(nlp, None, stdout=io.StringIO(), stderr=io.StringIO())
    nlp.to_disk(folder)
    paths["labels"].write_text(json.dumps(nlp.get_pipe("ner").label_data))
