"""The noise of private updates: the same if an update is repeated exactly, and otherwise independent."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Sequence
from typing import Any

import numpy
import torch
from spacy.language import Language
from spacy.pipeline import (
    DependencyParser,
    EditTreeLemmatizer,
    EntityRecognizer,
    Morphologizer,
    SentenceRecognizer,
    Tagger,
    TextCategorizer,
    Tok2Vec,
)
from spacy.pipeline.textcat_multilabel import MultiLabel_TextCategorizer
from thinc.api import Model, torch2xp, xp2torch
from torch import Tensor

from ...core.errors import ParamError, StateError
from ...core.types import Key
from ...loop.components import is_trained

# A node, and a name of one of its params.
Slot = tuple[Model[Any, Any], str]
# Classes, and not what is derived from them: an update of its own may mix examples.
SEPARABLE = (
    *(EditTreeLemmatizer, Morphologizer, MultiLabel_TextCategorizer, SentenceRecognizer, Tagger, TextCategorizer),
    Tok2Vec,
)
_TRANSITION_BASED = (
    "its gradient for missing features comes from the last token of the batch (thinc's precomputable_affine), and it "
    "drops units at random also with a dropout of 0, so that the parts of a batch are not those of its examples"
)


def models_of(nlp: Language, exclude: Collection[str] = ()) -> list[Model[Any, Any]]:
    """The models of the trained components.

    RAISES (ParamError): A component mixes the examples of a batch, or may do so.
    """
    found = []
    for name, proc in nlp.pipeline:
        if name in exclude or not is_trained(proc) or not isinstance(proc.model, Model):  # type: ignore[attr-defined]
            continue
        if type(proc) not in SEPARABLE:
            is_known = isinstance(proc, (DependencyParser, EntityRecognizer))
            reason = _TRANSITION_BASED if is_known else "nothing is known about how its update treats a batch"
            raise ParamError(
                f"Can't clip the gradient of each example for component '{name}' ({type(proc).__name__}): {reason}. "
                "Freeze it (frozen_components), or train it without privacy."
            )
        found.append(proc.model)  # type: ignore[attr-defined]
    return found


def add_grad(slot: Slot, values: Tensor) -> None:
    """Add to a gradient. values (Tensor): As many numbers as the param has, in its order."""
    node, name = slot
    node.inc_grad(name, torch2xp(values.reshape(node.get_param(name).shape)))  # type: ignore[arg-type]


def slots_of(nlp: Language, exclude: Collection[str], frozen: Collection[Key]) -> list[Slot]:
    """All params that are trained, each once."""
    nodes = [node for model in models_of(nlp, exclude) for node in model.walk()]
    found = {(node.id, name): (node, name) for node in nodes for name in node.param_names if node.has_param(name)}
    return [slot for key, slot in found.items() if key not in frozen]


class Noise:
    """Adds Gaussian noise to sums of clipped gradients.

    The generator of each update is seeded by a hash of a secret, and of all that may tell this update from another one:
    its number, the settings, the data, the sums, and the params at which they were computed. So an update that is
    repeated exactly, as after a crash, gets the very same noise, and shows nothing new. Any other gets noise of its
    own, also in a second run from the same checkpoint: with the noise of the first one, the difference of the two would
    be sums of gradients with no noise, or with little.

    The params are a part, as equal sums may belong to different updates: those of empty batches are all 0, and equal
    noise would tell that they are. So is all of the data, and not what was drawn of it: otherwise the first update that
    differs would tell when an example was drawn that was changed in between.

    seed (int | None): None: the secret is from the system's source of randomness.
    """

    def __init__(self, seed: int | None):
        self._secret = secrets.token_bytes(32) if seed is None else hashlib.sha256(f"{seed}".encode()).digest()

    @torch.no_grad()
    def add(
        self,
        nlp: Language,
        exclude: Collection[str],
        frozen: Collection[Key],
        *,
        std: float,
        divide_by: float,
        about: tuple[object, ...] = (),
    ) -> None:
        """Add noise to the gradient of each param that is trained, and divide it. One without a gradient gets noise.

        std (float): The standard deviation of the noise. 0: none.
        divide_by (float): The number by which the sum with its noise is divided.
        about (tuple): As for `add_to`.
        """
        params, grads = [], []
        for slot in slots_of(nlp, exclude, frozen):
            node, name = slot
            params.append(xp2torch(node.get_param(name)))
            if not node.has_grad(name):
                add_grad(slot, torch.zeros_like(params[-1]))
            grads.append(xp2torch(node.get_grad(name)))
        if std:
            self.add_to(grads, params, std, about=(*about, divide_by))
        for grad in grads:
            grad.div_(divide_by)

    @torch.no_grad()
    def add_to(
        self, sums: Sequence[torch.Tensor], params: Sequence[torch.Tensor], std: float, *, about: tuple[object, ...]
    ) -> None:
        """Add noise to the sums of one update, in place.

        params (Sequence[Tensor]): The params at which they were computed.
        std (float): The standard deviation of the noise.
        about (tuple): The number of the update, and all else on which it depends. Its repr must be equal in every
            process.
        """
        shapes = [tuple(one.shape) for one in (*sums, *params)]
        seed = hashlib.blake2b(repr((about, std, shapes)).encode("utf8"), key=self._secret, digest_size=32)
        for one in (*sums, *params):
            seed.update(one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        # On the CPU, so that all machines draw the same. torch's generator would take 32 bits of the seed, which can be
        # found by trying.
        generator = numpy.random.Generator(numpy.random.SFC64(int.from_bytes(seed.digest(), "big")))
        for one in sums:
            drawn = torch.from_numpy(generator.standard_normal(one.numel(), dtype="float32"))
            one.add_(drawn.reshape(one.shape).to(one), alpha=std)

    @property
    def secret(self) -> str:
        """The secret, for saving: whoever has it can remove the noise. RAISES (StateError): Set to another text."""
        return self._secret.hex()

    @secret.setter
    def secret(self, secret: str) -> None:
        if not re.fullmatch("[0-9a-f]{64}", secret):
            raise StateError("Can't load the state of the private training: the secret of its noise is damaged.")
        self._secret = bytes.fromhex(secret)
