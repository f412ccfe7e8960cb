"""What a teacher fills in, against cases by hand, and laws that hold for all annotations."""

from collections import Counter
from dataclasses import replace

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.attrs import DEP, ENT_IOB, ENT_TYPE, HEAD, LEMMA, MORPH, POS, SENT_START, TAG
from spacy.tokens import Doc, Span

from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.kinds import Rule, kind_of
from thinc_torchopt.loop.filling import Filled, Taught, components_of, fill, leave_open, predicted_in, rules_for

VOCAB = spacy.blank("xx").vocab
WORDS = ["Anna", "Smith", "of", "Oslo", "sings", "well", "."]


def text(ents=(), *, spans=None, default="outside", morphs=(), **annotations):
    """A text. ents, spans (list): (start, end, label), the latter by key. morphs (list): None for a token without."""
    doc = Doc(VOCAB, words=WORDS, **annotations)
    set_morphs(doc, morphs)
    doc.set_ents([Span(doc, *span) for span in ents], default=default)
    for key, group in (spans or {}).items():
        doc.spans[key] = [Span(doc, *span) for span in group]
    return doc


def set_morphs(doc, morphs):
    for token, morph in zip(doc, morphs):
        if morph is not None:
            token.set_morph(morph)


def ents(doc):
    return [(one.start, one.end, one.label_) for one in doc.ents]


def rule_of(factory, *, settings=None, teachers=None, **more):
    kind, theirs = kind_of(factory, settings), kind_of(factory, settings if teachers is None else teachers)
    return Rule(factory, kind, factory, theirs, **more)


SPANS = rule_of("spancat")
NER = rule_of("ner", labels=frozenset(["PERSON", "CITY"]))


# ---------------------------------------------------------------------- entities


def test_filling_entities_outside_of_the_annotated_ones():
    counted = Filled()
    doc = fill(text([(4, 5, "ACT")]), text([(0, 2, "PERSON"), (3, 4, "CITY")]), [NER], counted)
    assert ents(doc) == [(0, 2, "PERSON"), (3, 4, "CITY"), (4, 5, "ACT")]
    assert counted.labels == {"ner": Counter(PERSON=1, CITY=1)} and not counted.conflicts["ner"].total()
    assert (counted.texts, counted.complete) == (1, 0)


def test_filling_entities_keeps_an_annotation_that_overlaps():
    counted = Filled()
    doc = fill(text([(1, 2, "ACT")]), text([(0, 2, "PERSON"), (3, 4, "CITY")]), [NER], counted)
    assert ents(doc) == [(1, 2, "ACT"), (3, 4, "CITY")]
    assert counted.conflicts["ner"] == Counter(PERSON=1)


def test_filling_entities_with_a_label_that_replaces_another():
    """An ARTIST in the place of a PERSON is no contradiction; a CITY there is one."""
    rule = rule_of("ner", replaces={"ARTIST": frozenset(["PERSON"])})
    counted = Filled()
    doc = fill(text([(0, 2, "ARTIST")]), text([(0, 2, "PERSON")]), [rule], counted)
    assert ents(doc) == [(0, 2, "ARTIST")] and not counted.conflicts["ner"].total()
    fill(text([(0, 2, "ARTIST")]), text([(0, 1, "CITY")]), [rule], counted)
    assert counted.conflicts["ner"] == Counter(CITY=1)


@pytest.mark.parametrize("declared", ["PERSON", 1, {"PERSON": True}, [1]])
def test_filling_refuses_what_is_no_list_of_complete_labels(declared):
    doc = text()
    doc.user_data["complete"] = declared
    said = text([(0, 2, "PERSON")])
    for found in (lambda: fill(doc, said, [NER]), lambda: leave_open(doc, [NER])):
        with pytest.raises(ConfigError, match=r"expected a list of labels, or True, as doc.user_data\['complete'\]"):
            found()


