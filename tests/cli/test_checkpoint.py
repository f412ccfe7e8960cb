"""`spacy torchopt checkpoint` of folders without checkpoints, and of a damaged one."""

import pytest

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.cli.checkpoint import checkpoint
from thinc_torchopt.core.algorithms.torch_classes import AdamW

from ..models import toy_examples, toy_pipeline


@pytest.fixture
def told(capsys):
    """What the command tells of a folder before it ends with an error."""

    def told(path):
        with pytest.raises(SystemExit):
            checkpoint(path, as_json=True)
        return capsys.readouterr().err

    return told


def test_checkpoint_refuses_other_folders(told, tmp_path):
    """Also other states, which are not damaged."""
    nlp = toy_pipeline(["tagger"], shared=False)
    optimizer = TorchOptimizer(AdamW())
    nlp.initialize(lambda: toy_examples(nlp), sgd=optimizer)
    optimizer.to_disk(tmp_path / "optimizer")
    for path in (tmp_path, tmp_path / "optimizer"):
        assert "found none in it. Give the folder of 'path' in [training.optimizer.checkpoint]" in told(path)


def test_checkpoint_says_what_helps_if_all_are_damaged(told, tmp_path):
    (tmp_path / "state" / "step-00000005").mkdir(parents=True)
    assert "Start the training again." in told(tmp_path / "state")
    assert "Look at the others in its folder." in told(tmp_path / "state" / "step-00000005")
