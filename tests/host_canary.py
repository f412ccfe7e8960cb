"""Which functions of spaCy and thinc changed, of those that this package replaces or follows?

    python -m tests.host_canary                  in the installed versions
    python -m tests.host_canary FOLDER           in other versions:
                                                 pip install --pre --no-deps --target FOLDER spacy thinc
    python -m tests.host_canary FOLDER --diff    and how they differ from the installed ones
    python -m tests.host_canary --record [FOLDER ...]
                                                 record the installed versions, and those in the folders, anew

core/hooks.py and cli/_train_command.py list the functions that are replaced; lines with SOURCE in the package name
those that its own code follows. Their parameters and the digests of their sources are recorded in host_functions.json,
for each supported version. The sources are read and not imported, so another version needs nothing that it requires.
Comments, docstrings and formatting do not count.

It ends with 1 if a function changed or is gone.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from difflib import unified_diff
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from thinc_torchopt.cli._train_command import replaced_in_command
from thinc_torchopt.core import hooks

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_name("host_functions.json")
HOSTS = ("spacy", "thinc")
# As in `SOURCE: spacy/training/initialize.py (3.8), `init_nlp`` and `SOURCE: spacy.training.loop.create_train_batches`.
IN_FILE = re.compile(
    r"(?P<path>(?:spacy|thinc)/[\w/]+\.py)(?: \([\d.]+\))?,\s+(?P<names>`[\w.]+`(?:(?:,| and) `[\w.]+`)*)"
)
DOTTED = re.compile(r"SOURCE: (?P<module>(?:spacy|thinc)(?:\.\w+)+)\.(?P<name>\w+)")


class Place(NamedTuple):
    """A function of a host. path (str): Its file. name (str): Its name there, as 'Language.initialize'."""

    path: str
    name: str

    def __str__(self) -> str:
        return f"{self.path.removesuffix('.py').replace('/', '.')}.{self.name}"


class Form(NamedTuple):
    """A function in a version.

    params (tuple[str, ...]): Its parameters, as written; or where it is imported from.
    function (ast.FunctionDef | None): Its syntax tree. None: it is imported.
    """

    params: tuple[str, ...]
    function: ast.FunctionDef | None

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(tree_of(self.function)).encode()).hexdigest()[:16]

    @property
    def lines(self) -> list[str]:
        return ast.unparse(self.function).splitlines() if self.function else []


def replaced_functions() -> list[Place]:
    """The functions that are replaced."""
    places = []
    for replaced in (*hooks.replaced_functions(), *replaced_in_command()):
        owner = replaced.owner
        module = owner.__module__ if isinstance(owner, type) else owner.__name__
        name = f"{owner.__qualname__}.{replaced.name}" if isinstance(owner, type) else replaced.name
        places.append(Place(f"{module.replace('.', '/')}.py", name))
    return places


def followed_functions(installed: Host) -> list[Place]:
    """The functions that lines with SOURCE name, if they are written in Python."""
    places = []
    for path in sorted((ROOT / "thinc_torchopt").rglob("*.py")):
        text = re.sub(r"\n\s*(?:# )?", " ", path.read_text(encoding="utf-8"))
        for found in IN_FILE.finditer(text):
            places += [Place(found["path"], name) for name in re.findall(r"`([\w.]+)`", found["names"])]
        places += [Place(f"{found['module'].replace('.', '/')}.py", found["name"]) for found in DOTTED.finditer(text)]
    return [exact for place in places for exact in installed.exact(place)]


class Host:
    """spaCy and thinc in a folder. folder (Path | None): As pip's --target. None: the installed ones."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self.versions: dict[str, str] = {}
        self._roots: dict[str, Path] = {}
        for name in HOSTS:
            if folder is None:
                self.versions[name] = version(name)
                [root] = find_spec(name).submodule_search_locations
                self._roots[name] = Path(root).parent
            elif (folder / name).is_dir():
                [found] = distributions(name=name, path=[str(folder)])
                self.versions[name] = found.version
                self._roots[name] = folder
        if not self.versions:
            raise PackageNotFoundError(f"spacy or thinc in {folder}")
        self._files: dict[str, dict[str, Form]] = {}

    def __str__(self) -> str:
        return ", ".join(f"{name} {number}" for name, number in self.versions.items())

    def has(self, place: Place) -> bool:
        return host_of(place) in self.versions

    def exact(self, place: Place) -> list[Place]:
        """The functions of this name, which may lack that of its class."""
        forms = self._forms(place.path).items()
        names = [name for name, form in forms if form.function and f".{name}".endswith(f".{place.name}")]
        return [Place(place.path, name) for name in names]

    def find(self, place: Place) -> Form | None:
        return self._forms(place.path).get(place.name)

    def _forms(self, path: str) -> dict[str, Form]:
        if path not in self._files:
            root = self._roots[path.partition("/")[0]]
            there = [root / path, root / path.removesuffix(".py") / "__init__.py"]
            text = next((file.read_text(encoding="utf-8") for file in there if file.is_file()), "")
            self._files[path] = dict(forms_in(ast.parse(text), ""))
        return self._files[path]


