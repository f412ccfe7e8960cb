"""Change one section in the text of a config, and keep every other byte.

confection rewrites a config without its comments and in its own order. This module finds the lines of the section and
its subsections as Python's configparser does, and rewrites only the lines that change.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any, Union

from confection import Config
from spacy import util

from ...core.errors import ConfigError
from ...core.state import write_text
from ...core.text_files import decode
from ...loop.setup import AnyConfig, checked_overrides, config_errors, path_of

_HEADER = re.compile(r"\[(?P<name>.+)\]")
_SETTING = re.compile(r"(?P<key>.*?)\s*(?:[=:]\s*(?P<value>.*))?$", re.DOTALL)
_COMMENTS = ("#", ";")
_VARIABLE = re.compile(r"\$\{([\w.:]+)\}")


@dataclass(frozen=True)
class SettingText:
    """One setting of a section.

    value (str): As written in the text. May have several lines.
    above (tuple[str, ...]): Comments and empty lines above it.
    text (str): Its own lines as written. Empty: it is new or changed.
    """

    key: str
    value: str
    above: tuple[str, ...] = ()
    text: str = ""

    def renamed(self, key: str) -> SettingText:
        """A copy with another name."""
        return self if key == self.key else replace(self, key=key, text="")

    def changed(self, value: str) -> SettingText:
        """A copy with another value."""
        return self if value == self.value else replace(self, value=value, text="")


Entry = Union[SettingText, "SectionText"]


@dataclass
class SectionText:
    """A section with its subsections.

    above (list[str]): Comments right above its header.
    below (list[str]): Comments below its last setting, with the empty lines around them.
    """

    settings: dict[str, SettingText] = field(default_factory=dict)
    sections: dict[str, SectionText] = field(default_factory=dict)
    above: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    place: _SectionPlace | None = None

    def __contains__(self, key: str) -> bool:
        return key in self.settings or key in self.sections

    def put(self, key: str, value: Any, *comments: str) -> None:
        """Set a setting. value (Any): A number, text, list or `Raw`. comments (str): Lines of comments above it."""
        text = value.text if isinstance(value, Raw) else json.dumps(value)
        known = self.settings.get(key)
        lines = tuple(f"# {line}\n" for line in comments)
        if known is not None and known.value == text:
            return
        self.sections.pop(key, None)
        self.settings[key] = SettingText(key, text, (*(known.above if known is not None else ()), *lines))

    def section(self, key: str, *comments: str) -> SectionText:
        """Get a subsection, or add it. comments (str): Lines of comments above a new one."""
        if key not in self.sections:
            self.sections[key] = SectionText(above=[f"# {line}\n" for line in comments])
        return self.sections[key]

    def pop(self, key: str) -> Entry | None:
        """Remove and return a setting or subsection."""
        return self.settings.pop(key, None) or self.sections.pop(key, None)

    def add(self, key: str, entry: Entry) -> None:
        """Add an entry that was popped from another section."""
        if isinstance(entry, SectionText):
            self.sections[key] = entry
        else:
            self.settings[key] = entry.renamed(key)

    def drop(self, key: str) -> bool:
        """Remove an entry, but keep its comments. RETURNS (bool): Whether it was there."""
        entry = self.pop(key)
        if entry is not None:
            self.below += [line for line in _comments_of(entry) if line.strip()]
        return entry is not None

    def is_as_found(self, path: str) -> bool:
        """Whether the section is unchanged and at the same path."""
        return (
            self.place is not None
            and self.place.path == path
            and [id(setting) for setting in self.settings.values()] == [id(setting) for setting in self.place.settings]
            and self.below == self.place.below
        )


@dataclass(frozen=True)
class Raw:
    """A value that is written into the text as it is, e.g. `${training.max_steps}`."""

    text: str


@dataclass(frozen=True)
class _SectionPlace:
    """Where a section was found.

    first, last (int): Its lines, from the comments right above its header to its last setting or comment.
    """

    path: str
    first: int
    header: int
    last: int
    settings: tuple[SettingText, ...]
    below: tuple[str, ...] | list[str]


class ConfigText:
    """The text of a config.

    text (str): The text, with its line endings. Must be valid for confection.
    path (str): The section to change, e.g. "training.optimizer". It and its parents may be missing.

    Public: `section`, which may be changed; `found`, whether it was in the text.
    """

    def __init__(self, text: str, path: str):
        self.path = path
        self._lines = list(StringIO(text, newline="\n"))
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._all: dict[str, SectionText] = dict(_sections_of(self._lines))
        self.found = path in self._all
        self.section = self._all.get(path, SectionText())
        for name, section in self._all.items():
            if name.startswith(f"{path}."):
                *parents, key = name.removeprefix(f"{path}.").split(".")
                parent = self.section
                for part in parents:
                    parent = parent.section(part)
                parent.sections[key] = section

    def setting(self, path: str) -> SettingText | None:
        """A setting of another section. path (str): e.g. "training.optimizer"."""
        section, _, key = path.rpartition(".")
        return self._all[section].settings.get(key) if section in self._all else None

    def __str__(self) -> str:
        """The text with all changes. Unchanged sections stay where they are; new ones follow their parent."""
        staying = {path for path, section in self._walk() if path != self.path and section.is_as_found(path)}
        new = self._render(staying)
        gone: set[int] = set()
        for path, section in self._all.items():
            if path == self.path or (path.startswith(f"{self.path}.") and path not in staying):
                gone |= self._lines_of(section, with_comments=path != self.path)
        at, before = self._insert_at()
        out: list[str] = []
        for i, line in enumerate(self._lines):
            if i == at:
                out += [*before, *new]
            if i not in gone:
                out.append(line)
        if at >= len(self._lines):
            if out and not out[-1].endswith("\n"):
                out[-1] += self._newline
            out += [*before, *new]
        text = "".join(out)
        return text if not self._lines or self._lines[-1].endswith("\n") else text.removesuffix(self._newline)

    def _walk(self) -> Iterator[tuple[str, SectionText]]:
        todo = [(self.path, self.section)]
        while todo:
            path, section = todo.pop(0)
            yield path, section
            todo = [(f"{path}.{key}", below) for key, below in section.sections.items()] + todo

    def _render(self, staying: set[str]) -> list[str]:
        """The lines of the section and of those subsections that changed."""
        lines: list[str] = []
        for path, section in self._walk():
            if path in staying:
                continue
            if lines:
                lines.append("\n")
            # The comments above the section itself stay in the text.
            lines += [] if path == self.path else section.above
            before_header, before_setting = self._indents(section)
            place = section.place if path == self.path else None
            lines.append(self._lines[place.header] if place is not None else f"{before_header}[{path}]\n")
            for setting in section.settings.values():
                lines += [*setting.above, setting.text or f"{before_setting}{setting.key} = {setting.value}\n"]
            lines += section.below
        return [_with_end(line, self._newline) for line in lines]

    def _indents(self, section: SectionText) -> tuple[str, str]:
        """The white space before the header and before the settings of a section: what a deeper indent follows is read
        as a part of it. That of a new section is as in the one to change, or in its parent.
        """
        parent = self._all.get(self.path.rpartition(".")[0], self.section)
        place = section.place or self.section.place or parent.place
        if place is None:
            return "", ""
        header = _indent_of(self._lines[place.header])
        return header, _indent_of(place.settings[0].text) if place.settings else header

    def _lines_of(self, section: SectionText, *, with_comments: bool) -> set[int]:
        """The lines of a section: its own, and the empty lines below it."""
        place = section.place
        assert place is not None
        lines = set(range(place.first if with_comments else place.header, place.last + 1))
        if with_comments:
            end = place.last + 1
            while end < len(self._lines) and not self._lines[end].strip():
                lines.add(end)
                end += 1
        return lines

    def _insert_at(self) -> tuple[int, list[str]]:
        """The line where the section is or will be, and the lines to insert before it."""
        if self.section.place is not None:
            return self.section.place.header, []
        parent = self.path.rpartition(".")[0]
        if parent in self._all:
            place = self._all[parent].place
            assert place is not None
            return place.last + 1, [self._newline]
        missing, parts = [], self.path.split(".")[:-1]
        for i in range(len(parts)):
            if (name := ".".join(parts[: i + 1])) not in self._all:
                missing += [self._newline, f"[{name}]{self._newline}"]
        return len(self._lines), [*missing, self._newline]


def with_settings(text: str, settings: Mapping[str, Any]) -> str:
    """Change values in the text of a config, and nothing else.

    settings (Mapping[str, Any]): Values by their dotted paths. Text that has a variable is written as it is.
    """
    for path, value in settings.items():
        section, _, key = path.rpartition(".")
        config = ConfigText(text, section)
        config.section.put(key, Raw(value) if isinstance(value, str) and _VARIABLE.search(value) else value)
        text = str(config)
    return text


def nested_in(text: str, path: str, outer: Mapping[str, Any], inner: str) -> str:
    """Put a section of the text of a config into another one, which takes its place.

    path (str): The section, which is there. outer (Mapping[str, Any]): The settings and sections of the other one.
    inner (str): The key in it that the old one gets.
    """
    config = ConfigText(text, path)
    old = SectionText()
    for key in [*config.section.settings, *config.section.sections]:
        if (entry := config.section.pop(key)) is not None:
            old.add(key, entry)
    _fill(config.section, outer)
    config.section.add(inner, old)
    return str(config)


def _fill(section: SectionText, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _fill(section.section(key), value)
        else:
            section.put(key, Raw(value) if isinstance(value, str) and _VARIABLE.search(value) else value)


def cut_section(text: str, path: str) -> tuple[dict[str, str], str]:
    """Cut a section out of the text of a config. RETURNS (tuple): Its settings, and the rest of the text."""
    config = ConfigText(text, path)
    if not config.found:
        return {}, text
    gone = config._lines_of(config.section, with_comments=True)
    rest = "".join(line for i, line in enumerate(config._lines) if i not in gone)
    return {key: setting.value for key, setting in config.section.settings.items()}, rest


def _with_end(line: str, newline: str) -> str:
    """Give a line the file's line ending: the last line may have none, and new lines may have another."""
    return line if line.endswith(newline) else line.rstrip("\r\n") + newline


