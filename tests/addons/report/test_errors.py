"""The worst errors: a component predicts what the test says, and spaCy's scorer counts what is right."""

import random
import re

import pytest
import spacy
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example

from thinc_torchopt.addons.report.errors import compare, passages_of
from thinc_torchopt.addons.report.figures import draw
from thinc_torchopt.addons.report.kinds import Categories, Entities
from thinc_torchopt.addons.report.labels import Trained
from thinc_torchopt.addons.report.report import Report, _beside
from thinc_torchopt.addons.report.runs import read_runs
from thinc_torchopt.core.errors import ConfigError

TAGS, DEPS = ("NN", "<i>", "''"), ("nsubj", "<i>&", "punct")
LABELS = ("<b>&\"'", "عربي", "A" * 200)


class Foretold:
    """A component that predicts what it was told, by text."""

    is_trainable = True

    def __init__(self, vocab):
        self.vocab, self.cfg, self.told = vocab, {"threshold": 0.5}, {}

    def __call__(self, doc):
        self.told[doc.text](doc)
        return doc

    def score(self, examples, **_):
        spans = {"attr": "spans_sc", "allow_overlap": True, "labeled": True}
        get = {"getter": lambda doc, _: doc.spans["sc"], "has_annotation": lambda doc: "sc" in doc.spans}
        return {
            **Scorer.score_spans(examples, "ents"),
            **Scorer.score_spans(examples, **spans, **get),
            **Scorer.score_cats(examples, "cats", labels=LABELS[:2], multi_label=True, threshold=0.5),
            **Scorer.score_token_attr(examples, "tag"),
            **Scorer.score_deps(examples, "dep", getter=dep_of, ignore_labels=("p", "punct")),
        }

    def to_disk(self, path, exclude=()):
        pass


def dep_of(token, attr):
    return token.dep_.lower()


@pytest.fixture(scope="module")
def foretold():
    """A pipeline with that component, and its component."""
    assigns = ["doc.ents", "doc.spans", "doc.cats", "token.tag", "token.dep"]
    Language.factory("test_foretold", assigns=assigns, func=lambda nlp, name: Foretold(nlp.vocab))
    nlp = spacy.blank("en")
    return nlp, nlp.add_pipe("test_foretold")


def annotate(doc, dice):
    """Annotate a text at random."""
    n = len(doc)
    cuts = sorted(dice.sample(range(n + 1), min(n + 1, 6)))
    doc.set_ents([Span(doc, a, b, dice.choice(LABELS)) for a, b in zip(cuts[::2], cuts[1::2]) if dice.random() < 0.8])
    some = [sorted(dice.sample(range(n + 1), 2)) for _ in range(3)]
    doc.spans["sc"] = [Span(doc, a, b, dice.choice(LABELS)) for a, b in {tuple(one) for one in some}]
    doc.cats = {label: dice.random() for label in LABELS[:2]}
    for token in doc:
        token.tag_ = dice.choice(TAGS)
    heads = [dice.choice([i, max(0, i - 1)]) for i in range(n)]
    parsed = Doc(doc.vocab, [t.text for t in doc], heads=heads, deps=[dice.choice(DEPS) for _ in heads])
    doc.from_array(["HEAD", "DEP"], parsed.to_array(["HEAD", "DEP"]))


def written(nlp, foretold, texts, path, *, seed=0):
    """Annotated texts on disk, of which the component predicts as others are annotated."""
    docs = []
    for i, text in enumerate(texts):
        doc = nlp.make_doc(text)
        if len(doc):
            annotate(doc, random.Random(seed + i))
            doc.cats = {label: float(value > 0.5) for label, value in doc.cats.items()}
        foretold.told[text] = lambda doc, i=i: annotate(doc, random.Random(seed + i + i % 2))
        docs.append(doc)
    DocBin(docs=docs, store_user_data=True).to_disk(path)
    return path


def words(n, salt):
    return f"{salt} " + " ".join(f"w{i}" for i in range(n))


def test_errors_that_are_worst_come_first(foretold, tmp_path):
    nlp, component = foretold
    found = compare(nlp, written(nlp, component, [words(12, i) for i in range(90)], tmp_path / "dev.spacy"))
    for kind in found.kinds:
        assert len(kind.worst) == min(20, kind.n_passages) and kind.wrong >= sum(one.wrong for one in kind.worst)
        order = [(-(one.badness or one.wrong), one.right, one.number) for one in kind.worst]
        assert order == sorted(order)
        assert {one.number % 2 for one in kind.worst} == {0}  # every second text is predicted as it is annotated
    [cats] = [one for one in found.kinds if one.kind == "cats"]
    assert all(max(abs(h - s) for _, h, s in one.categories) == one.badness > 0.5 for one in cats.worst)


