"""The characters of names, and escapes for others."""

import re

_PLAIN = re.compile(r"[A-Za-z0-9_+-]+")


_FORBIDDEN = re.compile(r"[^A-Za-z0-9_+-]+")


_ESCAPED = re.compile(r"\+([0-9a-f]{2,5}|10[0-9a-f]{4})\+|^\+\+\Z")


def clean(part: str) -> str:
    """One part of a name, without the characters that a config section can't hold."""
    return _FORBIDDEN.sub("_", part) or "_"


def escape(component: str) -> str:
    """A component's name in names of params. Names of allowed characters stay the same; different names stay different.

    Every other character becomes its number between two `+`. Then `+` is escaped too, and so are names that look
    escaped.
    """
    if _PLAIN.fullmatch(component) and not _ESCAPED.search(component):
        return component
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"+{ord(found[0]):02x}+", component) or "++"


def unescape(component: str) -> str:
    """Undo `escape`."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", component)


def unique(name: str, taken: set[str]) -> str:
    """The name, with a number appended if it is taken. Adds it to `taken`."""
    candidate, n = name, 2
    while candidate in taken:
        candidate, n = f"{name}-{n}", n + 1
    taken.add(candidate)
    return candidate
