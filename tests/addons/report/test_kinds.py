"""Each table's total is spaCy's score, for every kind of component, also where the tokenizer cuts otherwise.

Texts are annotated at random, and so are the predictions, in tokens of their own. spaCy's components score them.
"""

import random
import re

import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import filter_spans

from thinc_torchopt.addons.report.errors import compare_examples
from thinc_torchopt.addons.report.figures import draw
from thinc_torchopt.addons.report.kinds import Trees, kinds_of, sentences
from thinc_torchopt.addons.report.labels import prf, table_of

TAGS, DEPS, LABELS = ("NN", "VB", "DT"), ("nsubj", "Obj", "punct", "det"), ("PER", "LOC")
MORPHS = ("", "_", "Case=Nom", "Case=Gen|Number=Sing", "Number=Plur")
WORDS = ("New", "York", "don't", "co-op", "x", ".", "  ", "Ünï")
# By name: factory, settings, and the labels of classifiers.
COMPONENTS = {
    "tagger": ("tagger", {}, ()),
    "second_tagger": ("tagger", {}, ()),
    "morphologizer": ("morphologizer", {}, ()),
    "trainable_lemmatizer": ("trainable_lemmatizer", {}, ()),
    "parser": ("parser", {}, ()),
    "senter": ("senter", {}, ()),
    "ner": ("ner", {}, ()),
    "spancat": ("spancat", {}, ()),
    "other_spancat": ("spancat", {"spans_key": "other of two"}, ()),
    "singlelabel": ("spancat_singlelabel", {"spans_key": "single"}, ()),
    "span_finder": ("span_finder", {"spans_key": "found"}, ()),
    "textcat": ("textcat", {}, ("A", "B", "C")),
    "second_textcat": ("textcat", {}, ("D", "E")),
    "multilabel": ("textcat_multilabel", {"threshold": 0.3}, ("F", "G")),
    "zero": ("textcat_multilabel", {"threshold": 0.0}, ("H", "I")),
}
# spaCy's score of all, and those by label.
SCORES = {
    "tag": ("tag_acc", None),
    "pos": ("pos_acc", None),
    "lemma": ("lemma_acc", None),
    "morph": ("morph_micro_f", "morph_per_feat"),
    "dep": ("dep_las", "dep_las_per_type"),
    "sents": ("sents_f", None),
    "ents": ("ents_f", "ents_per_type"),
    "cats": ("cats_micro_f", "cats_f_per_type"),
}


@pytest.fixture(scope="module")
def nlp():
    nlp = spacy.blank("en")
    spacy.Language.component("test_kinds_rules", assigns=["token.tag"], func=lambda doc: doc)
    nlp.add_pipe("test_kinds_rules")  # learns nothing
    for name, (factory, settings, labels) in COMPONENTS.items():
        pipe = nlp.add_pipe(factory, name, config=settings)
        for label in labels:
            pipe.add_label(label)
    return nlp


def tokens(nlp, words, dice):
    """A text in tokens: parts of words, or two of them."""
    found, i = [], 0
    while i < len(words):
        if dice.random() < 0.15 and i + 1 < len(words):
            found.append((f"{words[i]} {words[i + 1]}", True))
            i += 1
        elif len(words[i]) > 1 and words[i].strip() and dice.random() < 0.2:
            found += [(words[i][:1], False), (words[i][1:], True)]
        else:
            found.append((words[i], True))
        i += 1
    return [word for word, _ in found], [space for _, space in found]


