"""A trained pipeline to be a teacher, and texts that leave things open."""

import pytest
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from thinc.api import fix_random_seed

from ...models import toy_examples
from .pipelines import small_pipeline, without


@pytest.fixture(scope="session")
def teacher(tmp_path_factory):
    """A pipeline that knows PERSON and CITY, and tags, on disk."""
    folder = tmp_path_factory.mktemp("teacher") / "pipeline"
    fix_random_seed(0)  # whatever other tests have drawn
    nlp = small_pipeline()
    examples = toy_examples(nlp, 30)
    labels = {"tags": ["NNP", "VBZ", "JJ", "NNP", "."], "entities": ["U-PERSON", "O", "O", "U-CITY", "O"]}
    for i in range(0, 50, 5):  # as in raw.txt
        doc = Doc(nlp.vocab, words=["Anna", "likes", str(i), "London", "."])
        examples.append(Example.from_dict(doc, labels))
    sgd = nlp.initialize(lambda: examples)
    sgd.learn_rate = 0.01
    for _ in range(30):
        nlp.update(examples, sgd=sgd)
    assert nlp.evaluate(examples)["ents_f"] == 1.0
    nlp.to_disk(folder)
    return folder


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """train.spacy, in which COLOR alone is annotated and some tags are missing; old.spacy without COLOR; raw.txt."""
    folder = tmp_path_factory.mktemp("texts")
    docs = [example.reference for example in toy_examples(small_pipeline(), 40)]
    DocBin(docs=[without(doc) for doc in docs[:30]]).to_disk(folder / "train.spacy")
    DocBin(docs=docs[30:]).to_disk(folder / "old.spacy")
    (folder / "raw.txt").write_text("".join(f"Anna likes {i} London .\n" for i in range(50)))
    return folder
