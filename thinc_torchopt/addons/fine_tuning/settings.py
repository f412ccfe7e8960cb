"""The block of a fine-tuning, `thinc-torchopt.FineTuning.v1`, and what it does for the time of a run: windows in
wordpieces, attention, and gradient checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Optional

from spacy.tokens import Doc
from spacy.training.loop import DIR_MODEL_BEST

from ...core.attachments import Attachment
from ...core.checks import Section
from ...core.host import forward_of, swap_forward
from ...core.log import inform
from ...loop.events import Control, StepBegin, TrainBegin, TrainEnd
from .batches import run_at_once, run_in_parts, runs_in_parts
from .modules import attending, check_attention, check_checkpointing, checkpointing
from .transformers import check_transformers, names_to_freeze, trained_transformers, transformers_of
from .windows import (
    SPANS,
    PieceWindows,
    blocks_with,
    check_window,
    count_lost,
    forward_in_windows,
    read_dev,
    score_of_saved,
    strided_spans,
    windows_of_words,
)

if TYPE_CHECKING:  # and not before a run begins: it takes the optimizer
    from ...loop.run import Run

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

    def prepare(self, nlp: Any) -> None:
        """RAISES (ConfigError): The pipeline has no transformer."""
        check_transformers(nlp)

    def named(self, optimizer: Any, nlp: Any, exclude: Collection[str]) -> None:
        """RAISES (ConfigError): No transformer is trained, or one can't be trained in this way."""
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
        return [RunTransformers(self, run)]

    def in_short_training(self, nlp: Any, config: Any, optimizer: Any, corpus: Any) -> FineTuning:
        """The same, but nothing is prepared for saving."""
        short = replace(self)
        short.is_short = True
        return short


class RunTransformers:
    """Lets the transformers of a run read windows that are counted in wordpieces, in parts, and compute as the settings
    say. A listener.

    settings (FineTuning): From the config. run (Run): The run.
    """

    name = "transformers"

    def __init__(self, settings: FineTuning, run: Run):
        self._settings = settings
        self._run = run
        # Frozen ones read as before, and are saved so: others may have learned from them.
        self._transformers = transformers_of(run.nlp, run.exclude)
        self._covered: list[tuple[Any, Callable[[], None]]] = []
        self._modules = ExitStack()
        self._has_begun = False
        self._saved: tuple[int, int] | None = None

    # ------------------------------------------------------------------ the run

    def before_run(self) -> None:
        """Change how the modules compute, and find the windows of the saved pipeline."""
        settings = self._settings
        for one in self._transformers:
            if settings.attention is not None:
                self._modules.enter_context(attending(one.shim, settings.attention))
            if settings.gradient_checkpointing:
                self._modules.enter_context(checkpointing(settings.gradient_checkpointing, one.module))
        others = [one for one in self._transformers if not one.is_curated]
        if settings.window_pieces is None or settings.is_short or not others:
            return
        docs = self._docs()
        overlap = 1 - settings.stride / settings.window_pieces
        self._saved = min(
            windows_of_words(one, docs, at_most=settings.window_pieces, overlap=overlap) for one in others
        )
        for one in others:
            if (lost := count_lost(one, one.node.attrs["get_spans"], docs)).cut:
                inform("With the windows of '%s' in the config, %s.", one.component, lost)
        inform(
            "Transformer: windows of %d wordpieces. The pipeline is saved with windows of %d words, which lose no "
            "wordpiece of the training and development data.",
            settings.window_pieces,
            self._saved[0],
        )

    def _docs(self) -> list[Doc]:
        """The texts of the training and development data, as the transformers read them."""
        run = self._run
        train = run.batches.all_examples()
        if not train and run.batches.max_epochs == -1:
            inform("The training data is streamed: the windows are those of the development data alone.")
        return [example.predicted for example in [*train, *read_dev(run.nlp)]]

    def on_train_begin(self, event: TrainBegin, control: Control) -> None:
        self._has_begun = True
        self._cover()
        window, stride = self._settings.window_pieces, self._settings.stride
        for one in () if window is None or self._settings.is_short else self._transformers:
            config = event.run.nlp.get_pipe_config(one.component)
            if one.is_curated:
                for block in blocks_with("with_spans", config):
                    block |= {"window": window, "stride": stride}
            elif self._saved is not None:
                for block in blocks_with("get_spans", config):
                    block.clear()
                    block |= {"@span_getters": SPANS} | dict(zip(("window", "stride"), self._saved))

    def on_step_begin(self, event: StepBegin, control: Control) -> None:
        self._cover()  # a state that was loaded brings another module

    def on_train_end(self, event: TrainEnd, control: Control) -> None:
        """Tell the score of the saved pipeline."""
        settings, run, folder = self._settings, self._run, self._run.models.folder
        if settings.window_pieces is None or settings.is_short or run.ranks.rank or not event.run.results:
            return
        if folder is None or not (best := folder / DIR_MODEL_BEST).is_dir():
            return
        score, step = max(event.run.results)  # of equal scores, spaCy keeps the last
        inform(
            "%s, loaded without this package: score %.4f. At step %d of the training: %.4f.",
            DIR_MODEL_BEST,
            score_of_saved(best, run.nlp),
            step,
            score,
        )

    def close(self) -> None:
        """Put the transformers back. In memory they have the windows of the saved pipeline then."""
        for _, put_back in self._covered:
            put_back()
        for one in self._transformers:
            run_at_once(one.module)
            if self._has_begun and self._saved is not None and not one.is_curated:
                one.node.attrs["get_spans"] = strided_spans(*self._saved)
        self._covered = []
        self._modules.close()

    # ------------------------------------------------------------------ the transformers

    def _cover(self) -> None:
        settings = self._settings
        for one in self._transformers:
            if not runs_in_parts(one.module):
                run_in_parts(one.module, settings.max_batch_pieces)
            if settings.window_pieces is None or any(one.node is node for node, _ in self._covered):
                continue
            if one.is_curated:
                if one.spans is not None:
                    one.spans.attrs.update({"window": settings.window_pieces, "stride": settings.stride})
                continue
            forward = forward_of(one.node)
            windows = PieceWindows(one.tokenizer, settings.window_pieces, settings.stride)
            ours = forward_in_windows(forward, windows, settings.window_pieces)
            self._covered.append((one.node, swap_forward(one.node, ours)))
