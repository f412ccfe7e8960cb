"""What setup.cfg can't say: the project's links, and README.md as the wheel's description.

Both are made of the addresses in setup.cfg. The relative links of README.md lead to the documentation, a site as
`make docs` builds it, which has the paths of the repository; or to the repository, at the tag of the version. While
there is no address, they are plain text.
"""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
RELATIVE = re.compile(r"(?P<is_picture>!?)\[(?P<text>[^]]*)\]\((?!https?:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def address(name: str) -> str:
    """An address in setup.cfg. Empty: there is none yet."""
    given = ConfigParser()
    given.read(ROOT / "setup.cfg", encoding="utf-8")
    return given.get("addresses", name, fallback="").strip().rstrip("/")


def version() -> str:
    [found] = re.findall(r'__version__ = "(.+)"', (ROOT / "thinc_torchopt" / "about.py").read_text(encoding="utf-8"))
    return found


def project_urls(site: str, repository: str) -> "dict[str, str]":
    """The links of the metadata."""
    urls = {"Documentation": site} if site else {}
    if repository:
        changes = f"{repository}/blob/v{version()}/CHANGELOG.md"
        urls |= {"Source": repository, "Issues": f"{repository}/issues", "Changelog": changes}
    return urls


def description(text: str, site: str, repository: str) -> str:
    """README.md with links that work outside of a clone."""

    def led(link: "re.Match[str]") -> str:
        path, anchor = link["path"], link["anchor"] or ""
        if site:
            path = f"{site}/{re.sub(r'[.]md$', '.html', path)}"
        elif repository:
            path = f"{repository}/{'raw' if link['is_picture'] else 'blob'}/v{version()}/{path}"
        else:
            return "" if link["is_picture"] else link["text"]
        return f"{link['is_picture']}[{link['text']}]({path}{anchor})"

    return RELATIVE.sub(led, text)


if __name__ == "__main__":
    addresses = address("documentation"), address("repository")
    setup(
        long_description=description((ROOT / "README.md").read_text(encoding="utf-8"), *addresses),
        project_urls=project_urls(*addresses),
    )
