"""Patterns over names, as a config has them."""

import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Optional

from ..errors import ConfigError
from ..near_misses import did_you_mean, near_misses
from .names import unescape


class Pattern:
    """A pattern over names: called with a name, it returns whether the name matches. It may contain the component's
    name unescaped.

    text (str): A shell glob over the whole name, e.g. "transformer/*", "*/bias"; or "re:" and a regular expression that
        is searched for in the name, e.g. "re:layer/[0-3]/".
    where (str): Config path of the pattern, for errors.
    RAISES (ConfigError): Not a valid regular expression.
    """

    def __init__(self, text: str, where: str):
        self.text = text
        self.where = where
        self._regex: Optional[re.Pattern[str]] = None
        if text.startswith("re:"):
            try:
                self._regex = re.compile(text.removeprefix("re:"))
            except re.error as error:
                raise ConfigError(
                    f"Can't use pattern '{text}' in {where}: expected a valid regular expression after 're:', found "
                    f"an error: {error}."
                ) from error

    def __call__(self, name: str) -> bool:
        component, *rest = name.split("/", 1)
        return self._matches(name) or ("+" in component and self._matches("/".join([unescape(component), *rest])))

    def _matches(self, name: str) -> bool:
        return fnmatchcase(name, self.text) if self._regex is None else self._regex.search(name) is not None

    def check(self, names: Sequence[str]) -> None:
        """Check that the pattern matches a name.

        names (Sequence[str]): All names.
        RAISES (ConfigError): No name matches.
        """
        if not any(map(self, names)):
            raise ConfigError(
                f"Can't use pattern '{self.text}' in {self.where}: it matches none of {len(names)} params. Names start "
                f"with the component's name, and their parts are separated by '/'.{self._meant(names)} List them: "
                "spacy torchopt params."
            )

    def _meant(self, names: Sequence[str]) -> str:
        """A suggestion: the pattern with another component, or a name."""
        head, slash, rest = self.text.partition("/")
        components = {name.partition("/")[0] for name in names}
        near = [f"{component}{slash}{rest}" for component in near_misses(head, components)]
        matching = [text for text in near if any(map(Pattern(text, self.where), names))] if self._regex is None else []
        examples = near_misses(self.text, names, cutoff=0.3) or names[:3]
        return did_you_mean(self.text, matching or names) or f" For example: {', '.join(examples)}."


def matches_any(patterns: Iterable[Pattern], names: Collection[str]) -> bool:
    """Whether one of several patterns matches one of several names."""
    return any(pattern(name) for pattern in patterns for name in names)
