"""TaughtCorpus: a reader of training data in which a teacher fills in what is open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Optional, Union

from spacy.language import Language
from spacy.training import Example

Reader = Callable[[Language], Iterable[Example]]


class TaughtCorpus:
    """Read texts, and fill in what they leave open. Registered as `thinc-torchopt.TaughtCorpus.v1`.

    corpus (Callable): The reader of the annotated texts.
    teacher (str | Path | None): The folder of a pipeline, or the name of its package. None: the pipeline that the
        components have as their source.
    components (list[str] | None): Those to fill in for. None: all that learn, and that the teacher has too.
    complete (list[str]): Labels that these texts annotate completely: they are not filled in.
    replaces (dict[str, str | list[str]]): By new label, the teacher's labels in whose place it stands.
    cache (Path | None): The folder of the teacher's predictions. None: they are not kept.
    texts (Path | None): Texts that nobody has annotated: .txt, .jsonl or .spacy, or a folder of them.
    share (float): How many of these for each annotated text.
    max_words (int): Longer ones are cut, at the ends of sentences where there are. 0: never.
    old (Callable | None): The reader of texts on which only the old labels are annotated.
    seed (int): For drawing from `texts`.
    RAISES (ConfigError): The texts, the teacher or one of its components is not there.
    """

    def __init__(
        self,
        corpus: Reader,
        teacher: Optional[Union[str, Path]] = None,
        components: Optional[List[str]] = None,
        complete: List[str] = [],
        replaces: Dict[str, Union[str, List[str]]] = {},
        cache: Optional[Path] = None,
        texts: Optional[Path] = None,
        share: float = 2.0,
        max_words: int = 60,
        old: Optional[Reader] = None,
        seed: int = 0,
    ):
        self._corpus = corpus

    def __call__(self, nlp: Language) -> Iterator[Example]:
        """Read the texts. YIELDS (Example): Their references are filled in."""
        raise NotImplementedError
