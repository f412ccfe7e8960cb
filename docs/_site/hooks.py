"""Builds the site from the repository as it is: mkdocs runs these functions (mkdocs.yml, `make docs`).

The site has the paths of the repository: README.md is its first page, and docs/x.md, configs/x.cfg and so on have the
places that they have there. So a relative link works in both. What a page links to becomes part of the site: Markdown
and pictures as they are, other files as pages that show their text, folders as lists of their files.
"""

import logging
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.site")

ROOT = Path(__file__).resolve().parents[2]
STYLE = "docs/_site/site.css"
AS_THEY_ARE = (".md", ".png", ".svg")
LANGUAGES = {".cfg": "ini", ".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
# Code between fences, which is left alone, or a link with its target.
LINK = re.compile(r"^(`{3,}).*?^\1$|(?<=\]\()(?!https?:|mailto:|#)(?P<path>[^)#\s]+)", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r'<div class="language-bash .*?</div>', re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--[\w.-]+")
# What a browser would fetch from elsewhere.
FETCHED = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'\s>]*|<link\b[^>]*\bhref=["']?(?:https?:)?//[^"'\s>]*"""
    r"""|@import\s+["'](?:https?:)?//[^"']*|url\(["']?(?:https?:)?//[^)]*"""
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the pages of docs/ and all that they link to, in place of the files that mkdocs found there."""
    mirrored = Files([file for file in files if file.src_dir != config.docs_dir])
    mirrored.append(File.generated(config, STYLE, abs_src_path=str(ROOT / STYLE)))
    texts: dict[str, str] = {}
    waiting = ["README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
    while waiting:
        path = waiting.pop(0)
        if path in texts or not is_there(path):
            continue
        source = ROOT / path
        if path.endswith(".md") and not source.exists():
            texts[path] = text = shown(path)
            in_nav = InclusionLevel.NOT_IN_NAV
            mirrored.append(File.generated(config, path, content=text, inclusion=in_nav))
        else:
            texts[path] = text = source.read_text(encoding="utf-8") if path.endswith(".md") else ""
            is_guide = path.startswith(("docs/", "benchmarks/")) or "/" not in path
            level = InclusionLevel.INCLUDED if is_guide else InclusionLevel.NOT_IN_NAV
            mirrored.append(File.generated(config, path, abs_src_path=str(source), inclusion=level))
        waiting += [target(path, link["path"]) for link in LINK.finditer(text) if link["path"]]
    return mirrored


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Name the tier of each page about a part that is not stable, after its title."""
    for page in nav.pages:
        if page.title and (tier := tier_of(page.file.src_uri)):
            page.title = f"{page.title} ({tier})"
    return nav


def tier_of(page: str) -> str:
    """The tier of the part that a page is about, as the folder in addons/ says it that its name begins with."""
    folder = re.match(r"docs/([a-z]+)(?:-\w+)*\.md$", page)
    source = folder and ROOT / "thinc_torchopt" / "addons" / folder[1] / "__init__.py"
    text = source.read_text(encoding="utf-8") if source and source.is_file() else ""
    found = re.search(r'^STABILITY: Final = "(\w+)"$', text, re.MULTILINE)
    return found[1] if found else ""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to folders and to files that are no pages lead to the pages that show them."""
    path = page.file.src_uri
    folder = PurePosixPath(path).parent.as_posix()

    def led(link: re.Match[str]) -> str:
        return relpath(target(path, link["path"]), folder) if link["path"] else link[0]

    return LINK.sub(led, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep the options of a command in one piece, where it goes on in the next line: browsers break after a hyphen."""
    return COMMANDS.sub(lambda block: OPTION.sub(r'<span class="option">\g<0></span>', block[0]), html)


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of all that would be fetched when the site is read, which is an error in a strict build."""
    for file in sorted(Path(config.site_dir).rglob("*")):
        if file.suffix in (".html", ".css"):
            for found in FETCHED.finditer(file.read_text(encoding="utf-8")):
                log.warning("%s fetches from elsewhere: %s", file.relative_to(config.site_dir), found[0])


def target(page: str, link: str) -> str:
    """The file of the site that a link of a page leads to. For what is not there: its path, which mkdocs warns of."""
    path = normpath((PurePosixPath(page).parent / link).as_posix())
    if (ROOT / path).is_dir():
        return f"{path}/README.md"
    return path if path.endswith(AS_THEY_ARE) else f"{path}.md"


def is_there(path: str) -> bool:
    return (ROOT / path).exists() or (ROOT / path.removesuffix("/README.md").removesuffix(".md")).exists()


def shown(path: str) -> str:
    """A page that shows a file's text, or lists a folder."""
    if path.endswith("/README.md"):
        folder = ROOT / path.removesuffix("/README.md")
        lines = [f"- [{child.name}]({child.name})" for child in sorted(folder.iterdir()) if is_shown(child)]
        return "\n".join([f"# {folder.relative_to(ROOT).as_posix()}", "", *lines, ""])
    file = ROOT / path.removesuffix(".md")
    language = LANGUAGES.get(file.suffix, "text")
    text = file.read_text(encoding="utf-8").rstrip()
    head = "---\nsearch: {exclude: true}\n---\n"
    return f"{head}# {path.removesuffix('.md')}\n\n````` {language}\n{text}\n`````\n"


def is_shown(path: Path) -> bool:
    return not path.name.startswith((".", "_")) and (path.is_dir() or path.suffix in (*LANGUAGES, ".md"))