def test_filling_exclusive_categories_leaves_open_what_holds_elsewhere():
    """The teacher says A, which is no label here: that is not B, its next best. Its other component says D."""
    rule = rule_of("textcat", labels=frozenset("BC"), own=frozenset("BC"),
                taught=frozenset("ABC"))  # fmt: skip
    counted = Filled()
    assert fill(text(), {"categories": {"A": 0.9, "B": 0.08, "C": 0.02, "D": 1.0}}, [rule], counted).cats == {}
    said = {"categories": {"A": 0.1, "B": 0.7, "C": 0.2, "D": 1.0}}
    assert fill(text(), said, [rule], counted).cats == {"B": 1.0, "C": 0.0}
    assert counted.labels["textcat"] == Counter(B=1) and counted.complete == 0
    # What is annotated, is complete, or of another component: nothing is open.
    held = text()
    held.cats = {"B": 0.0, "C": 0.5}
    for doc, more in ((held, said), (text(), said), (text(), {"categories": {"D": 1.0}})):
        complete = frozenset("B" if doc is not held else "")
        assert fill(doc, more, [replace(rule, complete=complete)], counted).cats == doc.cats
    assert counted.conflicts["textcat"] == Counter(B=2) and counted.complete == 3


def test_filling_spans_beside_others_once():
    doc = fill(text(spans={"sc": [(2, 3, "X")]}), {"spans/sc": [(0, 2, "X"), (0, 2, "X"), (3, 4, "X")]}, [SPANS])
    assert [(one.start, one.end) for one in doc.spans["sc"]] == [(2, 3), (0, 2), (3, 4)]


def test_filling_entities_leaves_open_where_an_unknown_label_may_be():
    """Nobody has said a word on entities, and the teacher does not know of an ACT."""
    reference, said, labels = text(default="missing"), text([(3, 4, "CITY")]), frozenset(["PERSON", "CITY"])
    rule = rule_of("ner", labels=labels, own=labels | {"ACT"}, taught=labels)
    for rules in ([rule], [rule, rule]):
        assert [token.ent_iob_ for token in fill(reference, said, rules)] == ["", "", "", "B", "", "", ""]
    rule = rule_of("ner", labels=labels, own=labels, taught=labels)
    assert [token.ent_iob_ for token in fill(reference, said, [rule])] == ["O", "O", "O", "B", "O", "O", "O"]


def test_filling_entities_beside_others_of_their_label():
    doc = fill(text([(1, 2, "PERSON")]), text([(0, 1, "PERSON"), (2, 4, "PERSON")]), [NER])
    assert ents(doc) == [(0, 1, "PERSON"), (1, 2, "PERSON"), (2, 4, "PERSON")]


@pytest.mark.parametrize("by_text", [False, True])
def test_filling_not_what_is_complete(by_text):
    """The corpus, or the text, has all of its PERSON annotated."""
    reference, rule, counted = text([(4, 5, "ACT")]), NER, Filled()
    if by_text:
        reference.user_data["complete"] = ["PERSON"]
    else:
        rule = rule_of("ner", labels=NER.labels, complete=frozenset(["PERSON"]))
    doc = fill(reference, text([(0, 2, "PERSON"), (3, 4, "CITY")]), [rule], counted)
    assert ents(doc) == [(3, 4, "CITY"), (4, 5, "ACT")]
    assert counted.conflicts["ner"] == Counter(PERSON=1)


@pytest.mark.parametrize("complete", [True, ["PERSON", "CITY"], ("CITY", "PERSON", "ACT")])
def test_filling_nothing_in_a_complete_text(complete):
    """Without a span it may be a true negative."""
    reference, counted = text(), Filled()
    reference.user_data["complete"] = complete
    assert fill(reference, text([(0, 2, "PERSON"), (3, 4, "CITY")]), [NER], counted) is reference
    assert (counted.texts, counted.complete) == (1, 1) and not any(counted.labels.values())


