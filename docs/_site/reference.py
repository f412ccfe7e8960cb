"""Writes docs/reference/ from what the code says of itself: docstrings, signatures, entry points, options of commands.

`make reference` runs it. tests/test_reference.py checks that the pages are up to date.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from configparser import ConfigParser
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from thinc_torchopt.cli import torchopt_cli
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.registry import names_in, registry
from thinc_torchopt.loop.events import COMMON, EVENTS, FACTS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
GENERATED = "<!-- Written by `make reference` from the code. Change it there. -->"
WIDTH = 120
# Settings that mean the same everywhere, for docstrings that leave them out.
SHARED = {
    "initial_rate": ("float", "The highest rate."),
    "min_rate": ("float", "The lowest rate."),
    "max_rate": ("float", "The highest rate."),
    "params": ("list[str]", "Patterns of the params that it works on. null: all."),
}


def _of_a_block(name: str) -> tuple[str, str]:
    """The type and meaning of an argument that is an attachment's block: the first sentence about it."""
    found = [point.load() for point in entry_points(group="thinc_torchopt_attachments", name=name)]
    if not found:
        return "", ""
    sentence = re.split(r"(?<=\.)\s", inspect.getdoc(found[0]) or "", maxsplit=1)[0].replace("\n", " ")
    how = re.sub(r"^a block with (@.*)", r"A block with `\1`", found[0].made_by.partition(",")[0])
    return "Attachment", f"{how}. {sentence}"


# The pages: title, a line with the guides, and the groups of entry points (setup.cfg) with the names in them.
REGISTERED = {
    "optimizers": (
        "Optimizers",
        "For `[training.optimizer] @optimizers`. Guide: [Optimizers](../optimizers.md). A setting that is a schedule "
        "can be a number, a list, or a section with `@schedules`.",
        {"thinc_optimizers": ""},
    ),
    "algorithms": (
        "Algorithms",
        "For `[training.optimizer.algorithm] @torch_optimizers`. Guide: [Optimizers](../optimizers.md#algorithms). The "
        "settings of torch's classes are explained in [torch's "
        "documentation](https://docs.pytorch.org/docs/stable/optim.html); these are their defaults in the version of "
        "torch that this page was made with. Numbers can be schedules.",
        {"thinc_torch_optimizers": ""},
    ),
    "modules": (
        "Modules and regularizers",
        "For the algorithm `thinc-torchopt.Modular.v1`. Guide: [Modular optimizers](../modular.md). `g` is the "
        "gradient, `w` the weights.",
        {"thinc_gradient_modules": "Modules", "thinc_regularizers": "Regularizers"},
    ),
    "schedules": (
        "Schedules",
        "For `@schedules`. Guide: [Schedules](../schedules.md), with an example of each.",
        {"thinc_schedules": ""},
    ),
    "blocks": (
        "Averages, checkpoints and other blocks",
        "For `@misc` in a section below `[training.optimizer]`. Guides: [averages](../averages.md) (EMA, SWA), "
        "[checkpoints](../resume.md), [budget](../command-line.md#a-budget-in-place-of-a-schedule), [several "
        "processes](../distributed.md), [private training](../privacy.md), [federated training](../federated.md), "
        "[rules](../controller.md).",
        {"spacy_misc": ""},
    ),
    "loggers": (
        "Loggers",
        "For `[training.logger] @loggers`. Guide: [Loggers](../loggers.md).",
        {"spacy_loggers": ""},
    ),
    "layers": (
        "Layers, readers, batchers and callbacks",
        "Guides: [A recurrent layer that learns online](../online-rnn.md), [private training](../privacy.md), "
        "[batches by wordpieces](../memory-and-precision.md#batches-by-wordpieces), [new labels](../new-labels.md).",
        {
            "thinc_layers": "Layers",
            "spacy_architectures": "Architectures",
            "spacy_readers": "Readers",
            "spacy_batchers": "Batchers",
            "spacy_callbacks": "Callbacks",
        },
    ),
}


def pages() -> dict[str, str]:
    """All pages of the reference, by their file names."""
    found = {
        f"{name}.md": page(title, intro, registered(groups)) for name, (title, intro, groups) in REGISTERED.items()
    }
    found["controller.md"] = page(
        "Metrics, operations and events",
        "For the definition of a trainer controller. Guide: [Rules that steer a training](../controller.md).",
        controller(),
    )
    found["commands.md"] = page(
        "Commands",
        "Guide: [Command line](../command-line.md). `spacy torchopt COMMAND --help` shows the same.",
        commands(),
    )
    return found


def page(title: str, intro: str, parts: Iterable[str]) -> str:
    return "\n\n".join([GENERATED, f"# {title}", fill(intro), *parts]) + "\n"


# ---------------------------------------------------------------------- what is registered


