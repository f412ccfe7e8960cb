"""`spacy torchopt init`: what is around the optimizer stays to the last byte, and what comes out trains as the config
meant.
"""

import math
import os
import stat
from collections import Counter
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from unittest.mock import ANY, Mock

import numpy
import pytest
import spacy
from confection import Config
from spacy.cli.init_config import init_config as spacys
from spacy.language import Language
from spacy.pipeline.tok2vec import DEFAULT_TOK2VEC_MODEL, Tok2Vec
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.util import load_model_from_config
from thinc.api import Optimizer

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.fine_tuning import transformers_of
from thinc_torchopt.addons.recipes.corpora import MOST_EPOCHS, find_end
from thinc_torchopt.addons.recipes.recipes import Recipe
from thinc_torchopt.addons.recipes.rewrite import rewrite, with_fast_products
from thinc_torchopt.core.errors import ConfigError

from ..conftest import CONFIGS, HAS_MUON
from ..models import pipeline_params, toy_examples
from ..peek import as_thincs, decay_of, option_of
from ..spacy_cli import QUICK, flags_of, spacy_cli, toy_corpus

ALL = list(Recipe)
# The recipe best has a rate and an end of its own.
KEEPING = [recipe for recipe in ALL if recipe != Recipe.best]

# As somebody wrote it: comments, variables, an order of its own, subsections far from their parent, both kinds of
# delimiters.
OWN = """# My config.
[paths]
train = null
dev = null

[system]
seed = 0
gpu_allocator = null

[vars]
beta = 0.8
decay = 0.02
steps = 30

[nlp]
lang = "en"
pipeline = ["tok2vec","tagger"]\x20\x20

[components]

[components.tok2vec]
factory = "tok2vec"

[components.tagger]
factory = "tagger"

[components.tagger.model]
@architectures = "spacy.Tagger.v2"

[components.tagger.model.tok2vec]
@architectures = "spacy.Tok2VecListener.v1"
width = 96

[corpora]

[corpora.train]
@readers = "spacy.Corpus.v1"
path = ${paths.train}

[corpora.dev]
@readers = "spacy.Corpus.v1"
path = ${paths.dev}

[training]
seed = ${system.seed}
gpu_allocator: ${system.gpu_allocator}
max_steps = 30
# how often
eval_frequency = 10

# The optimizer of our dreams.
[training.optimizer]
# ours was Adam for years
@optimizers = "Adam.v1"
beta1=${vars.beta}
beta2 = 0.99
; strong, on purpose
L2 = ${vars.decay}
grad_clip: 0.5
# use_averages = true

# Batches, small ones.
[training.batcher]
@batchers = "spacy.batch_by_words.v1"
size = 40

# The schedule.
[training.optimizer.learn_rate]
@schedules = "warmup_linear.v1"
# a tenth
warmup_steps = 3
total_steps = ${vars.steps}
initial_rate = 0.01

# The end.
[initialize]
vectors = null
"""


def given(text):
    """A config as confection reads it, without its optimizer."""
    config = Config().from_str(text, interpolate=False)
    config["training"].pop("optimizer", None)
    return config


def block_of(text):
    return Config().from_str(text)["training"]["optimizer"]


def resolved(text):
    """The optimizer of a config, filled in as spaCy does."""
    config = Config(spacy.language.DEFAULT_CONFIG).merge(Config().from_str(text))
    return spacy.registry.resolve({"optimizer": config.interpolate()["training"]["optimizer"]})["optimizer"]


def run(text, recipe, tmp_path, **more):
    overrides = {"paths.train": str(toy_corpus(tmp_path)["train"])} if recipe == "best" else {}
    return rewrite(text, tmp_path / "config.cfg", Recipe(recipe), overrides | more)


def with_optimizer(block):
    """OWN with another optimizer, which may be none."""
    before, _, rest = OWN.partition("# The optimizer of our dreams.")
    batcher = "# Batches" + rest.partition("# Batches")[2].partition("# The schedule.")[0]
    return f"{before}{block}{batcher}# The end.\n[initialize]\nvectors = null\n"