def test_filling_not_what_an_annotator_calls_incorrect():
    rule = rule_of("ner", settings={"incorrect_spans_key": "wrong"})
    said = text([(0, 2, "PERSON"), (3, 4, "CITY")])
    assert ents(fill(text(spans={"wrong": [(0, 2, "PERSON")]}), said, [rule])) == [(3, 4, "CITY")]
    # Another label, or other ends, are not what the annotator has looked at.
    assert ents(fill(text(spans={"wrong": [(0, 2, "CITY"), (0, 1, "PERSON")]}), said, [rule])) == ents(said)


def test_filling_not_where_no_entity_can_be():
    reference = text([(4, 5, "ACT")])
    reference.set_ents(list(reference.ents), blocked=[reference[3:4]], default="outside")
    doc = fill(reference, text([(0, 2, "PERSON"), (3, 4, "CITY")]), [NER])
    assert ents(doc) == [(0, 2, "PERSON"), (4, 5, "ACT")] and (doc[3].ent_iob, doc[3].ent_type) == (3, 0)


def test_filling_only_labels_that_the_component_has():
    rule = rule_of("ner", labels=frozenset(["CITY"]))
    assert ents(fill(text(), text([(0, 2, "PERSON"), (3, 4, "CITY")]), [rule])) == [(3, 4, "CITY")]


def test_leaving_open_where_new_labels_may_be():
    doc = leave_open(text([(0, 2, "PERSON")]), [NER])
    assert [token.ent_iob_ for token in doc] == ["B", "I", "", "", "", "", ""] and ents(doc) == [(0, 2, "PERSON")]
    reference = text([(0, 2, "PERSON")])
    reference.user_data["complete"] = True
    assert leave_open(reference, [NER]) is reference
    assert leave_open(reference, [rule_of("tagger")]) is reference


# ---------------------------------------------------------------------- spans, categories


def test_filling_spans():
    rule = rule_of("spancat", settings={"spans_key": "new"}, teachers={"spans_key": "sc"}, labels=frozenset("AB"))
    counted = Filled()
    said = text(spans={"sc": [(0, 2, "A"), (1, 2, "B"), (4, 6, "A"), (6, 7, "Z")]})
    doc = fill(text(spans={"new": [(5, 6, "C")]}), said, [rule], counted)
    # Spans of the teacher may overlap each other.
    assert [(s.start, s.end, s.label_) for s in doc.spans["new"]] == [(5, 6, "C"), (0, 2, "A"), (1, 2, "B")]
    assert counted.conflicts["spancat"] == Counter(A=1) and counted.labels["spancat"] == Counter(A=1, B=1)


TEXTCAT = rule_of("textcat_multilabel", labels=frozenset(["RED", "BLUE"]))


def cats(**values):
    doc = text()
    doc.cats = values
    return doc


def test_filling_categories_that_the_text_does_not_name():
    counted = Filled()
    doc = fill(cats(NEW=1.0, RED=0.0), cats(RED=0.9, BLUE=0.7), [TEXTCAT], counted)
    assert doc.cats == {"NEW": 1.0, "RED": 0.0, "BLUE": 1.0}
    assert counted.conflicts["textcat_multilabel"] == Counter(RED=1)
    assert fill(cats(NEW=1.0), cats(RED=0.4, BLUE=0.1), [TEXTCAT]).cats == {"NEW": 1.0, "RED": 0.0, "BLUE": 0.0}
    strict = rule_of("textcat_multilabel", settings={"threshold": 0.8})
    assert fill(cats(), cats(RED=0.8, BLUE=0.7), [strict], counted).cats == {"RED": 1.0, "BLUE": 0.0}
    assert counted.labels["textcat_multilabel"] == Counter(RED=1, BLUE=1)
    fill(cats(RED=0.5), cats(RED=0.5), [TEXTCAT], counted)  # at the threshold both say that it holds
    whole = replace(TEXTCAT, complete=frozenset(["BLUE"]))
    assert fill(cats(RED=0.0), cats(BLUE=0.7), [whole], counted).cats == {"RED": 0.0}
    assert counted.conflicts["textcat_multilabel"] == Counter(RED=1, BLUE=1)


