"""Which characters a name may have, and what becomes of others."""

import re

_PLAIN = re.compile(r"[A-Za-z0-9_+-]+")


_FORBIDDEN = re.compile(r"[^A-Za-z0-9_+-]+")


_ESCAPED = re.compile(r"\+([0-9a-f]{2,5}|10[0-9a-f]{4})\+|^\+\+\Z")


def clean(part: str) -> str:
    """One part of a name, without the characters that a config section can't hold."""
    return _FORBIDDEN.sub("_", part) or "_"


def escape(component: str) -> str:
    """A component's name as names of params begin: different ones stay different. One of allowed characters stays as it
    is.

    Every other character is its number between two `+`. Then `+` is escaped as well, and where a name looks as if it
    were escaped.
    """
    if _PLAIN.fullmatch(component) and not _ESCAPED.search(component):
        return component
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"+{ord(found[0]):02x}+", component) or "++"


def unescape(component: str) -> str:
    """What `escape` was given."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", component)


def unique(name: str, taken: set[str]) -> str:
    """The name, or the name with a number behind it if it is taken. It is then."""
    candidate, n = name, 2
    while candidate in taken:
        candidate, n = f"{name}-{n}", n + 1
    taken.add(candidate)
    return candidate
