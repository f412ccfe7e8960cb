"""public_names.txt: each name that users import, and each entry point, with its group, that configs name."""

from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import thinc_torchopt

from .conftest import CONFIGS

NAMES = Path(__file__).with_name("public_names.txt")


def public_names():
    """Those of the package, of the files beside its folders, and of setup.cfg."""
    files = Path(thinc_torchopt.__file__).parent.glob("*.py")
    modules = [f"thinc_torchopt.{path.stem}" for path in files if path.stem not in ("__init__", "about")]
    found = set()
    for module in map(import_module, ["thinc_torchopt", *modules]):
        # Of a module without __all__, errors.py, all that an asterisk imports but modules.
        names = getattr(module, "__all__", [name for name, value in vars(module).items() if isinstance(value, type)])
        assert all(hasattr(module, name) for name in names)
        found |= {f"{module.__name__}.{name}" for name in names}
    setup = ConfigParser(delimiters="=", interpolation=None)
    setup.optionxform = str
    setup.read(CONFIGS.parent / "setup.cfg", encoding="utf8")
    for group, lines in setup["options.entry_points"].items():
        found |= {f"{group} {line.partition(' = ')[0]}" for line in lines.split("\n") if line}
    return found


def test_public_names_are_those_of_the_file():
    listed = NAMES.read_text(encoding="utf8").splitlines()
    assert listed == sorted(set(listed)), "Sort tests/public_names.txt, each name once."
    gone, new = sorted({*listed} - public_names()), sorted(public_names() - {*listed})
    assert not gone, (
        f"No longer public: {', '.join(gone)}. Whoever removes a name tells so in CHANGELOG.md and docs/stability.md, "
        "with what to use instead, and removes its line from tests/public_names.txt."
    )
    assert not new, f"New public names: {', '.join(new)}. Add them to tests/public_names.txt."
