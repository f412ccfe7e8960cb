"""`make wheelhouse`: wheels for another Python and platform in a folder, for a machine without network.

    python -m tests.wheelhouse --python 3.12 --extras test --without torch numpy

The walk starts at this package's own wheel, and follows what wheels require to what it requires in turn. pip finds each
wheel; but it does not find out which ones: it reads conditions like `python_version >= "3.12"` as if the other Python
were its own. docs/offline.md says how to install from the folder.
"""

import argparse
import base64
import csv
import hashlib
import io
import os
import re
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
# glibc 2.28, of 2018: the oldest that torch's wheels run on.
PLATFORM = "manylinux_2_28_x86_64"
OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


class Target:
    """The Python and the platform that wheels are for.

    python (str): As "3.12".
    platform (str): As in the names of wheels. A manylinux takes wheels for all older ones, too.
    """

    def __init__(self, python: str, platform: str):
        if not re.fullmatch(r"3\.\d+(\.\d+)?", python):
            sys.exit(f"Can't collect wheels for Python {python!r}: expected a version, as 3.12. Call: PYTHON=3.12")
        self.python, self.platform, self.platforms = python, platform, [platform]
        system, machine = re.fullmatch(r"([a-z]+)(?:_?\d+)*_(.+)", platform).groups()
        if found := re.fullmatch(r"manylinux_2_(\d+)_\w+", platform):
            minors = range(int(found[1]), 4, -1)
            self.platforms = [f"manylinux_2_{minor}_{machine}" for minor in minors]
            self.platforms += [f"{OLD_NAMES[minor]}_{machine}" for minor in minors if minor in OLD_NAMES]
        names = {"macosx": ("darwin", "Darwin", "posix"), "win": ("win32", "Windows", "nt")}
        sys_platform, platform_system, os_name = names.get(system, ("linux", "Linux", "posix"))
        self.environment: dict[str, str] = {
            **default_environment(),
            "python_version": ".".join(python.split(".")[:2]),
            "python_full_version": python if python.count(".") == 2 else f"{python}.0",
            "sys_platform": sys_platform,
            "platform_system": platform_system,
            "os_name": os_name,
            "platform_machine": "AMD64" if machine == "amd64" else machine,
        }

    def wants(self, requirement: Requirement, extras: Iterable[str]) -> bool:
        """Whether a wheel that was asked for with these extras requires this."""
        marker = requirement.marker
        return marker is None or any(marker.evaluate({**self.environment, "extra": extra}) for extra in [*extras, ""])


def requirements_of(wheel: Path) -> list[Requirement]:
    with ZipFile(wheel) as archive:
        [path] = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        headers = HeaderParser().parsestr(archive.read(path).decode("utf8"))
    return [Requirement(line) for line in headers.get_all("Requires-Dist", [])]


def pins(target: Target, file: Path) -> dict[str, SpecifierSet]:
    """The versions in a file of constraints."""
    found = (Requirement(line) for line in file.read_text("utf8").splitlines() if line and not line.startswith("#"))
    return {canonicalize_name(one.name): one.specifier for one in found if target.wants(one, ())}


