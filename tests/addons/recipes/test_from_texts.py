"""Which components texts get, and in which config."""

import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from thinc_torchopt.addons.recipes import (
    blank_pipeline,
    choose_components,
    languages_of,
    make_config,
    notes_on,
    notes_on_language,
)
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.kinds import survey

from ...cli.test_init_texts import text


def spans(key, *lengths):
    """A text of twenty tokens, with spans of these lengths."""
    doc = Doc(spacy.blank("xx").vocab, [f"w{i}" for i in range(20)])
    doc.spans[key] = [Span(doc, 0, length, label=f"L{length}") for length in lengths]
    return doc


def made(choice, found, **settings):
    return make_config(choice, found, **{"lang": "en", "gpu": False, "pretrained": False, **settings})


def test_from_texts_chooses_what_is_on_enough_of_them():
    """On a tenth of the texts of the most common kind, at least. Trees say where sentences start, too."""
    kinds = [*[["entities", "trees"]] * 18, *[["entities", "categories"]] * 2, *[["tags"]] * 2, ["morphology"]]
    docs = [text(i, *of_text) for i, of_text in enumerate(kinds)]
    found = survey(docs)
    choice = choose_components(found)
    assert [component.found for component in choice.components] == [
        "tags on 2 of 23 texts, 5 labels",
        "dependency trees on 18 of 23 texts, 4 labels",
        "entities on 20 of 23 texts, 1 label",
        "categories on 2 of 23 texts, 2 labels",
    ]
    assert [component.name for component in choice.components] == ["tagger", "parser", "ner", "textcat"]
    assert choice.left_out == ["morphological features: on 1 of 23 texts only"]
    assert notes_on(choice, found) == [
        "'tagger': 21 of 23 texts are not annotated for it: it learns nothing there.",
        "'parser': 5 of 23 texts are not annotated for it: it learns nothing there.",
        "'ner': 3 of 23 texts are not annotated for it: it learns nothing there.",
    ]
    docs[0][0].ent_kb_id_ = "Q1"
    (docs[0].cats, docs[1].cats) = {"A": 1.0}, {"A": 0.0}
    told = choose_components(survey(docs[:2]))
    assert told.components[-1].name == "textcat_multilabel"
    linker = "entities with an id of the knowledge base: entity_linker needs the knowledge base itself"
    assert told.left_out[-1] == linker


def test_from_texts_names_each_key_of_spans():
    docs = [spans("sc", 1), spans("sc", 3), spans("a b", 1, 4), spans("a-b", 12), spans("a+b", *[1] * 19, 13)]
    docs += [spans("имена", *[2] * 18, 13), spans(" padded", 1), spans("a:b", 1)]
    found = survey(docs)
    choice = choose_components(found)
    refused = ["spans under the key ' padded'", "spans under the key 'a:b'"]
    assert choice.left_out == [f"{key}: a config can't name the scores of this key" for key in refused]
    config = made(choice, found)
    names = {"sc": "spancat", "a b": "spancat_a_b", "a+b": "spancat_a_b_2", "a-b": "spancat_a_b_3"}
    names["имена"] = "spancat_other"
    assert config["nlp"]["pipeline"] == ["tok2vec", *names.values()]
    blocks = {key: config["components"][name] for key, name in names.items()}
    assert {key: block["spans_key"] for key, block in blocks.items()} == {key: key for key in names}
    sizes = {"sizes": [1, 2, 3], "@misc": "spacy.ngram_suggester.v1"}
    longer = {"a b": 4, "a-b": 12, "имена": 12}  # of "a+b" one in twenty is longer than 1
    for key, block in blocks.items():
        most = {"min_size": 1, "max_size": longer.get(key), "@misc": "spacy.ngram_range_suggester.v1"}
        assert block["suggester"] == (most if key in longer else sizes)
    scores = {f"spans_{key}_{score}": share for key in names for score, share in (("f", 0.2), ("p", 0.0), ("r", 0.0))}
    assert config["training"]["score_weights"] == scores
    told = "'spancat_other' finds spans of up to 12 tokens, and some in the texts have 13 and more."
    assert [note for note in notes_on(choice, found) if "finds" in note] == [told]
    found = survey([spans("own", 1)])
    choice = choose_components(found)
    scores = {f"spans_own_{score}": share for score, share in (("f", 1.0), ("p", 0.0), ("r", 0.0))}
    unused = dict.fromkeys(("spans_sc_f", "spans_sc_p", "spans_sc_r"))
    assert made(choice, found)["training"]["score_weights"] == scores | unused
    assert not notes_on(choice, found)


def test_from_texts_needs_vectors_that_are_there(tmp_path):
    found = survey([text(0, "entities"), text(1, "entities")])
    choice = choose_components(found)
    with pytest.raises(ConfigError, match="no word vectors for the language 'fi'"):
        made(choice, found, lang="fi", pretrained=True)
    for given, name in ((None, "en_core_web_lg"), ("nowhere", "nowhere")):
        with pytest.raises(ConfigError, match=rf"'{name}', which is not installed\. Install it: .* download {name}\."):
            made(choice, found, vectors=given, pretrained=True)
    assert made(choice, found, vectors=str(tmp_path), pretrained=True)["paths"]["vectors"] == str(tmp_path)
    assert made(choice, found, vectors=str(tmp_path))["paths"]["vectors"] is None


def test_from_texts_reads_them_with_a_language():
    like = spacy.blank("en")
    nlp = blank_pipeline("en", {"train": None}, like=like)
    assert "train" in nlp.config["paths"] and nlp.tokenizer is like.tokenizer and nlp.vocab is like.vocab
    assert blank_pipeline("de", {}).lang == "de"
    with pytest.raises(ConfigError, match=r"--lang zz: spaCy has no language of that code\."):
        blank_pipeline("zz", {})
    with pytest.raises(ConfigError, match="--lang ja: its tokenizer says: Japanese support requires"):
        blank_pipeline("ja", {})
    examples = [Example(like.make_doc("a"), like.make_doc("a")) for _ in range(5)]
    for example, lang in zip(examples, ("fi", "sv", "sv", "", 7)):
        example.reference.user_data["lang"] = lang
    assert languages_of(examples) == {"sv": 2, "fi": 1}
    [told] = notes_on_language("fi", examples)
    assert "is for 'fi', but the texts say that they are in 'sv' (2 texts). For several" in told
    assert not notes_on_language("xx", examples) and not notes_on_language("sv", examples[1:])
