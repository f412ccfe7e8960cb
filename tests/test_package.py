"""The package as it is installed: entry points, names, and what importing it costs."""

import ast
import re
import subprocess
import sys
from configparser import ConfigParser
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest
import spacy

import thinc_torchopt
from thinc_torchopt.core import errors

from .conftest import CONFIGS

PACKAGE = Path(thinc_torchopt.__file__).parent
ROOT = CONFIGS.parent
ATTACHMENTS = "thinc_torchopt_attachments"


def test_package_all_is_sorted_and_true():
    assert thinc_torchopt.__all__ == sorted(thinc_torchopt.__all__, key=lambda name: (not name.isupper(), name))
    for name in thinc_torchopt.__all__:
        assert getattr(thinc_torchopt, name) is not None
    assert set(dir(thinc_torchopt)) == set(thinc_torchopt.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        thinc_torchopt.nonsense  # noqa: B018


def test_package_import_is_cheap():
    code = (
        "import sys, thinc_torchopt; print([m for m in ('torch', 'cupy', 'thinc', 'spacy', 'numpy') if m in "
        "sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_package_entry_points_all_load_and_are_seen_by_spacy():
    import thinc_torchopt.core.registry  # noqa: F401

    groups = {
        "thinc_optimizers": "optimizers",
        "thinc_torch_optimizers": "torch_optimizers",
        "thinc_gradient_modules": "gradient_modules",
        "thinc_regularizers": "regularizers",
        "thinc_schedules": "schedules",
        "thinc_layers": "layers",
        "spacy_architectures": "architectures",
        "spacy_batchers": "batchers",
        "spacy_cli": "cli",
        "spacy_loggers": "loggers",
        "spacy_misc": "misc",
        "spacy_readers": "readers",
    }
    count = 0
    for group, registry_name in groups.items():
        for entry_point in entry_points(group=group):
            if entry_point.value.startswith("thinc_torchopt."):
                function = entry_point.load()
                assert spacy.registry.get(registry_name, entry_point.name) is function
                count += 1
    assert count == 77


@cache
def trees():
    """The package's code, by the path of its files."""
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def test_package_learn_rate_has_one_writer():
    """Nothing but core/rates/writer.py writes the `lr` of a torch param group; torchao's steps get it as a tensor."""
    writers = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
            if any(isinstance(target, ast.Subscript) and ast.unparse(target.slice) == "'lr'" for target in targets):
                writers.append(path.rpartition("/")[2])
    # For optimizers without a writer: new_params.py.
    assert set(writers) == {"writer.py", "torchao.py", "new_params.py"}


def is_name(node, *names):
    return isinstance(node, ast.Name) and node.id in names


def private_names(tree):
    """What begins with an underscore and is read of something else than `self`, or imported from a host; by line."""

    def is_private(name):
        return name.startswith("_") and not name.startswith("__")

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of_self = is_name(node.value, "self", "cls")
            names = [] if of_self else [node.attr]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Call) and is_name(node.func, "getattr", "setattr", "hasattr", "delattr"):
            names = [node.args[1].value] if isinstance(node.args[1], ast.Constant) else []
        else:
            continue
        yield from ((name, node.lineno) for name in names if is_private(name))


def own_names(tree):
    """What a file gives a name to: attributes of `self`, variables, fields, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_name(node.value, "self"):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name


def test_package_private_parts_of_the_hosts_are_known_in_one_place():
    """host.py, beside torch's ops in kernels.py: nobody else reads what is read there, or a name that is not ours."""
    known = {name for name, _ in private_names(trees()["core/host.py"])}
    assert {"_model", "_grad_scaler", "_buffers", "_version", "_util", "_optimizer_step_pre_hooks"} <= known
    ops = {name for name, _ in private_names(trees()["core/kernels.py"])}
    assert ops and all(name.startswith(("_foreach_", "_fused_")) for name in ops)
    # Those of a NamedTuple are public.
    ours = {name for tree in trees().values() for name in own_names(tree)} | {"_asdict", "_fields"}
    assert [
        f"{path}:{line}: {name}"
        for path, tree in trees().items()
        if path not in ("core/host.py", "core/kernels.py")
        for name, line in private_names(tree)
        if name in known or name not in ours
    ] == []


def test_package_torch_optimizers_are_the_algorithms():
    module, home = (import_module(f"thinc_torchopt.{name}") for name in ("torch_optimizers", "core.algorithms"))
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is getattr(home, name)


def test_package_errors_are_builtins_too():
    ours = [value for value in vars(errors).values() if isinstance(value, type) and value is not errors.TorchOptError]
    assert len(ours) > 8
    for cls in ours:
        assert issubclass(cls, (ValueError, RuntimeError, OSError, ImportError, UserWarning))
        assert cls.__name__ in errors.__doc__


# Parts of add-ons in a run: their doors are opened when a config is read, which must not import the loop.
IN_A_RUN = {"budget", "private_run", "ranks", "run_rules"}


def test_package_rooms_are_entered_by_their_doors():
    """What one room of core, or one add-on, imports from another is what the other's `__init__` re-exports."""
    rooms = {
        path.parent.relative_to(PACKAGE).parts
        for layer in ("core", "addons")
        for path in (PACKAGE / layer).glob("*/__init__.py")
    }
    by_window = []
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).parts
        if len(here) == 1:
            continue  # names for users
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                target = (*here[: len(here) - node.level], *(node.module or "").split("."))
                if target[:2] in rooms - {here[:2]} and len(target) > 2 and target[-1] not in IN_A_RUN:
                    by_window.append(f"{path.relative_to(PACKAGE)}: {'.'.join(target)}")
    assert by_window == []
    for path in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path.parent.name} does not say what it is about"


