"""What setup.cfg can't say: README.md as the wheel's description, where its links must lead somewhere without a clone.

Its relative links lead to the documentation, if setup.cfg has its address (`project_urls`, `Documentation`): a site as
`make docs` builds it, which has the paths of the repository. While there is none, they are plain text.
"""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
RELATIVE = re.compile(r"(?P<is_picture>!?)\[(?P<text>[^]]*)\]\((?!https?:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def address() -> str:
    """Where the documentation is, as setup.cfg says. Empty: nowhere yet."""
    given = ConfigParser()
    given.read(ROOT / "setup.cfg")
    lines = given.get("metadata", "project_urls", fallback="").splitlines()
    urls = dict(re.split(r"\s*=\s*", line, maxsplit=1) for line in lines if line.strip())
    return urls.get("Documentation", "").rstrip("/")


def description(text: str, site: str) -> str:
    """README.md with links that work outside of a clone."""

    def led(link: re.Match[str]) -> str:
        if not site:
            return "" if link["is_picture"] else link["text"]
        path = re.sub(r"\.md$", ".html", link["path"])
        return f"{link['is_picture']}[{link['text']}]({site}/{path}{link['anchor'] or ''})"

    return RELATIVE.sub(led, text)


if __name__ == "__main__":
    setup(long_description=description((ROOT / "README.md").read_text(encoding="utf-8"), address()))
