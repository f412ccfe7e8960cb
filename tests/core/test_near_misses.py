"""Names that are nearly right, against difflib; and that the table of other libraries' names leads to settings that
there are.
"""

from difflib import get_close_matches
from inspect import signature

import pytest
import spacy
import thinc.api
from hypothesis import given
from hypothesis import strategies as st
from spacy.schemas import ConfigSchemaTraining

from thinc_torchopt.core.near_misses import OF_OTHERS, did_you_mean, near_misses, option_meant, there_are

SETTINGS = [*signature(spacy.registry.get("optimizers", "thinc-torchopt.TorchOptimizer.v1")).parameters]
ALGORITHMS = ["torch.Adam.v1", "torch.AdamW.v1", "torch.Adamax.v1", "torch.NAdam.v1", "torch.Muon.v1", "torch.SGD.v1"]


@given(name=st.sampled_from(SETTINGS), at=st.integers(0, 40), slip=st.sampled_from(["swap", "drop", "double", "upper"]))
def test_near_misses_find_a_name_with_a_slip(name, at, slip):
    """difflib's nearest one is among them, however it is spelled."""
    at %= len(name) - 1
    found = {
        "swap": name[:at] + name[at + 1] + name[at] + name[at + 2 :],
        "drop": name[:at] + name[at + 1 :],
        "double": name[: at + 1] + name[at:],
        "upper": name.upper(),
    }[slip]
    assert name in near_misses(found, SETTINGS)
    assert {*get_close_matches(found, SETTINGS, n=1)} <= {*near_misses(found, SETTINGS)}


@given(found=st.text(max_size=200), known=st.lists(st.text(max_size=30), max_size=8))
def test_near_misses_take_any_text(found, known):
    near = near_misses(found, known)
    assert len(near) <= 3 and len(set(near)) == len(near) and set(near) <= set(known)
    assert (did_you_mean(found, known) == "") == (near == [])


@pytest.mark.parametrize("found", ["AdamW", "adamw", "torch.adamw", "torch.optim.AdamW", "torch.AdamW.v2"])
def test_near_misses_know_what_names_in_registries_are_called(found):
    assert near_misses(found, ALGORITHMS)[0] == "torch.AdamW.v1"


def test_did_you_mean_is_one_sentence():
    assert did_you_mean("zzz", ALGORITHMS) == ""
    assert did_you_mean("torch.Mon.v1", ALGORITHMS) == " Did you mean 'torch.Muon.v1'?"
    assert did_you_mean("abcx", ["abca", "abcb", "abcc"]) == " Did you mean 'abcc'?"
    assert did_you_mean("lr", SETTINGS, is_setting=True) == " Did you mean 'learn_rate'?"
    assert (
        did_you_mean("lr", ["weight_decay"], is_setting=True) == " Did you mean 'learn_rate' in [training.optimizer]?"
    )
    assert did_you_mean("lr", ["weight_decay"]) == ""
    assert did_you_mean("decay", ["weight_decays", "decays"], is_setting=True) == " Did you mean 'decays'?"
    assert "'weight_decay' in [" in did_you_mean("weight_decay", ["weight_decays"], is_setting=True)


def test_there_are_lists_up_to_thirty_names():
    assert there_are("ba") == " There are: a, b."
    assert [bool(there_are(map(str, range(n)))) for n in (0, 1, 30, 31)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--device", " Did you mean '--gpu-id'?"),
        ("--lr", " Did you mean '--training.optimizer.learn_rate'?"),
        ("--warmup-steps", " Did you mean 'warmup_steps' in [training.optimizer.learn_rate], with @schedules ="),
        ("--outputs", " Did you mean '--output'?"),
        ("--max-step", " Did you mean '--training.max_steps'?"),
        ("--zzz", ""),
    ],
)
def test_option_meant_may_be_a_setting_of_the_config(option, said):
    assert option_meant(option, ["--output", "--gpu-id"]).startswith(said) and (said or not option_meant(option, []))


@pytest.mark.parametrize("name", OF_OTHERS)
def test_table_of_others_leads_to_settings_that_there_are(name):
    ours = OF_OTHERS[name]
    there_are = {
        "[training.batcher]": [*signature(spacy.registry.get("batchers", "spacy.batch_by_words.v1")).parameters],
        "[training]": [*ConfigSchemaTraining.model_fields],
        "[training.optimizer]": SETTINGS,
        "[training.optimizer.learn_rate]": [
            "@schedules",
            *signature(spacy.registry.get("schedules", "thinc-torchopt.warmup_linear.v1")).parameters,
        ],
        "[training.optimizer.algorithm]": [
            "@torch_optimizers",
            *(
                option
                for algorithm in ("torch.AdamW.v1", "torch.SGD.v1")
                for option in signature(spacy.registry.get("torch_optimizers", algorithm)).parameters
            ),
        ],
    }
    assert ours.name in there_are[ours.section]


@pytest.mark.parametrize("name", ["Adam", "RAdam", "SGD"])
def test_all_of_thincs_settings_are_answered(name):
    for setting in signature(getattr(thinc.api, name)).parameters:
        assert setting in SETTINGS or did_you_mean(setting, SETTINGS, is_setting=True)
