"""`spacy torchopt checkpoint` of folders without checkpoints, and of a damaged one."""

import pytest

from thinc_torchopt.cli.checkpoint import checkpoint

from ..addons.streams.streams import learn, load, make_model, write_stream


@pytest.fixture
def told(capsys):
    """What the command tells of a folder before it ends with an error."""

    def told(path):
        with pytest.raises(SystemExit):
            checkpoint(path, as_json=True)
        return capsys.readouterr().err

    return told


def test_checkpoint_names_other_states(told, tmp_path):
    model = make_model(tmp_path / "model", ["tagger"])
    learn(model, write_stream(tmp_path / "stream.jsonl", 1), tmp_path / "out")
    assert "found the state of spacy torchopt learn. It is undamaged" in told(tmp_path / "out" / "state")
    nlp, optimizer = load(model)
    optimizer.initialize(nlp)
    optimizer.to_disk(tmp_path / "optimizer")
    assert "found another state. It is undamaged" in told(tmp_path / "optimizer")


def test_checkpoint_names_folders_near_by(told, tmp_path):
    for path in ("out/state/step-00000005", "out/state/best", "out/model-last"):
        (tmp_path / path).mkdir(parents=True)
    state = tmp_path / "out" / "state"
    assert f"Give the folder that has some: {state}." in told(state.parent)
    assert f"Give the folder that has some: {state}." in told(state / "best")
    assert "Give that of 'path' in [training.optimizer.checkpoint]" in told(tmp_path / "out" / "model-last")
    assert "Start the training again." in told(state)
    assert "Look at the others in its folder." in told(state / "step-00000005")