def test_filling_categories_with_one_that_replaces_another():
    rule = rule_of("textcat_multilabel", replaces={"CRIMSON": frozenset(["RED"])})
    assert fill(cats(CRIMSON=0.5), cats(RED=0.9), [rule]).cats == {"CRIMSON": 0.5, "RED": 0.0}
    assert fill(cats(CRIMSON=0.0), cats(RED=0.9), [rule]).cats == {"CRIMSON": 0.0, "RED": 1.0}


def test_filling_exclusive_categories_only_where_nothing_is_annotated():
    rule = rule_of("textcat", own=frozenset(["RED", "BLUE", "NEW"]))
    said = cats(RED=0.2, BLUE=0.8)
    assert fill(cats(), said, [rule]).cats == {"RED": 0.0, "BLUE": 1.0, "NEW": 0.0}
    for named in ({"NEW": 1.0}, {"RED": 0.0}, {"RED": 1.0, "BLUE": 0.0}):
        reference = cats(**named)
        assert fill(reference, said, [rule]) is reference
    # Of another component of the pipeline.
    assert fill(cats(TALL=1.0), said, [rule]).cats == {"TALL": 1.0, "RED": 0.0, "BLUE": 1.0, "NEW": 0.0}


# ---------------------------------------------------------------------- tokens


def test_filling_tags_of_tokens_without():
    counted = Filled()
    rule = rule_of("tagger", labels=frozenset(["NNP", "IN", "VBZ"]), complete=frozenset(["RB"]))
    said = text(tags=["NNP", "NNP", "IN", "NNP", "VBZ", "RB", "."])
    doc = fill(text(tags=["X", "", "", "NNP", "", "", ""]), said, [rule], counted)
    # "RB" is complete, and "." no label of the component.
    assert [token.tag_ for token in doc] == ["X", "NNP", "IN", "NNP", "VBZ", "", ""]
    assert counted.conflicts["tagger"] == Counter(NNP=1, RB=1)
    full = text(tags=["X"] * 7)
    assert fill(full, said, [rule]) is full


def test_filling_morphology_of_tokens_with_neither_pos_nor_features():
    said = text(pos=["PROPN"] * 7, morphs=["Number=Sing"] * 6 + [""])
    doc = fill(
        text(pos=["X", "", "", "", "", "", ""], morphs=[None, "Case=Nom", *[None] * 4, ""]),
        said,
        [rule_of("morphologizer")],
    )
    assert [(token.pos_, str(token.morph)) for token in doc] == [
        ("X", ""), ("", "Case=Nom"), *[("PROPN", "Number=Sing")] * 4, ("", "")
    ]  # fmt: skip


def test_filling_sentence_boundaries():
    counted = Filled()
    said = text(sent_starts=[1, -1, -1, 1, -1, 1, -1])
    doc = fill(text(sent_starts=[1, 0, 0, -1, 1, 0, 0]), said, [rule_of("senter")], counted)
    assert [token.is_sent_start for token in doc] == [True, False, False, False, True, True, False]
    assert counted.conflicts["senter"] == Counter(start=2) and counted.complete == 0
    assert kind_of("senter").has_open(text(sent_starts=[1, 0, -1, -1, -1, -1, -1]), [])
    fill(text(sent_starts=[1, 0, -1, -1, 1, -1, -1]), said, [rule_of("senter")], counted)
    assert counted.complete == 0


PARSER = rule_of("parser")
TREE = {"heads": [4, 0, 3, 0, 4, 4, 4], "deps": ["nsubj", "flat", "case", "nmod", "ROOT", "advmod", "punct"]}
TWO = {"heads": [1, 1, 1, 4, 4, 4, 4], "deps": ["flat", "ROOT", "dep", "nsubj", "ROOT", "advmod", "punct"]}


def tree(doc):
    return [(token.head.i, token.dep_) for token in doc]


def test_filling_trees_of_texts_without():
    doc = fill(text(), text(**TREE), [PARSER])
    assert tree(doc) == tree(text(**TREE))
    assert [token.is_sent_start for token in doc] == [True] + [False] * 6


