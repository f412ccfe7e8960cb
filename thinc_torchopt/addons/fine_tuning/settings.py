"""The settings of a fine-tuning: `thinc-torchopt.FineTuning.v1`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Optional

from ...core.attachments import Attachment
from ...core.checks import Section

_SECTION = Section("[training.optimizer.fine_tuning]")
_ATTENTION = (None, "eager", "sdpa", "flash_attention_2")


@dataclass(kw_only=True)
class FineTuning(Attachment):
    """Train a transformer in less memory. Registered as `thinc-torchopt.FineTuning.v1`.

    For the components of spacy-transformers and of spacy-curated-transformers. It acts in the training and its
    evaluations. The saved pipeline does not need this package.

    window_pieces (int | None): The longest window that the transformer reads, in wordpieces, with those that the model
        puts around it. None: the windows of the component, in words.
    stride_pieces (int | None): The wordpieces from the beginning of a window to the beginning of the next. Windows
        overlap by the rest. From half of `window_pieces` up to all of it. None: three quarters of it.
    max_batch_pieces (int): The most wordpieces that the transformer reads at once, with padding. Windows of similar
        length are read together. At least `window_pieces`.
    gradient_checkpointing (bool | int): Compute layers again in the backward pass, in place of keeping their
        activations: all of them, or a number of those that are trained, from the lowest on.
    freeze_layers (int): The number of lowest layers that are not trained. With one or more, the embeddings are not
        trained either. 0: all are trained.
    attention ("eager" | "sdpa" | "flash_attention_2" | None): How attention is computed. None: as the model does.
    RAISES (ConfigError): An argument is out of its range.
    """

    made_by: ClassVar[str] = (
        'a block with @misc = "thinc-torchopt.FineTuning.v1", or in Python the result of '
        "thinc_torchopt.training.FineTuning()"
    )
    own_block: ClassVar[str] = "fine_tuning"
    decides_alike: ClassVar[bool] = True

    window_pieces: Optional[int] = 128
    stride_pieces: Optional[int] = None
    max_batch_pieces: int = 2048
    gradient_checkpointing: bool | int = False
    freeze_layers: int = 0
    attention: Optional[Literal["eager", "sdpa", "flash_attention_2"]] = None
    # Whether the training measures or compares settings, and saves nothing.
    is_short: bool = field(default=False, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.window_pieces is None:
            if self.stride_pieces is not None:
                _SECTION.refuse("stride_pieces", "null, as window_pieces is null", self.stride_pieces)
        else:
            self.window_pieces = window = _SECTION.whole("window_pieces", self.window_pieces, at_least=8)
            if self.stride_pieces is not None:
                self.stride_pieces = _SECTION.whole(
                    "stride_pieces", self.stride_pieces, at_least=(window + 1) // 2, because=", half of window_pieces"
                )
                if self.stride_pieces > window:
                    _SECTION.refuse("stride_pieces", f"at most window_pieces, {window}", self.stride_pieces)
        self.max_batch_pieces = _SECTION.whole(
            "max_batch_pieces", self.max_batch_pieces, at_least=self.window_pieces or 1, because=", one window"
        )
        if not isinstance(self.gradient_checkpointing, bool):
            self.gradient_checkpointing = _SECTION.whole(
                "gradient_checkpointing", self.gradient_checkpointing, because=", true or false"
            )
        self.freeze_layers = _SECTION.whole("freeze_layers", self.freeze_layers)
        _SECTION.choice("attention", self.attention, _ATTENTION)

    @property
    def stride(self) -> int:
        """The stride in wordpieces. Without `window_pieces`: 0."""
        return self.stride_pieces or 3 * (self.window_pieces or 0) // 4

    def layers_again(self, layers: int) -> int:
        """How many layers are computed again, of all `layers` of a transformer."""
        if isinstance(self.gradient_checkpointing, bool):
            return layers if self.gradient_checkpointing else 0
        return min(layers - self.freeze_layers, self.gradient_checkpointing)

    def prepare(self, nlp: Any) -> None:
        """RAISES (ConfigError): The pipeline has no transformer."""
        from .transformers import check_transformers

        check_transformers(nlp)

    def named(self, optimizer: Any, nlp: Any, exclude: Collection[str]) -> None:
        """RAISES (ConfigError): No transformer is trained, or one can't be trained in this way."""
        from .attention import check_attention
        from .checkpointing import check_checkpointing
        from .layers import names_to_freeze
        from .transformers import trained_transformers
        from .windows import check_window

        for found in trained_transformers(nlp, exclude):
            if self.gradient_checkpointing:
                check_checkpointing(self.gradient_checkpointing, found.component, found.module, self.freeze_layers)
            if self.attention is not None:
                check_attention(found.component, found.shim, self.attention)
        if self.window_pieces is not None:
            check_window(nlp, exclude, self.window_pieces)
        if self.freeze_layers:
            optimizer.freeze_by_settings(names_to_freeze(nlp, exclude, self.freeze_layers))

    def join(self, run: Any) -> Sequence[Any]:
        from .run import RunTransformers

        return [RunTransformers(self, run)]

    def in_short_training(self, nlp: Any, config: Any, optimizer: Any, corpus: Any) -> FineTuning:
        """The same, but nothing is prepared for saving."""
        short = replace(self)
        short.is_short = True
        return short
