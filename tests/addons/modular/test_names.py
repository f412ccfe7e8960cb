"""Modular in a spaCy pipeline: what it knows by lasting names."""

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.modular.registered import ScaffoldClient, create

from ...models import toy_examples, toy_pipeline


def test_names_are_there_after_a_state_was_loaded():
    nlp = toy_pipeline(["tagger"], shared=False)
    examples = toy_examples(nlp)
    optimizer = TorchOptimizer(create(modules={"scaffold": ScaffoldClient()}))
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    names = set(optimizer.params)
    again = TorchOptimizer(create(modules={"scaffold": ScaffoldClient()}))
    again.initialize(nlp)
    again.load_state_dict(optimizer.state_dict())
    nlp.update(examples, sgd=again)
    [modular] = again.torch_optimizers.values()
    assert set(modular.named_params()) == set(modular.collect_aux_var()["scaffold"].delta) == names
