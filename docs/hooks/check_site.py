"""Check that a built site loads nothing from another host: `python docs/hooks/check_site.py build/site`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

__all__ = ["foreign_resources", "main"]

#: What a browser loads by itself; it follows the `href` of an `a` only on a click.
_LOADED = ("src", "srcset", "href", "data", "poster", "action")
_FOREIGN = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
_IN_STYLE = re.compile(r"(?:@import\s+|url\(\s*)['\"]?\s*((?:https?:)?//[^'\")\s;]+)", re.IGNORECASE)
#: The theme loads the script that draws these from another host.
_LOADED_BY_THEME = "mermaid"


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "class" and _LOADED_BY_THEME in (value or "").split():
                self.found.append(f"a {_LOADED_BY_THEME} diagram")
            if name == "style":
                self.found += _IN_STYLE.findall(value or "")
            if name in _LOADED and tag != "a" and _FOREIGN.match(value or ""):
                self.found.append(f"<{tag} {name}={value}>")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "style":
            self.found += _IN_STYLE.findall(data)


def foreign_resources(site: Path) -> Iterator[str]:
    """Yield each resource of another host, with the file that loads it."""
    for path in sorted(site.rglob("*")):
        if path.suffix not in (".html", ".css"):
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".css":
            found = _IN_STYLE.findall(text)
        else:
            page = _Page()
            page.feed(text)
            found = page.found
        yield from (f"{path.relative_to(site)}: {resource}" for resource in found)


def main(site: Path) -> int:
    """Print what is found; return 1 if there is anything, or no page at all."""
    pages = len(list(site.rglob("*.html")))
    found = list(foreign_resources(site))
    print(f"{pages} pages, {len(found)} resources of other hosts", *found, sep="\n  ")
    return 0 if pages and not found else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
