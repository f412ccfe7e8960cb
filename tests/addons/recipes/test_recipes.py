"""What each recipe writes, and says of it."""

import math
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import spacy
from thinc.api import Model

from thinc_torchopt.addons.recipes.corpora import End
from thinc_torchopt.addons.recipes.recipes import BEST, _by_pieces, longest_inputs

from .kit import Reader, check, rows


@pytest.mark.parametrize("row", rows("recipes"))
def test_recipes_write(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(row)


@pytest.mark.parametrize(
    ("words", "spans", "texts", "peak"),
    [
        (272.4, math.inf, 8, 0.0017),  # the edge between 0.0016 and 0.0017 is at 272.25: 400 * (0.00165 / 0.002) ** 2
        (400, 12.255, 8, 0.0017),  # 18 * 0.825**2 = 12.25
        (400, math.inf, 5.447, 0.0017),  # 8 * 0.825**2 = 5.445
        (10, 1, 1, 0.001),
        (100_000, math.inf, 500, 0.004),
    ],
)
def test_recipes_best_has_rates_for_batches(words, spans, texts, peak):
    """By the square root of what there is the fewest of, between half and twice of that for 400 words."""
    end = End(600, 60, 0, words, texts, spans, "")
    assert BEST["texts"].peak_for(end) == peak
    assert BEST["bow"].peak_for(end) == 0.003 and BEST["cnn"].peak_for(replace(end, words=400, spans=18)) == 0.002


def test_recipes_ask_files_what_a_transformer_reads(monkeypatch):
    """Those on this machine alone, and no code of others."""
    asked = Mock(return_value=SimpleNamespace(max_position_embeddings=None, model_max_length=77))
    kind = SimpleNamespace(from_pretrained=asked)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoConfig=kind, AutoTokenizer=kind))
    reader = Reader("reader", lambda *_: ..., attrs={"has_transformer": True, "name": "mine"})
    reader.transformer, reader.tokenizer = SimpleNamespace(config=None), None
    nlp = SimpleNamespace(pipeline=[("one", SimpleNamespace(model=reader)), ("other", None)])
    assert longest_inputs(nlp) == {"one": 77}
    assert asked.mock_calls == 2 * [call("mine", local_files_only=True, trust_remote_code=False)]
    for error in (OSError, ValueError, ImportError):
        asked.side_effect = error
        assert longest_inputs(nlp) == {"one": None}


@pytest.mark.parametrize(
    ("block", "longest"),
    [
        ({"max_position_embeddings": 66, "padding_idx": 1, "model_max_length": 99}, 64),
        ({"max_position_embeddings": 66, "padding_idx": 0, "model_max_length": 64}, 64),
        ({"max_position_embeddings": 66}, None),
    ],
)
def test_recipes_ask_the_config_what_a_curated_transformer_reads(block, longest):
    pipe = SimpleNamespace(model=Model("whole", lambda *_: ..., layers=[Model("transformer_model", lambda *_: ...)]))
    nlp = SimpleNamespace(pipeline=[("transformer", pipe)], get_pipe_config=lambda name: {"model": block})
    assert longest_inputs(nlp) == {"transformer": longest}


PADDED = {"@batchers": "spacy.batch_by_padded.v1", "size": 1000, "buffer": 256, "discard_oversize": True}


@pytest.mark.parametrize(("others", "readers", "expected"), [
    ({"get_length": None}, 1, {"discard_oversize": True, "size": 1250, "buffer": 1024}),  # as spaCy fills in
    ({"buffer": 2000, "discard_oversize": False}, 1, {"discard_oversize": False, "size": 1250, "buffer": 2000}),
    ({}, 0, None),
    ({}, 2, None),
    ({"get_length": {"@misc": "own"}}, 1, None),
    ({"@batchers": "spacy.batch_by_sequence.v1"}, 1, None),
    ({"size": {"@schedules": "compounding.v1"}}, 1, None),
    (None, 1, None),
])  # fmt: skip
def test_recipes_batch_by_wordpieces(others, readers, expected):
    """In place of spaCy's batches by padded words alone, for one transformer; a variable stays."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec")
    for number in range(readers):
        nlp.add_pipe("test-recipes-transformer", str(number))
    nlp.config["training"]["batcher"] = "${vars.batcher}" if others is None else PADDED | others
    nlp.config["vars"] = {"batcher": PADDED}
    name = {"@batchers": "thinc-torchopt.batch_by_padded_pieces.v1"}
    assert _by_pieces(nlp) == ({} if expected is None else name | expected)