def _indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _comments_of(entry: Entry) -> list[str]:
    if isinstance(entry, SettingText):
        return list(entry.above)
    found = [*entry.above, *(line for setting in entry.settings.values() for line in setting.above), *entry.below]
    return found + [line for below in entry.sections.values() for line in _comments_of(below)]


def _sections_of(lines: Sequence[str]) -> Iterator[tuple[str, SectionText]]:
    """Find the sections of a config and their settings, as configparser does: a deeper indent continues a setting."""
    starts: list[tuple[str, int, list[tuple[int, int]]]] = []  # name, header, first and last line of each setting
    indent, in_setting = 0, False
    for i, line in enumerate(lines):
        stripped = line.strip()
        if not stripped or stripped.startswith(_COMMENTS):
            continue
        depth = len(_indent_of(line))
        if in_setting and depth > indent:
            settings = starts[-1][2]
            settings[-1] = settings[-1][0], i
            continue
        indent, in_setting = depth, False
        if found := _HEADER.match(stripped):
            starts.append((found["name"], i, []))
        elif starts:
            in_setting = True
            starts[-1][2].append((i, i))
    for place, (name, header, spans) in enumerate(starts):
        following = starts[place + 1][1] if place + 1 < len(starts) else len(lines)
        yield name, _read_section(lines, name, header, spans, following)