def outside(text):
    """The lines that are not of the optimizer, by the plainest of readings."""
    kept, inside, comments = [], False, []
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            inside = line.startswith("[training.optimizer")
            kept += [] if inside else comments
        # Those right above a header are its own.
        comments = [*comments, line] if inside and line.startswith("#") else []
        if not inside and line.strip():
            kept.append(line)
    return kept


# ---------------------------------------------------------------------- the text


@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("recipe", KEEPING, ids=lambda recipe: recipe.value)
def test_init_leaves_all_else_as_it_was(recipe, ending, tmp_path):
    text = OWN.replace("\n", ending)
    _, new = run(text, recipe, tmp_path)
    gone = Counter(line.strip() for line in text.splitlines()) - Counter(line.strip() for line in new.splitlines())
    assert all(line.startswith(("@optimizers", "beta", "L2")) or not line for line in gone), gone
    assert outside(new) == outside(text)
    for comment in (line for line in OWN.splitlines() if line.startswith(("#", ";"))):
        assert comment in new.splitlines(), comment
    assert given(new) == given(text)
    assert new.count("\n") == new.count(ending)
    for line in OWN.split("# The optimizer of our dreams.")[0].splitlines():
        assert line + ending in new
    assert f"# The optimizer of our dreams.{ending}[training.optimizer]" in new
    assert new.endswith(f"# The end.{ending}[initialize]{ending}vectors = null{ending}")


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.value)
def test_init_twice_is_as_once(recipe, tmp_path):
    _, once = run(OWN, recipe, tmp_path)
    draft, twice = run(once, recipe, tmp_path)
    assert twice == once and draft.changes


# ---------------------------------------------------------------------- what it means


def test_init_writes_down_what_spacy_fills_in(tmp_path):
    """spaCy's defaults for Adam.v1 are not those of the function, and are for Adam.v1 alone."""
    text = with_optimizer('[training.optimizer]\n@optimizers = "Adam.v1"\n\n')
    theirs = resolved(text)
    assert theirs.L2 == 0.01 and theirs.averages is None
    for recipe in ("drop-in", "fine-tune"):
        ours = resolved(run(text, recipe, tmp_path)[1])
        assert isinstance(ours, TorchOptimizer)
        assert as_thincs(ours) == as_thincs(theirs) and ours.grad_clip == theirs.grad_clip
        ours_settings = spacy.registry.fill({"optimizer": block_of(run(text, recipe, tmp_path)[1])})["optimizer"]
        assert ours_settings["use_averages"] is False


@pytest.mark.parametrize("kind", ["Adam.v1", "RAdam.v1", "SGD.v1"])
@pytest.mark.parametrize(
    "recipe", [recipe for recipe in KEEPING if recipe != Recipe.fine_tune], ids=lambda recipe: recipe.value
)
def test_init_carries_over_what_functions_fill_in(recipe, kind, tmp_path):
    """thinc's RAdam and SGD keep averages if nobody says otherwise; TorchOptimizer doesn't."""
    text = with_optimizer(f'[training.optimizer]\n@optimizers = "{kind}"\nlearn_rate = 0.004\n\n')
    theirs, ours = resolved(text), resolved(run(text, recipe, tmp_path)[1])
    assert (ours.learn_rate, decay_of(ours)) == (theirs.learn_rate, theirs.L2)
    filled = spacy.registry.fill({"optimizer": block_of(run(text, recipe, tmp_path)[1])})["optimizer"]
    assert filled["use_averages"] is (recipe == Recipe.robust or theirs.averages is not None)


@pytest.mark.parametrize("recipe", KEEPING, ids=lambda recipe: recipe.value)
def test_init_carries_over_schedules_and_variables(recipe, tmp_path):
    _, new = run(OWN, recipe, tmp_path)
    theirs, ours = resolved(OWN), resolved(new)
    rates = []
    for optimizer in (theirs, ours):
        rates.append([])
        for _ in range(35):
            rates[-1].append(optimizer.learn_rate)
            optimizer.step_schedules()
    assert rates[0] == rates[1] and max(rates[0]) == 0.01
    assert ours.grad_clip == 0.5 and decay_of(ours) == 0.02
    assert "${vars.decay}" in new and "${vars.steps}" in new
    assert "${vars.beta}" in new and option_of(ours, "betas") == (0.8, 0.99)