class Wheelhouse:
    """A folder of wheels.

    folder (Path): Wheels that are in it are taken where they fit, and deleted where they do not.
    target (Target): What they are for.
    without (Iterable[str]): Names of packages that the other machine has. What only they require is left out, too.
    constraints (dict[str, SpecifierSet]): Versions by names.
    """

    def __init__(
        self,
        folder: Path,
        target: Target,
        without: Iterable[str] = (),
        constraints: dict[str, SpecifierSet] | None = None,
    ):
        self.folder, self.target = folder, target
        self.without = {canonicalize_name(name) for name in without}
        self.constraints = constraints or {}
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def wheels(self) -> dict[str, Path]:
        return {parse_wheel_filename(path.name)[0]: path for path in sorted(self.folder.glob("*.whl"))}

    def collect(self, own: Path, extras: Iterable[str] = ()) -> dict[str, Path]:
        """Fetch all that a wheel requires, and what this requires in turn. It is in the folder already.

        RETURNS (dict[str, Path]): The wheels by their names.
        """
        root = parse_wheel_filename(own.name)[0]
        times: Counter[str] = Counter()
        while True:
            wheels = self.wheels | {root: own}
            wanted = self._walk(wheels, root, extras)
            unfit = [name for name in wanted.keys() & wheels.keys() if not _meets(wheels[name], wanted[name])]
            for name in unfit:
                wheels[name].unlink()
            if unfit:
                continue  # what they require counts no more
            missing = {f"{name}{wanted[name]}" for name in wanted.keys() - wheels.keys()}
            if not missing:
                break
            times.update(missing)
            if again := sorted(one for one in missing if times[one] > 3):
                sys.exit(
                    f"Can't collect wheels: expected versions that fit together, found none of {', '.join(again)} that "
                    "the others agree to. Choose one in constraints.txt, or in a file of your own: VERSIONS=file."
                )
            self._fetch(sorted(missing))
        for name in wheels.keys() - wanted.keys() - {root}:
            wheels[name].unlink()
        return self.wheels

    def _walk(self, wheels: dict[str, Path], root: str, extras: Iterable[str]) -> dict[str, SpecifierSet]:
        """What is required, as far as the wheels that are there tell, and in which versions."""
        wanted: dict[str, SpecifierSet] = {}
        seen: set[tuple[str, str]] = set()
        left = [(root, extra) for extra in ["", *extras]]
        while left:
            name, extra = left.pop()
            if (name, extra) in seen or name not in wheels:
                continue
            seen.add((name, extra))
            for required in requirements_of(wheels[name]):
                key = canonicalize_name(required.name)
                if not self.target.wants(required, [extra]) or key in self.without:
                    continue
                if key != root:
                    wanted[key] = wanted.get(key, self.constraints.get(key, SpecifierSet())) & required.specifier
                left += [(key, one) for one in ["", *required.extras]]
        return wanted

    def _fetch(self, requirements: list[str]) -> None:
        """Have pip fetch one wheel for each, and build those that there are only as source."""
        print(f"Fetching {len(requirements)}: {' '.join(requirements)}", flush=True)
        platforms = [part for platform in self.target.platforms for part in ("--platform", platform)]
        where = ["--implementation", "cp", "--python-version", self.target.python, *platforms]
        with TemporaryDirectory() as name:
            fetched = Path(name)
            _pip("download", "--no-deps", "--prefer-binary", "--dest", name, *where, *requirements)
            for source in (path for path in sorted(fetched.iterdir()) if path.suffix != ".whl"):
                _pip("wheel", "--no-deps", "--wheel-dir", name, source)
            for wheel in sorted(fetched.glob("*.whl")):
                if not self._fits(wheel):
                    sys.exit(
                        f"Can't collect {wheel.name}: expected a wheel for Python {self.target.python} on "
                        f"{self.target.platform}, found only source, which this Python builds for itself. Run this "
                        f"with Python {self.target.python}, on such a machine."
                    )
                (self.folder / wheel.name).write_bytes(wheel.read_bytes())

    def _fits(self, wheel: Path) -> bool:
        """Whether pip found the wheel for the target, or it has been built here and runs everywhere."""
        tags = parse_wheel_filename(wheel.name)[3]
        digits = self.target.environment["python_version"].replace(".", "")
        return any(
            (tag.platform == "any" and tag.abi == "none")
            or (
                tag.platform != "any"
                and _is_for(tag.platform, self.target)
                and tag.abi in (f"cp{digits}", "abi3", "none")
            )
            for tag in tags
        )


def _meets(wheel: Path, specifiers: SpecifierSet) -> bool:
    return specifiers.contains(parse_wheel_filename(wheel.name)[1], prereleases=True)


def _is_for(platform: str, target: Target) -> bool:
    return platform in target.platforms or (platform.split("_")[0] == "macosx" == target.platform.split("_")[0])


def _pip(*args: object) -> None:
    command = [*map(str, args), "--disable-pip-version-check", "--quiet"]
    if call_pip(command):
        sys.exit(f"Can't collect wheels: pip failed, for the reason above. The call was: pip {' '.join(command)}")