def registered(groups: Mapping[str, str]) -> Iterator[str]:
    """What setup.cfg registers in some groups of entry points."""
    setup = ConfigParser()
    setup.optionxform = str  # type: ignore[assignment]
    setup.read(ROOT / "setup.cfg")
    for group, heading in groups.items():
        if heading:
            yield f"## {heading}"
        for line in setup["options.entry_points"][group].strip().splitlines():
            name, _, value = line.partition(" = ")
            yield from described(name, EntryPoint(name, value, group).load(), "###" if heading else "##")


def described(name: str, function: Callable[..., Any], heading: str) -> Iterator[str]:
    """One function or class: what it is, and its settings."""
    yield f"{heading} {name}"
    if refusal := why_refused(function):
        yield fill(escaped(refusal))
        return
    signature = inspect.signature(function)
    doc = Doc.of(function, list(signature.parameters))
    yield from doc.paragraphs
    settings = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if any(p.name in doc.settings for p in settings):
        hints = get_type_hints(function.__init__ if isinstance(function, type) else function)
        rows = []
        for param in settings:
            type_, meaning = doc.settings.get(param.name) or SHARED.get(param.name) or _of_a_block(param.name)
            rows.append((f"`{param.name}`", type_of(hints.get(param.name), type_), default(param), meaning))
        yield table(("setting", "type", "default", "meaning"), rows)
    elif settings:
        shown = (
            f"`{p.name} = {as_config(p.default)}`" if p.default is not p.empty else f"`{p.name}`" for p in settings
        )
        yield fill(f"Settings: {', '.join(shown)}.")
    yield from doc.notes
    if doc.source:
        yield fill(f"Source: {doc.source}")


def why_refused(function: Callable[..., Any]) -> str:
    """Why torch's LBFGS and SparseAdam can't be used."""
    if any(p.default is p.empty for p in inspect.signature(function).parameters.values()):
        return ""
    if getattr(function, "__module__", "") != "thinc_torchopt.core.algorithms.torch_classes":
        return ""
    try:
        function()
    except ConfigError as error:
        return str(error)
    return ""