def example(nlp, seed, *, leaves_open):
    """A text, annotated and predicted: mostly the same at the same characters. leaves_open (bool): Also of trees."""
    dice, by_place = random.Random(seed), {}
    words = [dice.choice(WORDS) for _ in range(dice.randint(1, 14))]

    def choice(choices, place, noise):
        """The same for the same characters, but for noise."""
        chosen = by_place.setdefault((place, choices), dice.choice(choices))
        return dice.choice(choices) if dice.random() < noise else chosen

    spans = [(a, a + dice.randint(1, 12), dice.choice(LABELS)) for a in range(0, 60, 5) if dice.random() < 0.5]

    def annotated(*, is_reference):
        noise, missing = (0.0, 0.15) if is_reference else (0.25, 0.05)
        texts, spaces = tokens(nlp, words, dice)
        n = len(texts)
        blank = Doc(nlp.vocab, texts, spaces)

        def labels(choices):
            return ["" if dice.random() < missing else choice(choices, token.idx, noise) for token in blank]

        deps = [one or ("" if leaves_open and is_reference else "dep") for one in labels(DEPS)]
        heads = [max(0, i - choice((0, 1, 2), blank[i].idx, noise)) for i in range(n)]
        settings = {"tags": labels(TAGS), "pos": labels(("NOUN", "VERB")), "lemmas": labels(("a", "b"))}
        doc = Doc(nlp.vocab, texts, spaces, heads=heads, deps=deps, **settings)
        for token in doc:
            if dice.random() >= missing:
                token.set_morph(choice(MORPHS, token.idx, noise))

        def some(*, overlap):
            kept = [span for span in spans if dice.random() >= noise / 2]
            found = [doc.char_span(a, min(b, len(doc.text)), label, alignment_mode="expand") for a, b, label in kept
                     if a < len(doc.text)]  # fmt: skip
            found = [span for span in found if span is not None and len(span)]
            return found if overlap else filter_spans(found)

        ents = some(overlap=False)
        taken = {i for one in ents for i in range(one.start, one.end)}
        left = [Span(doc, i, i + 1) for i in range(n) if i not in taken and dice.random() < missing]
        if not is_reference or dice.random() < 0.9:
            doc.set_ents(ents, missing=left, default="outside")
        for key in ("sc", "other of two", "single", "found"):
            if not is_reference or dice.random() < 0.9:
                doc.spans[key] = some(overlap=True)
        for _, _, names in COMPONENTS.values():
            if is_reference and names and dice.random() < 0.9:
                held = choice(names, 0, 0.0)
                doc.cats |= {name: float(name == held) for name in names if names[0] in "AD" or dice.random() < 0.9}
            elif not is_reference:
                doc.cats |= {name: (choice(names, 0, 0.2) == name) * dice.random() for name in names}
        return doc

    return Example(annotated(is_reference=False), annotated(is_reference=True))


def examples(nlp, seed, n, *, leaves_open=False):
    return [example(nlp, 1000 * seed + i, leaves_open=leaves_open) for i in range(n)]


def approx(values):
    return pytest.approx(values, abs=1e-12)  # sums of whole numbers, divided


@pytest.mark.parametrize(("seed", "n", "leaves_open"), [(0, 60, False), *((i, 1, True) for i in range(1, 25))])
def test_table_of_each_kind_adds_up_to_spacys_score(nlp, seed, n, leaves_open):
    """Words of trees may be missing in one text alone: spaCy goes on leaving them out in those that follow."""
    texts = examples(nlp, seed, n, leaves_open=leaves_open)
    found = compare_examples(nlp, texts, "dev")
    scores = spacy.scorer.Scorer(nlp).score(texts, per_component=True)
    if n > 1:
        assert {one.kind for one in found.kinds} == {
            *SCORES, "spans_sc", "spans_other of two", "spans_single", "spans_found"
        }  # fmt: skip
        assert {tuple(one.components) for one in found.kinds if one.kind == "cats"} == {
            ("textcat",), ("second_textcat",), ("multilabel",), ("zero",)
        }  # fmt: skip
        assert all(one.right and one.wrong and one.worst for one in found.kinds)
        assert len({one.name for one in found.kinds}) == len(found.kinds)
    for one in found.kinds:
        of_all, by_label = SCORES.get(one.kind, (f"{one.kind}_f", f"{one.kind}_per_type"))
        score = scores[one.components[-1]]
        total = prf(one.annotated.total(), one.predicted.total(), one.right.total())
        assert total[2] == approx(score[of_all] or 0.0), one.name
        table = table_of(one, {})
        assert sum(row.annotated for row in table.rows.values()) == one.annotated.total()
        for label, values in (score.get(by_label) or {}).items() if by_label else ():
            row = table.rows.get(label)
            expected = (values["p"], values["r"], values["f"])
            assert (row and (row.p, row.r, row.f)) == (row and approx(expected)) and (row or not any(expected)), label
        assert [*map(int, re.findall(r"(\d+) of 100", one.told))] == [*map(of_100, shares_of(one, score))], one.told


def shares_of(one, score):
    """The shares that a sentence is about, counted once more."""
    recall, precision = (one.right.total() / (counts.total() or 1) for counts in (one.annotated, one.predicted))
    if one.kind in ("tag", "pos", "lemma", "morph"):
        shares = [score[f"{one.kind}_acc"]]
        total = prf(one.annotated.total(), one.predicted.total(), one.right.total())
        assert one.kind == "morph" or shares == [approx(total[2])]
    elif one.kind == "dep":
        shares = [score["dep_uas"], score["dep_las"]]
    else:
        shares = [precision] if one.components[0] in ("textcat", "second_textcat") else [recall, precision]
    return [share for share in shares if share is not None]