SCHEDULED = """[training.optimizer]
@optimizers = "Adam.v1"
beta2 = 0.99
eps = ${beta2}
learn_rate = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]

[training.optimizer.beta1]
@schedules = "decaying.v1"
base_rate = 0.9
decay = 0.1

[training.optimizer.L2]
@schedules = "compounding.v1"
start = 0.1
stop = 0.2
compound = 1.1

"""


def test_init_moves_schedules_to_the_algorithm(tmp_path):
    text = with_optimizer(SCHEDULED)
    theirs, ours = resolved(text), resolved(run(text, "fine-tune", tmp_path)[1])
    for _ in range(5):
        assert as_thincs(ours) == as_thincs(theirs)
        theirs.step_schedules()
        ours.step_schedules()


def test_init_drop_in_trains_as_thinc(tmp_path):
    """Up to rounding, which is another in torch's kernel: Adam makes a step of 1% of a gradient that is nothing but
    rounding.
    """
    corpus = toy_corpus(tmp_path)
    for recipe in (None, "drop-in"):
        text = OWN if recipe is None else run(OWN, recipe, tmp_path)[1]
        overrides = {f"paths.{name}": str(corpus[name]) for name in ("train", "dev")}
        nlp = init_nlp(Config().from_str(text, interpolate=False, overrides=overrides))
        optimizer, examples = resolved(text), toy_examples(nlp)
        assert isinstance(optimizer, TorchOptimizer) is (recipe is not None) and isinstance(optimizer, Optimizer)
        begin = pipeline_params(nlp)
        for _ in range(8):
            nlp.update(examples, sgd=optimizer)
            optimizer.step_schedules()
        found = pipeline_params(nlp)
        if recipe is None:
            expected = found
            assert any((a - b).abs().max() > 0.01 for a, b in zip(begin["tagger"], found["tagger"]))
    for name in expected:
        for a, b in zip(expected[name], found[name]):
            difference = (a - b).abs().numpy()
            assert difference.max() < 1e-3 and numpy.quantile(difference, 0.999) < 1e-5


# ---------------------------------------------------------------------- fine-tune


class Transformer(Tok2Vec):
    """A pretrained encoder, as a recipe sees it: by this name."""


@Language.factory("test-init-transformer", default_config={"model": DEFAULT_TOK2VEC_MODEL})
def make_transformer(nlp, name, model):
    return Transformer(nlp.vocab, model, name)


ENCODED = with_optimizer("{}").replace('factory = "tok2vec"', 'factory = "test-init-transformer"')


# ---------------------------------------------------------------------- a config that has ours


def test_init_keeps_the_algorithms_of_blocks(tmp_path):
    if not HAS_MUON:
        pytest.skip("this torch has no Muon")
    text = (CONFIGS / "muon.cfg").read_text()
    draft, new = run(text, "best", tmp_path)
    assert block_of(new)["param_groups"] == block_of(text)["param_groups"]
    said = "[training.optimizer.param_groups.embeddings_and_heads] keeps its own algorithm, torch.AdamW.v1."
    assert said in draft.changes


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("block", "recipe", "said"),
    [
        (
            '[training.optimizer]\n@optimizers = "my.Adam.v7"\n\n',
            "fine-tune",
            'found "my.Adam.v7". Its settings are not known',
        ),
        ('[training.optimizer]\n@optimizers = "Adam.v1"\nbeta3 = 1\n\n', "fine-tune", "found beta3. Correct or remove"),
        (
            '[training.optimizer]\n@optimizers = "thinc-torchopt.TorchOptimizer.v1"\n\n'
            '[training.optimizer.algorithm]\n@torch_optimizers = "torch.SGD.v1"\n\n',
            "drop-in",
            "Use another one, which keeps its settings: best, fine-tune, robust.",
        ),
        (
            '[training.optimizer]\n@optimizers = "thinc-torchopt.TorchOptimizer.v1"\n\n'
            "[training.optimizer.algorithm]\n@torch_optimizers = "
            '"torch.SGD.v1"\n\n[training.optimizer.layer_decay]\ntok2vec/* = 0.9\n\n',
            "fine-tune",
            "the config already has [training.optimizer.layer_decay]. Change the rates there",
        ),
        ('[training.optimizer]\n@optimizers = "Adam.v1"\nlearn_rate = -1.0\n\n', "fine-tune", "Can't set 'learn_rate'"),
    ],
    ids=["not thinc's", "no setting", "ours", "has groups", "bad value"],
)
def test_init_refuses(block, recipe, said, tmp_path):
    with pytest.raises(ConfigError) as error:
        run(with_optimizer(block), recipe, tmp_path)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "reference",
    [
        pytest.param(
            "${training.optimizer.beta2}",
            marks=pytest.mark.skipif(
                version("confection") in ("1.3.2", "1.3.3"), reason="this confection refuses to read such a config"
            ),
        ),
        "${training.optimizer.use_averages}",
    ],
)
def test_init_refuses_to_break_variables(reference, tmp_path):
    text = OWN.replace("steps = 30", f"steps = 30\nmine = {reference}").replace(
        "grad_clip: 0.5", "grad_clip: 0.5\nuse_averages = false"
    )
    with pytest.raises(ConfigError, match="a variable elsewhere refers to a setting there"):
        run(text, "robust", tmp_path)
    run(text, "drop-in", tmp_path)


