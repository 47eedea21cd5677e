"""Pages of the site whose text is in the repository outside of `docs/`, and links to such files."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath

__all__ = ["pages", "with_site_links"]

#: Repository path -> page.
_DOCUMENTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
#: Folder -> title of the page that shows each of its files.
_FOLDERS = {"configs": "Ready-to-use configs", "docker": "Image for a cluster", "examples": "Examples"}
_LANGUAGES = {"": "dockerfile", ".py": "python", ".yaml": "yaml"}
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")


def pages(root: Path) -> dict[str, str]:
    """Return page -> text, for every page that is not in `docs/`."""
    texts = {page: (root / path).read_text(encoding="utf-8") for path, page in _DOCUMENTS.items()}
    for folder, title in _FOLDERS.items():
        texts[f"files/{folder}.md"] = f"# {title}\n\n" + "\n".join(
            _file_section(path, root)
            for pattern in ("*.*", "Dockerfile")
            for path in sorted((root / folder).rglob(pattern))
        )
    return texts


def with_site_links(markdown: str, page: str, root: Path) -> str:
    """Return a page's text with each link to a repository file replaced by one to its page.

    Args:
        markdown: the text.
        page: the page, relative to the site.
        root: the repository.
    """
    origin = next((path for path, target in _DOCUMENTS.items() if target == page), f"docs/{page}")

    def replaced(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match["path"]))
        if not (root / path).exists():
            return match[0]  # for the validation of mkdocs, or not a link at all
        target = _page_of(path)
        anchor = match["anchor"] or ""
        if target is None:
            target = path.removeprefix("docs/")
        elif "#" in target:
            target, _, anchor = target.partition("#")
            anchor = f"#{anchor}"
        return posixpath.relpath(target, posixpath.dirname(page) or ".") + anchor

    return _LINK.sub(replaced, markdown)


def _page_of(path: str) -> str | None:
    if path in _DOCUMENTS:
        return _DOCUMENTS[path]
    folder = PurePosixPath(path).parts[0]
    if folder not in _FOLDERS:
        return None
    return f"files/{folder}.md" + (f"#{path}" if path != folder else "")


def _file_section(path: Path, root: Path) -> str:
    name = path.relative_to(root).as_posix()
    language = _LANGUAGES.get(path.suffix, "text")
    text = path.read_text(encoding="utf-8")
    return f"## `{name}` {{ #{name} }}\n\n```{language}\n{text.rstrip()}\n```\n"