def in_letters(doc, labels):
    """One-word entities, a letter for each word."""
    doc.set_ents([Span(doc, i, i + 1, label) for i, label in enumerate(labels) if label != "-"])


def test_errors_are_printed_with_their_labels(foretold, tmp_path):
    """Of A, 2 of 3 are found, and 2 of 4 are right; of B, 1 of 2, and 1 of 1."""
    nlp, component = foretold
    corpora = {
        "train": [("AAA", ""), ("AAB", "")],
        "dev": [("AB-", "AA-"), ("A--", "A--"), ("A--", "---"), ("-B-", "-BA")],
    }
    config = {"training": {f"{name}_corpus": f"corpora.{name}" for name in corpora}, "corpora": {}}
    for name, rows in corpora.items():
        docs = [nlp.make_doc(f"{name} {i} text") for i in range(len(rows))]
        for doc, (annotated, predicted) in zip(docs, rows):
            in_letters(doc, annotated)
            component.told[doc.text] = lambda doc, predicted=predicted: in_letters(doc, predicted)
        DocBin(docs=docs).to_disk(tmp_path / f"{name}.spacy")
        config["corpora"][name] = {"path": str(tmp_path / f"{name}.spacy")}
    (tmp_path / "log.jsonl").write_text('{"step": 0, "losses": {}}')
    found = Report(read_runs([tmp_path / "log.jsonl"]), Trained(["ner"], config), compare(nlp, tmp_path / "dev.spacy"))
    one_a = found.summary()[0]["labels"]["ents"]["A"]
    counts = {"in_train": 5, "annotated": 3, "predicted": 4, "right": 2}
    assert one_a == {**counts, "p": 0.5, "r": 2 / 3, "f": pytest.approx(4 / 7)}
    assert _beside(found)["scores_are_of"] == "On the 4 texts of dev.spacy, from 0 to 1."
    shown = repr(found).splitlines()
    assert shown[0] == "Finds 60 of 100 entities; 60 of 100 that it names are right."
    at = shown.index("Entities:")
    assert [line.split() for line in (shown[at + 1], *shown[at + 3 : at + 5])] == [
        ["label", "precision", "recall", "F-score", "in", "training", "annotated", "predicted", "right"],
        ["A", "0.500", "0.667", "0.571", "5", "3", "4", "2"],
        ["B", "1.000", "0.500", "0.667", "1", "2", "1", "1"],
    ]
    assert shown[at + 1].index("precision") + 4 == shown[at + 3].index("0.500")  # they end below each other
    assert shown[-2:] == [
        "Trained: ner. Corpora: train 2 texts, 6 words; dev 4 texts, 12 words.", "Entities: 4 errors in dev.spacy."
    ]  # fmt: skip


def passages_in(words, annotated, predicted, *, starts=()):
    """Of a text of words without ends of sentences, but before some, and elsewhere as predicted: with its entities."""
    docs = [Doc(spacy.blank("xx").vocab, words=words) for _ in range(2)]
    for doc, ents in zip(docs, (predicted, annotated)):
        doc.set_ents([Span(doc, *one) for one in ents])
    for i in starts:
        docs[1][i].is_sent_start = docs[0][i + 9].is_sent_start = True
    example, kind = Example(*docs), Entities("ents")
    for one in passages_of(kind, example, *kind.compare(example)):
        marks = ([mark[:3] for mark in side] for side in (one.annotated, one.predicted))
        yield (one.words, one.wrong, one.right, *marks, one.is_cut)


def test_errors_in_long_texts_are_shown_with_what_is_around():
    """Passages end with a sentence, or after 60 words, but in no entity. Marks are counted in characters."""
    words = [f"{i:03}" for i in range(200)]
    found = passages_in(words, [(79, 82, "A"), (199, 200, "B")], [(20, 21, "C"), (79, 82, "A")], starts=[20])
    assert [(len(words), *others) for words, *others in found] == [
        (20, 0, 0, [], [], False),
        (62, 1, 1, [(236, 247, "A")], [(0, 3, "C"), (236, 247, "A")], False),
        (60, 0, 0, [], [], False),
        (58, 1, 0, [(228, 231, "B")], [], False),
    ]