def of_100(share):
    """Rounded, but only none are 0 and only all are 100."""
    return 0 if share == 0 else 100 if share == 1 else min(99, max(1, round(100 * share)))


def prf_of(key, p, r):
    return {f"{key}_f": 0.5, f"{key}_p": p, f"{key}_r": r}


FOUND = "Finds {} of 100 {}; {} of 100 that it names are right."
WORDS_ARE_RIGHT = {"tag": "tag", "pos": "part of speech", "morph": "morphology", "lemma": "lemma"}


@pytest.mark.parametrize(
    ("scores", "factories", "said"),
    [
        (prf_of("ents", 0.72, 0.66), [], [FOUND.format(66, "entities", 72)]),
        (prf_of("ents", 0.72, 0.66) | {"ents_per_type": {"DRUG": {}}}, [], [FOUND.format(66, "DRUG", 72)]),
        (prf_of("spans_a b", 0.001, 0.9999), [], [FOUND.format(99, "spans in 'a b'", 1)]),
        (prf_of("cats_micro", 1.0, 1.0), ["textcat"], ["100 of 100 texts get the right category."]),
        (prf_of("cats_micro", 0.5, 0.0), ["textcat_multilabel"], [FOUND.format(0, "categories", 50)]),
        (
            {f"{key}_acc": 0.93 for key in (*WORDS_ARE_RIGHT, "token")} | {"morph_micro_f": 0.2},
            ["tagger"],
            [f"93 of 100 words get the right {name}." for name in WORDS_ARE_RIGHT.values()],
        ),
        (
            {"dep_uas": 0.91, "dep_las": 0.886} | prf_of("sents", 0.1, 0.3),
            ["parser"],
            ["91 of 100 words get the right head; 89 of 100 the right label, too.", FOUND.format(30, "sentences", 10)],
        ),
        (prf_of("ents", None, None) | {"speed": 1.0, "token_f": 1.0, "dep_las": 0.5}, [], []),
    ],
)
def test_sentences_of_scores(scores, factories, said):
    assert [*sentences(scores, factories)] == said


def test_errors_of_each_kind_are_those_of_spacys_score(nlp):
    """Of tokens, a word with an error counts once; of morphology, the table counts features, and the errors words."""
    texts = examples(nlp, 0, 60)
    scores = spacy.scorer.Scorer(nlp).score(texts)
    for kind, _ in kinds_of(nlp, texts):
        counts = [0, 0, 0]
        for text in texts:
            annotated, predicted = kind.compare(text)
            for i, items in enumerate((annotated, predicted, annotated.keys() & predicted.keys())):
                counts[i] += len(items)
        name = "morph_acc" if kind.key == "morph" else SCORES.get(kind.key, (f"{kind.key}_f",))[0]
        if kind.key != "cats":
            assert prf(*counts)[2] == approx(scores[name]), kind.key


def test_errors_that_the_tokenizer_made_are_shown(nlp):
    """A tag of a word that was not found is missed, one of a part of it may be right; an arc of a word that is none is
    wrong.
    """
    reference = Doc(
        nlp.vocab, ["a", "co-op", "is"], tags=["DT", "NN", "VB"], heads=[1, 2, 2], deps=["det", "s", "ROOT"]
    )
    labels = {"tags": ["DT", "NN", "X", "NN", "VB"], "deps": ["det", "s", "x", "y", "ROOT"]}
    predicted = Doc(
        nlp.vocab, ["a", "co", "-", "op", "is"], [True, False, False, True, False], heads=[1, 4, 1, 1, 4], **labels
    )
    bare = Doc(nlp.vocab, ["a", "co-op", "is"])
    assert Trees("dep").compare(Example(predicted, bare)) == ({}, {})
    merged = Doc(nlp.vocab, ["a co-op", "is"], tags=["NN", "VB"], heads=[1, 1], deps=["s", "ROOT"])
    for doc, annotated_tags, predicted_tags, n_deps in ((predicted, [], ["X"], 1), (merged, ["DT", "NN"], [], 3)):
        found = {one.kind: one for one in compare_examples(nlp, [Example(doc, reference)], "dev").kinds}
        [passage] = found["tag"].worst
        assert [mark.label for mark in passage.annotated] == annotated_tags
        assert [mark.label for mark in passage.predicted] == predicted_tags
        assert found["tag"].wrong == len(annotated_tags + predicted_tags) and found["dep"].wrong == n_deps
        html = [html for _, html in draw(found["dep"].worst[0], "dep", "x", is_right_to_left=False)]
        assert ("det" in html[0]) == (doc is merged) and len(html) == 2