def _read_section(
    lines: Sequence[str], name: str, header: int, spans: Sequence[tuple[int, int]], following: int
) -> SectionText:
    """following (int): The line of the next header, or the end."""
    settings, end = [], header
    for first, last in spans:
        text = "".join(lines[first : last + 1])
        parts = _SETTING.match(text.strip())
        assert parts is not None
        settings.append(SettingText(parts["key"].strip(), parts["value"] or "", tuple(lines[end + 1 : first]), text))
        end = last
    # Comments right above the next header belong to the next section.
    stop = following if following == len(lines) else _begin_of_comments(lines, following)
    below = list(lines[end + 1 : stop])
    while below and not below[-1].strip():
        below.pop()
    first = _begin_of_comments(lines, header)
    section = SectionText({setting.key: setting for setting in settings}, {}, list(lines[first:header]), below)
    section.place = _SectionPlace(name, first, header, end + len(below), tuple(settings), list(below))
    return section


def _begin_of_comments(lines: Sequence[str], header: int) -> int:
    """The line of the first comment right above a header, or of the header itself."""
    first = header
    while first > 0 and lines[first - 1].strip().startswith(_COMMENTS):
        first -= 1
    return first


def moved_value(value: str, interpolated: Any) -> str:
    """A value for another section. Variables that are relative or point into the optimizer are replaced by their value.

    value (str): As written in the text. interpolated (Any): Its value with variables filled in.
    """
    for found in _VARIABLE.findall(value):
        path = found.replace(":", ".")
        if "." not in path or path.startswith("training.optimizer."):
            return json.dumps(interpolated)
    return value