def test_init_refuses_an_optimizer_that_is_no_section(tmp_path):
    text = with_optimizer("").replace("max_steps = 30", 'max_steps = 30\noptimizer = {"@optimizers": "Adam.v1"}')
    with pytest.raises(ConfigError, match=r"expected a section \[training.optimizer\], found a value"):
        run(text, "fine-tune", tmp_path)


def test_init_replaces_a_file_whole_or_not_at_all(tmp_path, monkeypatch):
    path, link = tmp_path / "own.cfg", tmp_path / "link.cfg"
    path.write_text(OWN)
    path.chmod(0o640)
    link.symlink_to(path)

    command = ("torchopt", "init", link, link, "--recipe", "fine-tune")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", Mock(side_effect=OSError("No space left on device")))
        run = spacy_cli(*command, check=False)
    assert run.returncode == 1 and "Can't write" in run.stderr
    assert path.read_text() == OWN and sorted(tmp_path.iterdir()) == [link, path]
    spacy_cli(*command)
    assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert block_of(path.read_text())["algorithm"]["@torch_optimizers"] == "torch.AdamW.v1"
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_init_to_stdout_prints_the_config_alone(tmp_path):
    (tmp_path / "own.cfg").write_text(OWN)
    found = spacy_cli("torchopt", "init", tmp_path / "own.cfg", "-", "--recipe", "fine-tune")
    assert found.stdout == with_fast_products(run(OWN, "fine-tune", tmp_path)[1])[0]
    assert "\nWarning: Nothing that learns here was trained before" in found.stderr