def forms_in(tree: ast.AST, prefix: str) -> Iterator[tuple[str, Form]]:
    """Each function of a module, by its name, and each that it imports. Those within functions are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", Form(tuple(params_of(node.args)), without_docstrings(node))
        elif isinstance(node, ast.ClassDef):
            yield from forms_in(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                where = f"import from {'.' * node.level}{node.module or ''}"
                yield f"{prefix}{alias.asname or alias.name}", Form((where,), None)
        elif isinstance(node, (ast.If, ast.Try)):
            yield from forms_in(node, prefix)


def params_of(args: ast.arguments) -> Iterator[str]:
    """Each parameter with its annotation and its default, as `sgd: Optional[Optimizer]=None`; and a `*` before those
    that have to be named.
    """
    in_order = [*args.posonlyargs, *args.args]
    defaults = [*[None] * (len(in_order) - len(args.defaults)), *args.defaults, *args.kw_defaults]
    for arg, default in zip([*in_order, *args.kwonlyargs], defaults):
        if arg in args.kwonlyargs[:1] and args.vararg is None:
            yield "*"
        yield ast.unparse(arg) + (f"={ast.unparse(default)}" if default else "")
    yield from (f"{stars}{ast.unparse(arg)}" for stars, arg in (("*", args.vararg), ("**", args.kwarg)) if arg)


def without_docstrings(function: ast.FunctionDef) -> ast.FunctionDef:
    for node in ast.walk(function):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return function


def tree_of(node: Any) -> Any:
    """A syntax tree as nested lists, the same in each version of Python: `ast.dump` and `ast.unparse` differ."""
    if isinstance(node, ast.AST):
        fields = [[name, tree_of(value)] for name, value in ast.iter_fields(node) if value is not None and value != []]
        return [type(node).__name__, *fields]
    return [tree_of(item) for item in node] if isinstance(node, list) else repr(node)


def host_of(place: Place) -> str:
    return place.path.partition("/")[0]


def record(hosts: list[Host], places: list[Place]) -> dict[str, list[dict[str, object]]]:
    """The forms of the functions in some versions, each once with its versions."""
    recorded = {}
    for place in sorted(set(places)):
        versions: dict[tuple[tuple[str, ...], str], list[str]] = {}
        for host in hosts:
            if host.has(place) and (form := host.find(place)) is not None:
                versions.setdefault((form.params, form.digest), []).append(host.versions[host_of(place)])
        recorded[str(place)] = [
            {"params": params, "digest": digest, "versions": found} for (params, digest), found in versions.items()
        ]
    return recorded


def listed(params: set[str]) -> str:
    return ", ".join(f"`{param}`" for param in sorted(params)) or "none more"


def written(recorded: dict[str, list[dict[str, object]]]) -> str:
    """As JSON, with a line for each form."""
    parts = [
        f" {json.dumps(name)}: [\n  " + ",\n  ".join(map(json.dumps, forms)) + "\n ]"
        for name, forms in recorded.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def changes(host: Host, places: list[Place], recorded: dict[str, list[dict[str, object]]]) -> dict[Place, str]:
    """Says of each function that is in no recorded form what is different. Empty: all are as recorded."""
    told = {}
    for place in places:
        if not host.has(place):
            continue
        form, known = host.find(place), recorded.get(str(place))
        if known is None:
            told[place] = "it is not recorded"
        elif form is None:
            told[place] = "it is gone"
        elif list(form.params) not in [one["params"] for one in known]:
            expected, found = set(known[-1]["params"]), set(form.params)
            told[place] = f"parameters: expected {listed(expected - found)}, found {listed(found - expected)}"
        elif form.digest not in [one["digest"] for one in known]:
            told[place] = "same parameters, other source"
    return told


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--diff", action="store_true", help="Show how they differ from the installed ones")
    parser.add_argument("--record", action="store_true", help="Record the functions anew")
    given = parser.parse_args(arguments)
    installed, replaced = Host(), replaced_functions()
    followed = [place for place in followed_functions(installed) if place not in replaced]
    others = [Host(folder) for folder in given.folders]
    if given.record:
        recorded = record([*others, installed], replaced + followed)
        RECORD.write_text(written(recorded), encoding="utf-8")
        print(f"Recorded {len(recorded)} functions in {RECORD.name}, of {'; '.join(map(str, [*others, installed]))}.")
        return 0
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    number = 0
    for host in others or [installed]:
        for kind, places in (("replaced", replaced), ("followed", followed)):
            told = changes(host, list(dict.fromkeys(places)), recorded)
            watched = sum(1 for place in set(places) if host.has(place))
            print(f"{host}: {len(told)} of {watched} functions that are {kind} changed{':' if told else '.'}")
            for place, what in told.items():
                print(f"  {place}: {what}")
                if given.diff and (old := installed.find(place)) and (new := host.find(place)):
                    print(*unified_diff(old.lines, new.lines, lineterm="", n=1), sep="\n")
            number += len(told)
    return int(number > 0)


if __name__ == "__main__":
    sys.exit(main())
