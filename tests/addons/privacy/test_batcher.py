import random

import pytest
import spacy

from thinc_torchopt.addons.privacy.private_run import PoissonBatcher, poisson
from thinc_torchopt.core.errors import ConfigError


def test_poisson_takes_each_example_with_the_same_probability():
    random.seed(0)
    batcher = spacy.registry.batchers.get("thinc-torchopt.poisson.v1")(size=5)
    items, counts, together, sizes = list(range(50)), [0] * 50, 0, []
    for _ in range(200):
        for batch in batcher(items):
            assert batch == sorted(set(batch))
            sizes.append(len(batch))
            together += 0 in batch and 1 in batch
            for item in batch:
                counts[item] += 1
    n = len(sizes)
    assert n == 2000 and batcher.sample_rate == 0.1 and batcher.population == 50
    # Five standard deviations of binomial numbers.
    assert all(abs(count - 0.1 * n) < 5 * (0.09 * n) ** 0.5 for count in counts)
    assert abs(together - 0.01 * n) < 5 * (0.0099 * n) ** 0.5  # whether one is in it says nothing of another
    assert min(sizes) < 3 and max(sizes) > 8


def test_poisson_batches_may_be_empty_and_whole(monkeypatch):
    assert [] in list(PoissonBatcher(1)(range(40)))
    assert list(PoissonBatcher(3)("abc")) == [["a", "b", "c"]]
    monkeypatch.setattr(random, "random", lambda: 0.5)  # of numbers below 1
    assert list(PoissonBatcher(1)("ab")) == [[], []]


def test_poisson_refuses_more_than_all():
    assert poisson(4).population == 0
    with pytest.raises(ConfigError, match="at most the number of examples, 3"):
        list(poisson(4)("abc"))