def test_filling_trees_of_sentences_without_any_arc():
    """One arc keeps the sentence of the teacher from being filled in, the other sentence is."""
    heads, deps = [0, 1, 2, 3, 4, 4, 6], ["", "", "", "", "", "advmod", ""]
    counted = Filled()
    doc = fill(text(heads=heads, deps=deps), text(**TWO), [PARSER], counted)
    assert tree(doc)[:3] == tree(text(**TWO))[:3] and tree(doc)[5] == (4, "advmod")
    assert [token.dep_ for token in doc][3:] == ["", "", "advmod", ""]
    assert counted.labels["parser"].total() == 3
    # One that leads from there to the other sentence, and a label that is complete.
    doc = fill(text(heads=[3, 1, 2, 3, 4, 5, 6], deps=["x", *[""] * 6]), text(**TWO), [PARSER])
    assert [token.dep_ for token in doc] == ["x", *[""] * 6]
    doc = fill(text(), text(**TWO), [rule_of("parser", complete=frozenset(["advmod"]))], counted)
    assert [bool(token.dep_) for token in doc] == [True] * 3 + [False] * 4
    assert counted.conflicts["parser"] == Counter(sentence=1)
    assert [token.sent_start for token in doc][1:] == [-1, -1, 0, 0, 0, 0]


def test_filling_trees_only_where_sentence_boundaries_allow():
    counted = Filled()
    doc = fill(text(sent_starts=[1, -1, -1, 1, -1, -1, -1]), text(**TWO), [PARSER], counted)
    assert tree(doc) == tree(text(**TWO)) and not counted.conflicts["parser"].total()
    starts = [1, -1, 1, -1, -1, -1, -1]
    doc = fill(text(sent_starts=starts), text(**TWO), [PARSER], counted)
    assert not doc.has_annotation("DEP") and counted.conflicts["parser"] == Counter(sentence=2)
    assert (counted.texts, counted.complete) == (2, 0)
    assert [1 if token.is_sent_start else -1 for token in doc] == starts


# ---------------------------------------------------------------------- laws

LABELS = ("A", "B", "C")
RULES = [
    PARSER,
    rule_of("senter"),
    rule_of("tagger", complete=frozenset("C")),
    rule_of("morphologizer"),
    rule_of("trainable_lemmatizer"),
    rule_of("ner", complete=frozenset("C"), replaces={"A": frozenset("B")}, settings={"incorrect_spans_key": "wrong"}),
    rule_of("spancat", labels=frozenset("AB")),
    rule_of("textcat_multilabel", complete=frozenset("C"), replaces={"A": frozenset("B")}),
]


@st.composite
def docs(draw, n, *, is_full=False):
    """A text with some annotations of all kinds; or, as a teacher makes it, with all."""
    some = st.booleans() if not is_full else st.just(True)
    label = st.sampled_from(LABELS)

    def tokens(value):
        return [draw(value) if draw(some) else "" for _ in range(n)]

    span = st.tuples(st.integers(0, n - 1), st.integers(1, 3), label).map(lambda s: (s[0], min(n, s[0] + s[1]), s[2]))
    heads, deps, starts = list(range(n)), [""] * n, [0] * n
    begin = 0
    while begin < n:  # sentences, each a chain, with all of its arcs, or with some
        end = min(n, begin + draw(st.integers(1, 4)))
        if draw(some):
            starts[begin] = 1
            for i in range(begin, end):
                starts[i] = 1 if i == begin else -1
                if draw(some):
                    heads[i], deps[i] = max(begin, i - 1), draw(label)
        begin = end
    parsed = {"heads": heads, "deps": deps} if draw(some) and any(deps) else {"sent_starts": starts}
    doc = Doc(
        VOCAB,
        words=[f"w{i}" for i in range(n)],
        tags=tokens(label),
        pos=tokens(st.sampled_from(["NOUN", "VERB"])),
        lemmas=tokens(st.sampled_from(["x", "y"])),
        **parsed,
    )
    set_morphs(doc, [draw(st.sampled_from(["Number=Sing", "Case=Nom", ""])) if draw(some) else None for _ in range(n)])
    taken, found = set(), []
    for start, end, name in draw(st.lists(span, max_size=4)):
        if not taken & set(range(start, end)):
            taken |= set(range(start, end))
            found.append(Span(doc, start, end, name))
    doc.set_ents(found, default=draw(st.sampled_from(["outside", "missing"])) if not is_full else "outside")
    doc.spans["sc"] = [Span(doc, *one) for one in {*draw(st.lists(span, max_size=4))}]
    if not is_full:
        doc.spans["wrong"] = [Span(doc, *one) for one in draw(st.lists(span, max_size=2))]
    names = LABELS if is_full else draw(st.sets(label))
    doc.cats = {name: draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])) for name in sorted(names)}
    return doc