def test_init_writes_fast_products(tmp_path):
    """For a CPU, and where the config has no value of its own."""
    path, new = tmp_path / "own.cfg", tmp_path / "new.cfg"
    path.write_text(OWN)
    told = spacy_cli("torchopt", "init", path, new, "--recipe", "fine-tune").stdout
    assert block_of(new.read_text())["ops"] == "fastest" and '- ops = "fastest": matrix products by' in told
    assert outside(new.read_text()) == outside(OWN)
    new.write_text(new.read_text().replace('"fastest"', '"thinc"'))
    told = spacy_cli("torchopt", "init", new, new, "--recipe", "robust").stdout
    assert block_of(new.read_text())["ops"] == "thinc" and "ops" not in told
    told = spacy_cli("torchopt", "init", path, new, "--recipe", "drop-in").stdout
    assert block_of(new.read_text())["ops"] == "fastest" and '- ops = "fastest": matrix products by' in told
    spacy_cli("torchopt", "init", path, new, "--recipe", "fine-tune", "--system.gpu_allocator", "pytorch")
    assert "ops" not in block_of(new.read_text())


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize(
    ("recipe", "pipeline"),
    [("best", "tagger"), ("drop-in", "tagger,ner"), ("fine-tune", "textcat"), ("robust", "ner")],
    ids=[recipe.value for recipe in ALL],
)
def test_init_trains(recipe, pipeline, tmp_path, corpus):
    """What `spacy init config` writes, rewritten in place, and trained by `spacy train`."""
    from spacy.cli.train import train

    path = tmp_path / "config.cfg"
    path.write_text(spacys(lang="en", pipeline=pipeline.split(",")).to_str())
    overrides = {f"paths.{name}": str(corpus[name]) for name in ("train", "dev")}
    if "textcat" not in pipeline:
        overrides["components.tok2vec.model.encode.width"] = 16
    _, new = rewrite(path.read_text(), path, Recipe(recipe), overrides)
    path.write_text(new)
    # Of the recipe best the first 20 steps are the warm-up.
    quick = {"training.max_steps": 21, "training.eval_frequency": 21} if recipe == "best" else QUICK
    train(path, tmp_path / "out", overrides={**overrides, **{k: v for k, v in quick.items() if "batcher" not in k}})
    nlp = spacy.load(tmp_path / "out" / "model-last")
    assert set(pipeline.split(",")) <= set(nlp.pipe_names)
    assert (tmp_path / "out" / "state").is_dir() is (recipe == "robust")
    assert list(islice(pipeline_params(nlp), 1))


# ---------------------------------------------------------------------- best


CORPUS = {"max_length": 0, "gold_preproc": False, "limit": 0, "augmenter": None}
TEN = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def texts_in(folder, annotate=lambda number, doc: None, *, words=TEN, n=100):
    """Write texts. annotate (Callable): Gets the number of each, and it. RETURNS: The file, and a blank pipeline."""
    nlp = spacy.blank("en")
    docs = [Doc(nlp.vocab, words) for _ in range(n)]
    for number, doc in enumerate(docs):
        annotate(number, doc)
    DocBin(docs=docs).to_disk(folder / "train.spacy")
    return str(folder / "train.spacy"), nlp


def put_spans(number, doc, spans, key="sc"):
    """Its part of so many spans in 100 texts."""
    n = spans // 100 + (number < spans % 100)
    doc.spans[key] = [Span(doc, at, at + 1, label="X") for at in range(n)]


def put_categories(number, doc, tagged=0):
    """Two categories; and tags in the first of the texts."""
    doc.cats = {"A": number % 2, "B": 1 - number % 2}
    for token in doc if number < tagged else ():
        token.tag_ = token.text


def best_of(pipeline, path, *, change=lambda config: None, **settings):
    """spaCy's config for a pipeline, rewritten by the recipe best: the draft, what it says, and the text."""
    config = spacys(lang="en", pipeline=pipeline, **settings)
    config["paths"] |= {"train": path, "vectors": None}
    change(config)
    draft, new = rewrite(config.to_str(), Path(path).with_name("config.cfg"), Recipe.best)
    return draft, " ".join(draft.changes), new


def test_init_best_sets_rate_and_end(tmp_path):
    draft, new = run(OWN, "best", tmp_path)
    block, training = block_of(new), Config().from_str(new)["training"]
    optimizer, told = resolved(new), " ".join(draft.changes)
    steps, every = training["max_steps"], training["eval_frequency"]
    assert (training["patience"], training["max_epochs"]) == (0, 0)
    assert steps % every == 0 and f"max_steps = {steps}" in told and "patience = 0" in told
    assert f"learn_rate: up to {block['learn_rate']['initial_rate']:.3g}, for" in told
    assert "rises in 150 steps, 25% of the training" in told and "averages: of about 30 updates, 5% of" in told
    optimizer.set_total_steps(steps + 1)  # as the training loop does: spaCy counts from 0, and stops after max_steps
    rates = []
    for _ in range(steps + 2):
        rates.append(optimizer.learn_rate)
        optimizer.step_schedules()
    assert rates[-1] == 0.0 and min(rates[:-1]) > 0.0
    assert max(rates) == pytest.approx(block["learn_rate"]["initial_rate"]) == rates[150]


