"""Which components the texts of a stream teach. From a text without annotations for any of them, nothing is learned."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from spacy.language import Language
from spacy.training import Example

from ...core.errors import StreamError
from ...core.kinds import kind_in
from ...core.schema import Count
from ...core.words import count, listed
from ...loop.components import is_trained

# Keys of annotations in the files of other programs.
_FORMS: Final = {
    "label": "doccano's form",
    "labels": "doccano's form",
    "ner_tags": "the form of Hugging Face's datasets",
}


@dataclass
class AnnotatedTexts:
    """The texts since the stream began, or since its last end.

    texts (int): All of them. bare (int): Those without annotations for any component.
    components (dict[str, int]): By component, how many texts have annotations for it.
    unused (dict[str, int]): By key that is not used, how many texts have it.
    """

    texts: Count = 0
    bare: Count = 0
    components: dict[str, Count] = field(default_factory=dict)
    unused: dict[str, Count] = field(default_factory=dict)

    def add(self, components: Collection[str], unused: Collection[str]) -> None:
        """Count a text. components: Those that it has annotations for. unused: Its keys that are not used."""
        self.texts += 1
        self.bare += not components
        for counts, names in ((self.components, components), (self.unused, unused)):
            for name in names:
                counts[name] = counts.get(name, 0) + 1


class Teaches:
    """Tells which components learn from a text.

    nlp (Language): The pipeline. names (Collection[str]): Its components that are trained.
    """

    def __init__(self, nlp: Language, names: Collection[str]):
        trained = {name: kind_in(nlp, name) for name, pipe in nlp.pipeline if name in names and is_trained(pipe)}
        self._known = {name: kind for name, kind in trained.items() if kind.is_known}
        # Those that others listen to learn with them. What any other one learns from is not known.
        self._knows_all = all(name in self._known or hasattr(nlp.get_pipe(name), "listener_map") for name in trained)

    def components(self, example: Example) -> list[str]:
        """The components that a text has annotations for."""
        return [name for name, kind in self._known.items() if kind.has(example.reference)]

    def in_vain(self, found: AnnotatedTexts) -> bool:
        """Whether nothing was learned from any of the texts."""
        return self._knows_all and 0 < found.texts == found.bare

    def check(self, found: AnnotatedTexts) -> None:
        """RAISES (StreamError): Nothing was learned from any of the texts."""
        if self.in_vain(found):
            wanted = listed([f"'{name}' ({kind.in_words})" for name, kind in self._known.items()], "or")
            keys = listed([f"'{key}'" for kind in self._known.values() for key in kind.keys], "or")
            raise StreamError(
                f"Can't learn from the stream: expected annotations for {wanted}, found none in "
                f"{count(found.texts, 'text')}.{_told(found)} Give them under the keys of spaCy's Example.from_dict, "
                f"{keys}. Nothing of these texts is saved: repair them, and run the same command."
            )

    def doubts(self, found: AnnotatedTexts) -> Iterator[str]:
        """The texts and components that were in vain, in words."""
        if found.bare:
            yield (
                f"{found.bare:,} of {count(found.texts, 'text')} have no annotations for any component: nothing was "
                f"learned from them.{_told(found)}"
            )
        for name, kind in self._known.items():
            if found.texts > found.bare and not found.components.get(name):
                yield f"'{name}' has learned nothing: {count(found.texts, 'text')} without {kind.in_words}."


def _told(found: AnnotatedTexts) -> str:
    """The keys that are not used, with what they may be."""
    told = [
        f"'{key}' in {count(n, 'text')}" + (f" ({form}?)" if (form := _FORMS.get(key)) else "")
        for key, n in sorted(found.unused.items(), key=lambda item: -item[1])[:3]
    ]
    return f" Not used: {', '.join(told)}." if told else ""