def call_pip(args: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pip", *args]).returncode


def tracked(*folders: str) -> list[str]:
    """The files of the repository, new ones too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.splitlines() if (ROOT / path).is_file()]


def clone_to(folder: Path) -> None:
    """Copy the tracked files: setuptools leaves a folder `build`, and takes from it what is there no longer."""
    for path in tracked():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes((ROOT / path).read_bytes())


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a source folder or sdist by the setuptools that is installed here."""
    with TemporaryDirectory() as name:
        _pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", name, source)
        [wheel] = Path(name).glob("*.whl")
        (folder / wheel.name).write_bytes(wheel.read_bytes())
    return folder / wheel.name


def strip(wheel: Path) -> None:
    """Take out of the shared objects of a wheel what only debuggers read, and bring its list of hashes in line."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        with ZipFile(wheel) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            contents = {info.filename: archive.read(info) for info in infos}
        objects = [path for path, content in contents.items() if ".so" in path and content.startswith(b"\x7fELF")]
        for path in objects:
            (folder / "object").write_bytes(contents[path])
            # For another processor, `strip` does not know the format, and leaves the file.
            if not subprocess.run(["strip", "--strip-unneeded", folder / "object"], capture_output=True).returncode:
                stripped_object = (folder / "object").read_bytes()
                if is_loadable(stripped_object):
                    contents[path] = stripped_object
        if not objects:
            return
        [record] = (path for path in contents if re.fullmatch(r"[^/]+\.dist-info/RECORD", path))
        contents[record] = b"".join(_record_lines(contents, record))
        stripped = folder / wheel.name
        with ZipFile(stripped, "w", ZIP_DEFLATED) as archive:
            for info in infos:
                archive.writestr(info, contents[info.filename], ZIP_DEFLATED)
        wheel.write_bytes(stripped.read_bytes())


def is_loadable(elf: bytes) -> bool:
    """Whether a 64-bit shared object can be mapped to memory in pages. `strip` moves the parts of some that patchelf
    has changed, such as the OpenBLAS in NumPy's wheels.
    """
    if elf[4:6] != b"\2\1":  # another class or byte order than the other machines have
        return False
    ((at,), (size, n)) = struct.unpack_from("<Q", elf, 32), struct.unpack_from("<HH", elf, 54)
    parts = [struct.unpack_from("<II6Q", elf, at + i * size) for i in range(n)]
    return not any(kind == 1 and align > 1 and (there - here) % align for kind, _, here, there, *_, align in parts)


def _record_lines(contents: dict[str, bytes], record: str) -> Iterator[bytes]:
    """The lines of RECORD: path, hash and size of each file, and of itself only the path."""
    for path, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode("ascii")
        line = io.StringIO()
        row = (path, "", "") if path == record else (path, f"sha256={digest}", len(content))
        csv.writer(line, lineterminator="\n").writerow(row)
        yield line.getvalue().encode("utf8")


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = ".".join(map(str, sys.version_info[:2]))
    parser.add_argument(
        "--python", default=here, metavar="VERSION", help="of the other Python; this one's: %(default)s"
    )
    parser.add_argument("--platform", default=PLATFORM, help="as in names of wheels: %(default)s")
    parser.add_argument("--extras", nargs="*", default=[], help="of this package, as in setup.cfg")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="packages that are there already")
    parser.add_argument("--constraint", type=Path, default=ROOT / "constraints.txt", help="versions: constraints.txt")
    parser.add_argument("--output", type=Path, help="build/wheelhouse-VERSION")
    options = parser.parse_args(args)
    target = Target(options.python, options.platform)
    house = Wheelhouse(
        options.output or ROOT / "build" / f"wheelhouse-{options.python}",
        target,
        options.without,
        pins(target, options.constraint),
    )
    for path in house.folder.glob("thinc_torchopt-*.whl"):
        path.unlink()
    with TemporaryDirectory() as name:
        clone_to(Path(name))
        own = build_wheel(Path(name), house.folder)
    wheels = list(house.collect(own, options.extras).values())
    if which("strip"):
        for path in wheels:
            strip(path)
    else:
        print("There is no `strip` on this machine: shared objects keep what only debuggers read.")
    sizes = {path.name: path.stat().st_size / MIB for path in wheels}
    for name, size in sizes.items():
        print(f"{size:8.2f} MiB  {name}")
    print(f"{sum(sizes.values()):8.1f} MiB, {len(wheels)} wheels")
    names = "thinc-torchopt" + (f"[{','.join(options.extras)}]" if options.extras else "")
    print(f"There: pip install --no-index --find-links {os.path.relpath(house.folder)} '{names}'")


if __name__ == "__main__":
    main()