@dataclass
class Doc:
    """A docstring in thinc's form: paragraphs, then a line for each setting.

    settings (dict): Type and meaning of each setting.
    notes (list): Paragraphs that come after the settings.
    """

    paragraphs: list[str] = field(default_factory=list)
    settings: dict[str, tuple[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    source: str = ""

    @classmethod
    def of(cls, function: Any, names: list[str]) -> "Doc":
        text = inspect.getdoc(function) or ""
        one = rf"(?:{'|'.join(map(re.escape, names)) or '(?!)'})"
        each = rf"{one}(?: \([^:]*?\))?"
        entry = re.compile(rf"(?:^|(?<=[.;] ))({each}(?:, {each})*): |^(RETURNS|RAISES|SOURCE)\b")
        doc = cls()
        for paragraph in re.split(r"\n\s*\n", text.strip()):
            if not paragraph:
                continue
            if all(line.startswith("    ") for line in paragraph.splitlines()):
                doc.paragraphs.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
                continue
            lines: list[str] = []
            for line in paragraph.splitlines():
                if lines and not entry.match(line):
                    lines[-1] += f" {line.strip()}"
                else:
                    lines.append(line)
            for line in lines:
                doc._add(line, entry)
        if (
            not doc.paragraphs
            and (home := inspect.signature(function).return_annotation) is not inspect.Signature.empty
        ):
            first = (inspect.getdoc(sys.modules.get(getattr(home, "__module__", ""))) or "").split("\n\n")[0]
            doc.paragraphs = [fill(escaped(" ".join(first.split())))] if first else []
        return doc

    def _add(self, line: str, entry: re.Pattern[str]) -> None:
        first = entry.match(line)
        if first is None:
            line = re.sub(r" Registered as `[^`]+`(?:\.|; (\w))", lambda m: f" {m[1].upper()}" if m[1] else "", line)
            (self.notes if self.settings else self.paragraphs).append(fill(escaped(line)))
        elif first[2] == "SOURCE":
            self.source = linked(escaped(line.removeprefix("SOURCE: ")))
        elif first[2] is None:
            found = [match for match in entry.finditer(line) if match[1]]
            ends = [match.start() for match in found[1:]] + [len(line)]
            for match, end in zip(found, ends):
                meaning = escaped(line[match.end() : end].strip()).replace("None:", "null:")
                type_ = ""  # "low, high (float)": both have that of the last
                for part in reversed(re.split(r", (?=\w+(?:,| \(|$))", match[1])):
                    name, _, own = part.removesuffix(")").partition(" (")
                    type_ = escaped(own.replace(" | ", " or ").replace("None", "null")) or type_
                    self.settings[name] = (type_, meaning)


# ---------------------------------------------------------------------- the controller


def controller() -> Iterator[str]:
    yield "## Metrics"
    yield fill("`class` of a metric. The settings stand under `arguments`.")
    for name, metric in ours(registry.controller_metrics).items():
        yield from described(name, metric, "###")
        if metric.events:
            events = [f"`{event}`" for event in EVENTS if event in metric.events]
            yield fill(f"Computed on {', '.join(events) if len(events) < len(EVENTS) else 'all events'}.")
    yield "## Operations"
    yield fill("`class` of an operation. The settings stand under `arguments`.")
    for name, operation in ours(registry.controller_operations).items():
        yield from described(name, operation, "###")
        actions = [action for action in vars(operation) if action.startswith("should_")]
        yield table(
            ("action", "what it does"),
            [(f"`{action}`", escaped(one_line(getattr(operation, action).__doc__))) for action in actions],
        )
    yield "## Rules by name"
    yield fill("For blocks of `[training.optimizer.controller.rules]`.")
    for name, function in ours(registry.controller_rules).items():
        yield from described(name, function, "###")
    yield "## Events"
    yield fill("`triggers` of a rule, in the order in which a training has them. All of them carry:")
    yield table(("value", "meaning"), [(f"`{key}`", escaped(FACTS[key])) for key in COMMON])
    yield fill("Some carry more. spaCy's loop has no `on_predict` and no `on_prediction_step`.")
    yield table(
        ("event", "value", "meaning"),
        [
            (f"`{event}`", key and f"`{key}`", escaped(FACTS[key]) if key else "")
            for event, carried in EVENTS.items()
            for key in carried or ("",)
        ],
    )


def ours(found: Any) -> dict[str, Any]:
    """What this package has put into a registry, by name."""
    classes = {name: found.get(name) for name in names_in(found)}
    return {name: one for name, one in classes.items() if one.__module__.startswith("thinc_torchopt.")}


# ---------------------------------------------------------------------- commands


def commands() -> Iterator[str]:
    """Each command, its arguments and options, as they are declared."""
    root = typer.main.get_command(torchopt_cli)
    for name, listed in sorted(root.commands.items()):  # type: ignore[attr-defined]
        command = listed.make_context(name, [], resilient_parsing=True).command
        yield f"## {name}"
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        options = [param for param in command.params if param.param_type_name == "option"]
        overrides = ["[--OVERRIDE VALUE ...]"] if command.context_settings.get("ignore_unknown_options") else []
        words = ["spacy", "torchopt", name, *(usage_of(argument) for argument in arguments), "[OPTIONS]", *overrides]
        yield f"```text\n{' '.join(words)}\n```"
        yield fill(escaped(one_line(command.help)))
        rows = [(f"`{shown(argument)}`", "", escaped(argument.help or "")) for argument in arguments]
        rows += [(names_of(option), default_of(option), escaped(option.help or "")) for option in options]
        yield table(("option", "default", "meaning"), rows)


def usage_of(argument: Any) -> str:
    name = shown(argument) + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def shown(argument: Any) -> str:
    return (argument.metavar or argument.name).upper()


def names_of(option: Any) -> str:
    return ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def default_of(option: Any) -> str:
    if option.required:
        return "required"
    is_plain = isinstance(option.default, (str, int, float, Path)) and not isinstance(option.default, bool)
    return f"`{option.default}`" if is_plain else ""


# ---------------------------------------------------------------------- Markdown


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table, without the columns that are empty in all rows."""
    kept = list(rows)
    used = [i for i in range(len(head)) if any(row[i] for row in kept)]
    lines = [[head[i] for i in used], ["---"] * len(used), *([row[i] for i in used] for row in kept)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def default(param: inspect.Parameter) -> str:
    return "required" if param.default is param.empty else f"`{as_config(param.default)}`"


def type_of(hint: Any, written: str) -> str:
    """The type of a setting: as its docstring has it, if that says more than the annotation."""
    if get_origin(hint) is Literal:
        return " or ".join(f"`{as_config(choice)}`" for choice in get_args(hint))
    return written or (hint.__name__ if isinstance(hint, type) else "")


def as_config(value: Any) -> str:
    """A default as a config has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(as_config, value))}]"
    return str(value)


def escaped(text: str) -> str:
    """Docstrings are plain text but for code between backticks: nothing else in them is Markdown."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*|])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "`".join(part.replace("|", "or") if i % 2 else part for i, part in enumerate(parts))


def linked(text: str) -> str:
    return re.sub(r"https?://[^\s;]+[^\s;.,]", r"<\g<0>>", text)


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def fill(text: str) -> str:
    """Lines of the width of this project's, with code between backticks on one line each."""
    text = text if "](http" in text or "<http" in text else linked(text)
    joined = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.fill(joined, WIDTH, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
    return re.sub(r"\n([-+#]|\d+\.)(?= )", r" \1", lines)


def main() -> None:
    found = pages()
    for path in FOLDER.glob("*.md"):
        path.unlink()
    FOLDER.mkdir(exist_ok=True)
    for name, text in found.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