def best_for(factory, spans, folder):
    """The config's text, the learning rate and the words of `init` for 100 texts of 10 words with so many spans."""
    path, _ = texts_in(folder, partial(put_spans, spans=spans))
    _, told, new = best_of([factory], path)
    return new, block_of(new)["learn_rate"]["initial_rate"], told


@pytest.mark.parametrize("spans", [1, 100, 150, 399, 400])
def test_init_best_shows_rare_spans_often_enough(spans, tmp_path, monkeypatch):
    monkeypatch.setattr("thinc_torchopt.addons.recipes.corpora.SPANS_SEEN", 2_000)
    config = Config().from_str(best_for("spancat", spans, tmp_path)[0])
    end = find_end(load_model_from_config(config, auto_fill=True), 20)  # two texts a batch: an epoch has 50 steps
    epochs = min(max(-(-2_000 // spans), 12), 20)  # 12: at least 600 steps
    assert 0 <= end.steps - epochs * 50 < end.eval_every
    assert end.words == 20 and end.spans == pytest.approx(spans / 50)
    assert (f"(more than 5, as {spans:,} spans are few)" in end.reason) is (spans < 400)
    assert spans * epochs >= 2_000 or epochs == MOST_EPOCHS


@pytest.mark.parametrize(
    ("pipeline", "texts", "peak", "epochs", "length"),
    [
        *((["textcat"], 8, 0.002, 5, length) for length in (49, 51, 200, 600)),
        (["textcat_multilabel"], 8, 0.001, 8, 51),
        (["textcat", "textcat_multilabel"], 8, 0.002, 5, 51),
        (["textcat", "tagger"], 0, 0.002, 10, 51),
        (["ner"], 0, 0.002, 5, 600),
        (["ner", "senter"], 0, 0.002, 10, 51),
    ],
)
def test_init_best_shows_a_text_classifier_several_texts_at_once(pipeline, texts, peak, epochs, length, tmp_path):
    """It learns from each text once. What learns from words does not need them. Several labels: at half of the rate. As
    long as something can learn.
    """
    path, _ = texts_in(tmp_path, put_categories, words=["one"] * length)
    draft, told, new = best_of(pipeline, path, optimize="accuracy")
    size = Config().from_str(new)["training"]["batcher"]["size"]
    assert size == max(400, min(texts * length, 4_000))
    assert (" texts. Before" in told) is (size > 400)
    of_batch = min(draft.end.words / 400, draft.end.texts / 8 if texts else math.inf)
    rate = block_of(new)["learn_rate"]["initial_rate"]
    assert rate == pytest.approx(peak * max(of_batch**0.5, 0.5), rel=0.03)
    assert ("several labels" in told) is (pipeline == ["textcat_multilabel"])
    assert f"{epochs} epochs over" in draft.end.reason
    assert draft.end.texts >= min(texts, 400 // length, 4_000 // length) * 0.8


@pytest.mark.parametrize(("tagged", "steps"), [(100, 600), (50, 1200), (25, 2400), (1, 3000)])
def test_init_best_trains_each_component_long_enough(tagged, steps, tmp_path):
    """The fewer words it learns from, the more steps. A bag of words beside a network has a rate of its own."""
    path, _ = texts_in(tmp_path, partial(put_categories, tagged=tagged))
    _, said, new = best_of(["tagger", "textcat"], path)
    training = Config().from_str(new)["training"]
    assert steps <= training["max_steps"] < steps + training["eval_frequency"]
    assert (f"as 'tagger' learns from {tagged}% of the words" in said) is (tagged < 100)
    optimizer = block_of(new)
    assert optimizer["param_groups"] == {"bags": {"params": ["textcat/*"], "lr_scale": ANY}}
    rate = optimizer["learn_rate"]["initial_rate"] * optimizer["param_groups"]["bags"]["lr_scale"]
    assert rate == pytest.approx(0.003, rel=0.03)  # both have two digits
    again, newer = rewrite(new, tmp_path / "config.cfg", Recipe.best)
    assert newer == new and "param_groups: kept" in " ".join(again.changes)


def test_init_best_gives_a_trained_bag_of_words_one_rate(tmp_path):
    """It learns slowly, as all that was trained before, and not at the rate for new ones."""
    path, blank = texts_in(tmp_path, partial(put_categories, tagged=100))
    bag = load_model_from_config(spacys(lang="en", pipeline=["textcat"]), auto_fill=True)
    docs = DocBin().from_disk(path).get_docs(blank.vocab)
    examples = [Example(bag.make_doc(doc.text), doc) for doc in docs]
    bag.initialize(lambda: examples)
    bag.to_disk(tmp_path / "model")
    source = {"textcat": {"source": str(tmp_path / "model")}}
    _, told, new = best_of(
        ["tagger", "textcat", "textcat_multilabel"], path, change=lambda config: config["components"].update(source)
    )
    block = block_of(new)
    params = {name: group["params"] for name, group in block["param_groups"].items()}
    assert params == {"bags": ["textcat_multilabel/*"], "trained": ["textcat/*"]}
    peak = block["learn_rate"]["initial_rate"]
    assert f"New components (tok2vec/*, tagger/*): up to {peak:.3g}, which is learn_rate." in told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("", ""), r"\[corpora.train\]: its path is not set. .* --paths.train train.spacy"),
        (("max_steps = 30", "max_epochs = -1"), r"max_epochs = -1 in .* max_epochs = 0\. .* max_steps, 20,000 here"),
        (("max_steps = 30", "max_steps = 0\nmax_epochs = -1"), "max_steps, which must be set then"),
    ],
)
def test_init_best_needs_a_corpus_with_an_end(change, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        rewrite(OWN.replace(*change), tmp_path / "config.cfg", Recipe.best)
    DocBin().to_disk(tmp_path / "empty.spacy")
    with pytest.raises(ConfigError, match=r"expected texts in \[corpora.train\], found none"):
        rewrite(OWN, tmp_path / "config.cfg", Recipe.best, {"paths.train": str(tmp_path / "empty.spacy")})
    with pytest.raises(ConfigError, match=r"\[corpora.train\]: there is no file or folder '.*none.spacy'"):
        rewrite(OWN, tmp_path / "config.cfg", Recipe.best, {"paths.train": str(tmp_path / "none.spacy")})


def test_init_best_says_what_to_do_with_a_stream(tmp_path):
    """Both ways that the error offers are open: a corpus with an end, and a schedule that ends at max_steps."""
    streamed = OWN.replace("max_steps = 30", "max_steps = 30\nmax_epochs = -1")
    with pytest.raises(ConfigError, match=r"max_epochs = 0\. .*recipe robust.* max_steps, 30 here"):
        run(streamed, "best", tmp_path)
    assert run(streamed.replace("max_epochs = -1", "max_epochs = 0"), "best", tmp_path)
    _, new = run(streamed, "robust", tmp_path)
    config = Config().from_str(new)
    config["training"]["optimizer"]["learn_rate"] = {
        "@schedules": "thinc-torchopt.warmup_linear.v1",
        "initial_rate": 0.01,
        "warmup_ratio": 0.1,
    }
    assert resolved(config.to_str()).spans_training


def test_init_with_several_recipes_tells_of_an_override_once(tmp_path, monkeypatch):
    """The second one finds what the first has written. The command that it shows has the paths that it was given."""
    toy_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("own.cfg").write_text(OWN)
    Path("my train.spacy").symlink_to("train.spacy")
    args = ["--recipe", "best,robust", "--paths.train", "my train.spacy", "--training.max_steps", 9]
    printed = spacy_cli("torchopt", "init", "own.cfg", "my $new.cfg", *args).stdout
    assert printed.count("--training.max_steps") == 1 and "--training.max_steps: not used" in printed
    shown = "explain 'my $new.cfg' --paths.train 'my train.spacy' --paths.dev ./dev.spacy"
    assert printed.splitlines()[-1].endswith(shown)
    # Paths of the config's own need not be given again.
    text = Path("my $new.cfg").read_text().replace("train = null", 'train = "train.spacy"')
    Path("own.cfg").write_text(text.replace("dev = null", 'dev = "dev.spacy"'))
    printed = spacy_cli("torchopt", "init", "own.cfg", "new.cfg", "--recipe", "robust").stdout
    assert printed.splitlines()[-1].endswith("torchopt explain new.cfg")
    # Nor do they if there is no section for them.
    for part in ("train", "dev"):
        text = text.replace(f"${{paths.{part}}}", f"{part}.spacy")
    Path("own.cfg").write_text(text.replace(text[text.index("[paths]") : text.index("[system]")], ""))
    printed = spacy_cli("torchopt", "init", "own.cfg", "new.cfg", "--recipe", "robust").stdout
    assert printed.splitlines()[-1].endswith("torchopt explain new.cfg")


def test_init_best_with_a_transformer(tmp_path):
    _, new = run(ENCODED.replace("{}", ""), "best", tmp_path)
    with pytest.raises(ConfigError, match="Can't use the recipe best: it makes groups of params, and"):
        run(new, "best", tmp_path)
    pytest.importorskip("spacy_transformers", reason="spacy-transformers is not installed")
    text = (CONFIGS / "fine_tuning.cfg").read_text().partition("[training.optimizer]")[0]
    _, new = run(f'{text}[training.optimizer]\n@optimizers = "Adam.v1"\n', "best", tmp_path)
    assert block_of(new)["param_groups"]["encoder"]["params"] == ["transformer/*"]
    assert Config().from_str(new)["training"]["batcher"] == {
        "@batchers": "thinc-torchopt.batch_by_padded_pieces.v1",
        "discard_oversize": True,
        "size": 1250,
        "buffer": 1024,
    }


@pytest.mark.parametrize(("kind", "sizes", "reads"), [
    ("Bert", {"max_position_embeddings": 64}, 64),
    ("Bert", {"max_position_embeddings": 512}, None),
    ("Roberta", {"max_position_embeddings": 66, "pad_token_id": 1}, 64),
])  # fmt: skip
def test_init_best_has_windows_that_the_transformer_can_read(tmp_path, kind, sizes, reads):
    """Oracle: what the loaded model says of itself."""
    transformers = pytest.importorskip("transformers", reason="spacy-transformers is not installed")
    folder, words = tmp_path / "encoder", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    getattr(transformers, f"{kind}Model")(
        getattr(transformers, f"{kind}Config")(**small, **sizes, vocab_size=60)
    ).save_pretrained(folder)
    (tmp_path / "vocab.txt").write_text("\n".join(words + [f"##{one}" for one in words[5:]]))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    text = (CONFIGS / "fine_tuning.cfg").read_text().partition("[training.optimizer]")[0]
    text = f'{text}[training.optimizer]\n@optimizers = "Adam.v1"\n'
    draft, new = run(text, "best", tmp_path, **{"paths.transformer": str(folder)})
    assert block_of(new)["fine_tuning"].get("window_pieces") == reads
    told = [line for line in draft.changes if line.startswith("fine_tuning: ")]
    assert told == [f"fine_tuning: the transformer reads windows of {reads or 128} wordpieces, and loses none."]
    config = Config().from_str(new, overrides={"paths.transformer": str(folder)})
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    nlp.get_pipe("transformer").model.initialize()
    assert transformers_of(nlp)[0].longest_input == (reads or 512)
    draft, new = run(text, "best", tmp_path, **{"paths.transformer": str(tmp_path / "nowhere")})
    assert "window_pieces" not in block_of(new)["fine_tuning"]
    [told] = [line for line in draft.changes if line.startswith("fine_tuning: ")]
    assert "It is not known how many 'transformer' can read" in told


# ---------------------------------------------------------------------- --log


def test_init_log_is_written_by_the_training(tmp_path):
    toy_corpus(tmp_path)
    config, log = tmp_path / "new.cfg", tmp_path / "my log.jsonl"
    run = spacy_cli("torchopt", "init", CONFIGS / "drop_in.cfg", config, "--recipe", "drop-in", "--log", log)
    assert f"torchopt report '{log}'" in " ".join(run.stdout.split())
    paths = ["--paths.train", tmp_path / "train.spacy", "--paths.dev", tmp_path / "dev.spacy"]
    spacy_cli("train", config, *paths, *flags_of(QUICK))
    assert log.read_text().startswith('{"step": 0,')