def test_package_core_and_loop_name_no_add_on():
    """Not even in a string: no file of one, and no block or function that it registers."""
    setup = ConfigParser(delimiters="=", interpolation=None)
    setup.optionxform = str
    setup.read(CONFIGS.parent / "setup.cfg", encoding="utf8")
    named, points = [r"\baddons\b"], setup["options.entry_points"]
    ours = set(re.findall(r"(?m)^(\S+) = thinc_torchopt\.(?:core|loop)\.", "\n".join(points.values())))
    for group, lines in points.items():
        for name in re.findall(r"(?m)^(\S+) = thinc_torchopt\.addons\.", lines):
            if group == ATTACHMENTS:
                named.append(rf"\[training\.optimizer\.{name}\b")
            elif ".v" in name and name not in ours:
                named.append(re.escape(name))
    assert len(named) > 20
    name = re.compile("|".join(named))
    files = [path for layer in ("core", "loop") for path in (PACKAGE / layer).rglob("*.py")]
    lines = [(path, n, line) for path in files for n, line in enumerate(path.read_text().splitlines(), 1)]
    assert [f"{path.relative_to(PACKAGE)}:{n}: {line.strip()}" for path, n, line in lines if name.search(line)] == []


def test_package_names_in_the_docs_can_be_imported():
    """Those of README, docs and examples. A public module has one line: its home is below."""
    examples = [path for kind in ("py", "toml") for path in ROOT.glob(f"examples/**/*.{kind}")]
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *examples]
    found = set()
    for path in files:
        text = path.read_text(encoding="utf8")
        for module, names in re.findall(r"from (thinc_torchopt[\w.]*) import ([\w, ]+)", text):
            found |= {(module, name.strip()) for name in names.split(",")}
        found |= set(re.findall(r'"(thinc_torchopt[\w.]+):(\w+)"', text))
    assert len(found) > 30
    for module, name in sorted(found):
        if find_spec("flwr") or not module.endswith((".client", ".server")):
            assert hasattr(import_module(module), name), f"{module}: {name}"
    for path in PACKAGE.glob("*.py"):
        if path.name not in ("__init__.py", "about.py"):
            kinds = {type(node) for node in ast.parse(path.read_text()).body}
            assert kinds <= {ast.Expr, ast.ImportFrom, ast.Assign}, path.name


def test_package_lowest_versions_are_those_that_setup_allows():
    """lowest.txt has the lower end of each range, but for numpy's, which it says; and each requirement stands once."""
    setup = ConfigParser(delimiters="=", interpolation=None)
    setup.read(CONFIGS.parent / "setup.cfg", encoding="utf8")
    extras = setup["options.extras_require"]
    lines = [
        setup["options"]["install_requires"],
        *(extras[name] for name in ("optimizers", "plot", "tensorboard", "test", "tune")),
    ]
    required = re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(lines), re.MULTILINE)
    lowest = re.findall(r"^([\w-]+)==([\d.]+)$", (CONFIGS.parent / "lowest.txt").read_text(), re.MULTILINE)

    def versions(found):
        return sorted((name, [int(part) for part in f"{version}.0.0".split(".")][:3]) for name, version in found)

    required, lowest = versions(required), versions(lowest)
    assert [name for name, _ in required] == [name for name, _ in lowest]
    assert [found for found in zip(required, lowest) if found[0] != found[1]] == [
        (("numpy", [1, 24, 0]), ("numpy", [1, 25, 0]))
    ]