@pytest.mark.parametrize(
    ("lengths", "shown", "marks", "is_cut"),
    [
        ([400, 400, 400], [401, 401, 198], [(401, 1000, "A")], True),
        ([999, 5, 5], [1000], [], True),
        ([989, 9], [990, 10], [(990, 999, "A")], False),
    ],
)
def test_errors_in_long_words_are_cut_after_1000_characters(lengths, shown, marks, is_cut):
    words = ["x" * n for n in lengths]
    [(words, _, _, *found)] = passages_in(words, [(1, len(words), "A")], [])
    assert ([*map(len, words)], found) == (shown, [marks, [], is_cut])


@pytest.mark.parametrize("n", [120, 121])
def test_errors_of_categories_are_shown_with_120_words(n):
    predicted, annotated = (Doc(spacy.blank("xx").vocab, words=["x"] * n) for _ in range(2))
    annotated.cats, predicted.cats = {"A": 0.5, "B": 0.0, "C": 0.0}, {"A": 0.25, "B": 0.875, "D": 1.0}
    example, kind = Example(predicted, annotated), Categories("cats", (), 0.5)
    [found] = passages_of(kind, example, *kind.compare(example))
    assert (found.words, found.is_cut) == (["x "] * 120, n > 120)
    assert (found.wrong, found.right, found.badness) == (2, 1, 0.875)
    assert found.categories == [("A", True, 0.25), ("B", False, 0.875)]


def test_errors_of_one_category_are_two():
    """The one that was not predicted, and the other one. What has no score has 0."""
    both = [("A", True, 0.0), ("B", False, 0.875)]
    for annotated, said in (({"A": 1.0}, [both]), ({"A": 0.0}, [both[::-1]]), ({}, [])):
        docs = [Doc(spacy.blank("xx").vocab, words=["x"]) for _ in range(2)]
        docs[0].cats, docs[1].cats = {"B": 0.875}, annotated
        example, kind = Example(*docs), Categories("cats", (), None)
        assert [one.categories for one in passages_of(kind, example, *kind.compare(example))] == said


HOSTILE = [
    "<script>alert(1)</script> & \"quotes\" 'too' <img src=x onerror=alert(1)>",
    "\u202e\u05e9\u05dc\u05d5\u05dd\u202c \u0632\u0645\u0627\u0646 <b>",
    "x" * 20_000,
    "}{ {text} %s {{ x }}",
    "an even number of texts is above",
    "a\x1bb\x00c \ud7ff \n\n \t tail",
    " ",
]


def test_errors_of_hostile_texts_are_drawn_as_text(foretold, tmp_path):
    nlp, component = foretold
    texts = [f"{text} {i}" for i in range(8) for text in HOSTILE]
    path = written(nlp, component, [*texts, ""], tmp_path / "dev.spacy", seed=7)
    found = compare(nlp, path)
    drawn = ""
    for kind in found.kinds:
        for passage in kind.worst:
            drawn += "".join(html for _, html in draw(passage, kind.kind, "x", is_right_to_left=False))
    assert "&lt;script&gt;" in drawn and "&lt;b&gt;&amp;" in drawn and "{text}" in drawn
    tags = set(re.findall(r"<\s*([a-z]+)", drawn))
    assert tags <= {"div", "mark", "bdi", "br", "span", "svg", "text", "tspan", "g", "path", "textpath", "textPath"}
    assert not re.search("[\x00-\x08\x1b\u202a-\u202e]", drawn) and "onerror" in drawn
    assert max(map(len, re.findall(r">([^<]*)<", drawn))) <= 1100


def test_errors_of_texts_without_annotations_are_none(foretold, tmp_path):
    nlp, component = foretold
    text = words(5, "bare")
    component.told[text] = lambda doc: annotate(doc, random.Random(3))
    DocBin(docs=[nlp.make_doc(text)]).to_disk(tmp_path / "bare.spacy")
    assert not compare(nlp, tmp_path / "bare.spacy").kinds


def test_errors_need_texts(foretold, tmp_path):
    nlp, component = foretold
    (tmp_path / "no.spacy").write_text("{}")
    DocBin().to_disk(tmp_path / "empty.spacy")
    text = words(5, "odd")
    component.told[text] = lambda doc: 1 / 0
    DocBin(docs=[nlp.make_doc(text)]).to_disk(tmp_path / "fails.spacy")
    for name, said in [
        ("no", "expected a file in spaCy's format"),
        ("empty", "found none"),
        ("lost", "there is no file or folder"),
        ("fails", "fails on these"),
    ]:
        with pytest.raises(ConfigError, match=said):
            compare(nlp, tmp_path / f"{name}.spacy")
