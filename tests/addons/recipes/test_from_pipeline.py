"""What a trained pipeline has to learn from texts, and the config of that training."""

import pytest
import spacy
from spacy.tokens import Span
from spacy.training import Example

from thinc_torchopt.addons.recipes import make_config_from, plan_for
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.kinds import survey
from thinc_torchopt.loop.new_labels import create_add_labels

from ...cli.test_init_from import bare, colors
from ...models import ready_pipeline, toy_examples


@pytest.mark.parametrize("factory", ["textcat", "textcat_multilabel", "spancat", "morphologizer", "tagger", "parser"])
def test_plan_for_each_component(factory):
    """What is new, and what is open."""
    nlp, examples = ready_pipeline([factory], shared=False, n=40)
    plan = plan_for(nlp, survey(examples), examples)
    assert list(plan.learners) == [factory] and not plan.new and not plan.taught and not plan.frozen
    for i, example in enumerate(examples):
        doc = example.reference
        doc.cats = (
            {"GREEN": float(i % 2)} if factory == "textcat_multilabel" else {"GREEN": 1.0, "RED": 0.0, "BLUE": 0.0}
        )
        doc.spans["sc"] = [Span(doc, 0, 1, label="GREEN")]
        doc[2].tag_, doc[2].pos_, doc[2].dep_ = "GREEN", "ADJ", "green"
        doc[2].set_morph("Case=Nom")
        doc[3].tag_ = doc[3].pos_ = ""
        doc[3].set_morph(None)
    plan = plan_for(nlp, survey(examples), examples)
    new = {"morphologizer": "Case=Nom|POS=ADJ", "parser": "green"}.get(factory, "GREEN")
    assert plan.new == {factory: [new]}
    # An exclusive category says of all others that they are not it; parsers learn whole trees.
    assert plan.taught == ([] if factory in ("textcat", "parser") else [factory])
    assert bool(plan.learners[factory].lost) is (factory == "textcat")


def test_plan_keeps_disabled_components_and_finds_what_annotates():
    nlp, examples = ready_pipeline(["senter", "tagger", "ner"], shared=False, n=10)
    nlp.config["training"]["annotating_components"] = ["tagger"]
    nlp.disable_pipe("senter")
    only = [Example(bare(one.reference), colors(one.reference)) for one in examples]
    plan = plan_for(nlp, survey(only), only)
    assert list(plan.learners) == ["ner"] and plan.frozen == ["senter", "tagger"] and plan.annotating == ["tagger"]


def test_plan_takes_categories_that_no_text_has():
    """The check before the training asks for them, and a new component would be initialized with them."""
    nlp, examples = ready_pipeline(["textcat_multilabel"], n=10)
    for example in examples:
        example.reference.cats = {"GREEN": 0.0}
    plan = plan_for(nlp, survey(one.reference for one in examples), examples)
    assert plan.new == {"textcat_multilabel": ["GREEN"]}


def test_plan_of_two_components_that_find_entities():
    """Both learn from all entities of a text. So only those that know some of its labels are trained."""
    nlp, examples = ready_pipeline(["ner"], shared=False, n=10)
    other = spacy.blank("xx")
    other.add_pipe("ner").add_label("COLOR")
    other.initialize()
    nlp.add_pipe("ner", "colors", source=other)
    examples = [Example(bare(one.reference), colors(one.reference)) for one in examples]
    plan = plan_for(nlp, survey(one.reference for one in examples), examples)
    assert list(plan.learners) == ["colors"] and not plan.new and plan.frozen == ["ner"]
    for example in examples:
        example.reference.set_ents([Span(example.reference, 0, 1, label="NEW")], default="outside")
    with pytest.raises(ConfigError, match="train 'ner' and 'colors' together"):
        plan_for(nlp, survey(one.reference for one in examples), examples)


def test_config_from_adds_the_edit_trees_of_the_texts():
    nlp = spacy.blank("xx")
    nlp.add_pipe("trainable_lemmatizer", config={"min_tree_freq": 1})
    examples = toy_examples(nlp, 10)
    for token in (token for one in examples for token in one.reference):
        token.lemma_ = token.lower_
    nlp.initialize(lambda: examples)
    plan = plan_for(nlp, survey(one.reference for one in examples), examples)
    config = make_config_from(nlp, "old", plan)
    assert config["initialize"]["after_init"]["labels"] == {"trainable_lemmatizer": None} and not plan.new


def test_config_from_keeps_a_callback_of_its_own():
    """Beside the one for new labels, whose own block from before has done its work."""
    nlp, examples = ready_pipeline(["ner"], shared=False, n=10)
    examples = [Example(bare(one.reference), colors(one.reference)) for one in examples]
    plan, own = plan_for(nlp, survey(examples), examples), {"@callbacks": "mine.v1"}
    adding = {"@callbacks": "thinc-torchopt.add_labels.v1", "labels": {"ner": ["COLOR"]}, "callback": own}
    for before in (own, {**adding, "labels": {"ner": ["OLD"]}}):
        nlp.config["initialize"]["after_init"] = before
        assert make_config_from(nlp, "old", plan)["initialize"]["after_init"] == adding
        plan.learners["ner"].new.clear()
        assert make_config_from(nlp, "old", plan)["initialize"]["after_init"] == own
        plan.learners["ner"].new["COLOR"] = 10
    seen = []
    create_add_labels({"ner": ["COLOR"]}, lambda nlp: seen.append([*nlp.get_pipe("ner").labels]) or nlp)(nlp)
    assert seen == [["CITY", "PERSON"]] and "COLOR" in nlp.get_pipe("ner").labels


def test_config_from_counts_no_score_of_a_disabled_component():
    """spaCy fills in the scores that a config does not name, also those of disabled components."""
    nlp, examples = ready_pipeline(["senter", "tagger"], shared=False, n=10)
    nlp.disable_pipe("senter")
    nlp.config["training"]["score_weights"] = {"tag_acc": 2.0, "tag_micro_f": 1.0, "tag_micro_p": None}
    plan = plan_for(nlp, survey(one.reference for one in examples), examples)
    assert list(plan.learners) == ["tagger"]
    found = make_config_from(nlp, "old", plan)["training"]["score_weights"]
    assert (found["tag_acc"], found["tag_micro_f"], found["sents_f"]) == (0.67, 0.33, None)