def value_at(config: Mapping[str, Any], path: str) -> Any:
    """A setting by its dotted path. None: missing."""
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def put(block: dict[str, Any], place: Sequence[str], value: Any) -> None:
    """Set a value in a config. place (Sequence[str]): Its sections, and its key. Missing sections are added."""
    *sections, key = place
    for section in sections:
        block = block.setdefault(section, {})
    block[key] = value


@dataclass
class ConfigSource:
    """A config of the user, to load it with other settings.

    path (Path): Its file.
    text (str): Its text, without [search].
    overrides (dict[str, Any]): Other values, by path.
    search (dict[str, str]): The section [search]. confection never sees it: it would read sections from the dots in
    its keys.
    """

    path: Path
    text: str
    overrides: dict[str, Any]
    search: dict[str, str] = field(default_factory=dict)

    def load(self, text: str | None = None, overrides: Mapping[str, Any] = {}) -> Config:
        """Load the config with its variables. text (str | None): Another text. overrides (Mapping): More overrides."""
        with config_errors(path=self.path):
            return util.load_config_from_str(
                self.text if text is None else text, overrides={**self.overrides, **overrides}, interpolate=False
            )

    def write_overrides(self, prefix: str) -> ConfigSource:
        """A copy with some overrides written into its text. prefix (str): The start of their paths."""
        self.load()  # raises for what can't be overridden
        written = {path: value for path, value in self.overrides.items() if path.startswith(prefix)}
        rest = {path: value for path, value in self.overrides.items() if path not in written}
        return replace(self, text=with_settings(self.text, written), overrides=rest)

    @property
    def seed(self) -> int:
        """The seed of the first trial."""
        return int(self.load().interpolate().get("training", {}).get("seed") or 0)


def open_source(source: AnyConfig, overrides: Mapping[str, Any] = {}) -> ConfigSource:
    """Read a config, with overrides. RAISES (ConfigError): It can't be read."""
    path = path_of(source)
    text = source.to_str(interpolate=False) if isinstance(source, Config) else read_text(Path(source))
    search, text = cut_section(text, "search")
    return ConfigSource(Path("config.cfg") if path is None else path, text, checked_overrides(overrides), search)


def read_text(path: Path) -> str:
    """Read the text of a config. "-": from stdin. RAISES (ConfigError): It can't be read."""
    try:
        return decode(sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"Can't read '{path}': expected the file of a config, found {error.strerror}. Check the path."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"Can't read '{path}': it is not a text in UTF-8 ({error}). Is it a config?") from error


def check_output(path: Path) -> None:
    """Check early that a config can be written. RAISES (ConfigError): A folder is there, or it is the name of texts."""
    if path.is_dir():
        raise ConfigError(f"Can't write '{path}': expected a file, found a folder. Add the name of a file.")
    if path.suffix == ".spacy":
        raise ConfigError(
            f"Can't write the config '{path}': expected a name such as config.cfg, found that of texts. Name the "
            f"config, and the texts by an option: --paths.train {path}."
        )


def write_config(path: Path, text: str) -> None:
    """Write the text of a config, whole or not at all. RAISES (ConfigError): It can't be written."""
    try:
        write_text(path, text)
    except OSError as error:
        raise ConfigError(f"Can't write '{path}': {error}. An existing file was not changed.") from error
