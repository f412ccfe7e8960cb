"""Windows in wordpieces, attention, and gradient checkpointing, for the time of a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from spacy.tokens import Doc
from spacy.training.loop import DIR_MODEL_BEST

from ...core.host import forward_of, swap_forward
from ...core.log import inform
from ...loop.events import Control, StepBegin, TrainBegin, TrainEnd
from ...loop.run import Run
from .attention import attending
from .batches import run_at_once, run_in_parts, runs_in_parts
from .checkpointing import checkpointing
from .saving import SPANS, blocks_with, read_dev, score_of_saved, strided_spans, windows_of_words
from .settings import FineTuning
from .transformers import transformers_of
from .windows import PieceWindows, count_lost, forward_in_windows


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