def contents(doc):
    columns = [ENT_IOB, ENT_TYPE, TAG, POS, MORPH, LEMMA, DEP, HEAD, SENT_START]
    spans = {key: [(s.start, s.end, s.label_) for s in group] for key, group in doc.spans.items()}
    return doc.to_array(columns).tolist(), dict(doc.cats), spans


@given(st.data())
def test_filling_never_changes_what_is_annotated_and_is_idempotent(data):
    n = data.draw(st.integers(1, 8))
    reference, said = data.draw(docs(n)), data.draw(docs(n, is_full=True))
    before = contents(reference)
    doc = fill(reference, said, RULES)
    assert contents(reference) == before
    # Each annotation is there.
    assert set(ents(reference)) <= set(ents(doc))
    for attr in (TAG, POS, MORPH, LEMMA, DEP):
        for old, new in zip(reference.to_array([attr]).ravel(), doc.to_array([attr]).ravel()):
            assert new == old or not old
    assert all(b.head.i == a.head.i for a, b in zip(reference, doc) if a.dep)
    if not reference.has_annotation("DEP"):  # otherwise spaCy makes them up by the arcs
        old = reference.to_array([SENT_START]).ravel()
        assert all(a == b for a, b in zip(old, doc.to_array([SENT_START]).ravel()) if a)
    spans = [[(s.start, s.end, s.label_) for s in one.spans["sc"]] for one in (reference, doc)]
    assert spans[1][: len(spans[0])] == spans[0]
    assert all(doc.cats[name] == value for name, value in reference.cats.items())
    # Nothing is left open but what is complete or has no label of the teacher; and what is filled in is no cycle.
    assert all(token.ent_iob for token in doc) or not reference.has_annotation("ENT_IOB")
    for token in doc:
        assert len(list(token.ancestors)) < n
    if reference.has_annotation("ENT_IOB"):  # else, the second time there is a word on entities
        assert contents(fill(doc, said, RULES)) == contents(doc)
    # The same from the plain values, as they come from a file.
    assert contents(fill(reference, predicted_in(said, RULES), RULES)) == contents(doc)


@given(st.data())
def test_filling_does_nothing_for_a_complete_text(data):
    n = data.draw(st.integers(1, 8))
    reference, said = data.draw(docs(n)), data.draw(docs(n, is_full=True))
    reference.user_data["complete"] = True
    assert fill(reference, said, RULES) is reference


@given(st.data())
def test_filling_an_annotated_text_with_itself_changes_nothing(data):
    """As a check of the rules: a teacher that says what is annotated has nothing to add, and contradicts nothing."""
    said = data.draw(docs(data.draw(st.integers(1, 8)), is_full=True))
    counted = Filled()
    doc = fill(said, said, [rule_of(one.component) for one in RULES], counted)
    assert contents(doc) == contents(said)
    assert not any(labels.total() for labels in [*counted.labels.values(), *counted.conflicts.values()])


# ---------------------------------------------------------------------- rules


def pipeline(*factories, **labels):
    nlp = spacy.blank("xx")
    for factory in factories:
        pipe = nlp.add_pipe(factory)
        for label in labels.get(factory, ()):
            pipe.add_label(label)
    return nlp


