"""Pipelines with a small transformer of random weights: of spacy-transformers, and of spacy-curated-transformers with a
RoBERTa. Each package needs a venv of its own: make test-slow, make test-curated.
"""

import importlib.util
import json

import pytest
from confection import Config

from ...runs import config_for

KINDS = {"spacy": "spacy_transformers", "curated": "spacy_curated_transformers"}
LAYERS = 3


def needs(kind):
    name = KINDS[kind]
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name.replace('_', '-')} is not installed")


@pytest.fixture(params=KINDS)
def kind(request):
    needs(request.param)
    return request.param


def write_bert(folder, vocab, *, layers=2):
    """A BERT of random weights that reads letters."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz.,"
    vocab.write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{one}" for one in letters)])
    )
    sizes = {"hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(**sizes, vocab_size=80)).save_pretrained(folder)
    BertTokenizerFast(str(vocab)).save_pretrained(folder)


def write_roberta(folder):
    """The vocabulary of a RoBERTa that reads bytes."""
    from curated_tokenizers import ByteBPEProcessor  # noqa: F401

    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = [chr(one) for one in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *letters, "Ġl", "on", "an"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), "utf8")
    (folder / "merges.txt").write_text("#version: 0.2\nĠ l\no n\na n\n", "utf8")
    return len(pieces)


def components_of(kind, folder, *, layers=LAYERS, dropout=0.1, weighting=False, names=("tagger", "ner"), window=16):
    """RETURNS (dict): Config sections, by dotted path with __. weighting (bool): Listeners mix all layers."""
    if kind == "spacy":
        if not (folder / "bert").exists():
            write_bert(folder / "bert", folder / "vocab.txt", layers=layers)
        model = {
            "@architectures": "spacy-transformers.TransformerModel.v3",
            "name": str(folder / "bert"),
            "get_spans": {"@span_getters": "spacy-transformers.strided_spans.v1", "window": 8, "stride": 6},
            "transformer_config": {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout},
        }
        encoder = {"factory": "transformer", "model": model}
        initialize = {}
        listener = {"@architectures": "spacy-transformers.TransformerListener.v1", "grad_factor": 1.0}
    else:
        pieces = write_roberta(folder / "roberta") if not (folder / "roberta").exists() else 263
        model = {
            "@architectures": "spacy-curated-transformers.RobertaTransformer.v1",
            "vocab_size": pieces,
            "hidden_width": 32,
            "num_hidden_layers": layers,
            "num_attention_heads": 2,
            "intermediate_width": 64,
            "max_position_embeddings": 130,
            "model_max_length": 128,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
            "piece_encoder": {"@architectures": "spacy-curated-transformers.ByteBpeEncoder.v1"},
            "with_spans": {
                "@architectures": "spacy-curated-transformers.WithStridedSpans.v1",
                "window": window,
                "stride": 3 * window // 4,
            },
        }
        encoder = {"factory": "curated_transformer", "model": model, "all_layer_outputs": weighting}
        files = {"vocab_path": folder / "roberta" / "vocab.json", "merges_path": folder / "roberta" / "merges.txt"}
        loader = {"@model_loaders": "spacy-curated-transformers.ByteBpeLoader.v1"}
        initialize = {"transformer": {"piecer_loader": loader | {key: str(path) for key, path in files.items()}}}
        listener = {"@architectures": "spacy-curated-transformers.LastTransformerLayerListener.v1", "width": 32}
        if weighting:
            listener["@architectures"] = "spacy-curated-transformers.ScalarWeightingListener.v1"
            listener["weighting"] = {
                "@architectures": "spacy-curated-transformers.ScalarWeight.v1",
                "num_layers": layers,
            }
    listener["pooling"] = {"@layers": "reduce_mean.v1"}
    parser = {"@architectures": "spacy.TransitionBasedParser.v2", "state_type": "ner", "extra_state_tokens": False}
    parser |= {"hidden_width": 16, "maxout_pieces": 2, "use_upper": False, "nO": None, "tok2vec": listener}
    tagger = {"@architectures": "spacy.Tagger.v2", "nO": None, "tok2vec": listener}
    heads = {
        "tagger": {"factory": "tagger", "model": tagger},
        "ner": {"factory": "ner", "model": parser},
    }
    return {"transformer": encoder, **{name: heads[name] for name in names}}, initialize


def config_with(kind, folder, corpus, *, steps=12, block=None, state="state", settings={}, **how):
    """A config of a training with checkpoints. block (dict): [training.optimizer.fine_tuning]. settings (dict): Others
    of [training.optimizer].
    """
    folder.mkdir(exist_ok=True, parents=True)
    components, initialize = components_of(kind, folder, **how)
    config = Config(config_for(folder, corpus, steps=steps, paths__state=str(folder / state)))
    config["nlp"]["pipeline"] = [*components]
    config["components"] = components
    config["initialize"] = {"components": initialize}
    optimizer = config["training"]["optimizer"]
    if block is not None:
        optimizer["fine_tuning"] = {"@misc": "thinc-torchopt.FineTuning.v1", "window_pieces": None, **block}
    optimizer |= settings
    return config