def test_rules_are_those_of_components_that_the_teacher_has_too():
    nlp = pipeline("ner", "tagger", "senter", "entity_linker", ner=["A", "NEW"], tagger=["X"])
    teacher = pipeline("tok2vec", "tagger", "ner", "parser", ner=["A", "B"], tagger=["X", "Y"])
    tags, entities = rules_for(nlp, teacher)
    assert (tags.component, tags.kind.name, tags.labels) == ("tagger", "tags", {"X"})
    assert (entities.component, entities.labels, entities.own) == ("ner", {"A"}, {"A", "NEW"})
    assert [rule.component for rule in rules_for(nlp, teacher, ["ner"])] == ["ner"]


def test_rules_find_the_only_component_of_a_kind_whatever_its_name():
    nlp = spacy.blank("xx")
    nlp.add_pipe("beam_ner", name="people")
    [rule] = rules_for(nlp, pipeline("ner", ner=["A"]))
    assert (rule.component, rule.teacher, rule.labels, rule.own) == ("people", "ner", {"A"}, None)


def test_rules_know_a_component_by_its_source():
    teacher = {name: Taught(kind_of("ner"), frozenset(label)) for name, label in (("one", "A"), ("two", "B"))}
    with pytest.raises(ConfigError, match="for any component"):
        rules_for(pipeline("ner"), teacher)
    [rule] = rules_for(pipeline("ner"), teacher, names={"ner": "two"})
    assert rule.labels == {"B"}


def test_rules_leave_frozen_components_alone():
    nlp = pipeline("ner", "tagger", ner=["A"], tagger=["X"])
    nlp.config["training"]["frozen_components"] = ["tagger"]
    assert [rule.component for rule in rules_for(nlp, pipeline("ner", "tagger", ner="A", tagger="X"))] == ["ner"]


@pytest.mark.parametrize(
    ("components", "settings", "said"),
    [
        (["nerr"], {}, "there is no component 'nerr' in the pipeline. Did you mean 'ner'?"),
        (["entity_linker"], {}, "a component that a teacher can fill in for, found 'entity_linker'"),
        (["tagger"], {}, "for 'tagger' in [x]: expected one of its kind in the teacher, found ner"),
        (["spancat"], {}, "expected one of its kind in the teacher"),
        (None, {"complete": ["PERSN"]}, "'complete' in [x]: no component has the label 'PERSN'. Did you mean 'PERSON'"),
        (None, {"replaces": {"NEW": "PERS"}}, "expected labels of the teacher as values, found 'PERS'"),
        (None, {"replaces": {"NEW": ["CITY", "X"]}}, "found 'X'. There are: CITY, PERSON"),
        (None, {"replaces": {"NEU": "PERSON"}}, "'replaces' in [x]: no component has the label 'NEU'"),
    ],
)
def test_rules_refuse_what_does_not_fit(components, settings, said):
    nlp = pipeline("ner", "tagger", "entity_linker", "spancat", ner=["PERSON", "CITY", "NEW"])
    with pytest.raises(ConfigError) as error:
        rules_for(nlp, pipeline("ner", ner=["PERSON", "CITY"]), components, where=" in [x]", **settings)
    assert said in str(error.value)


def test_rules_refuse_components_without_labels_in_common():
    with pytest.raises(ConfigError, match="expected one of its labels, A, in the teacher's 'ner', found none"):
        rules_for(pipeline("ner", ner=["A"]), pipeline("ner", ner=["B"]), ["ner"])


def test_components_of_a_pipeline_as_of_a_teacher():
    nlp = pipeline("ner", "parser", "senter", ner=["A"])
    nlp.add_pipe("spancat", config={"spans_key": "x"})
    found = components_of(nlp)
    assert (found["ner"].kind.factory, found["ner"].labels) == ("ner", frozenset("A"))
    assert found["spancat"].kind.place == "spans/x" and found["parser"].labels is None
