"""The hooks of mkdocs: pages from files outside `docs/`, and generated parts of pages.

A line `<!-- generated: NAME ARGUMENT... -->` in a page is replaced by what the function `NAME` in `_GENERATORS`
returns. Nothing that is generated is checked in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import config_reference
import python_api
import repository_files
import rest_api
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_GENERATORS: dict[str, Callable[..., str]] = {
    "command_line": command_line.generate,
    "config_reference": config_reference.generate,
    "python_api": python_api.generate,
    "rest_api": rest_api.generate,
}
_MARKER = re.compile(r"^<!-- generated: (?P<name>\w+)(?P<arguments>[^>]*) -->$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages whose text is outside of `docs/`."""
    root = Path(config.config_file_path).parent
    for uri, content in repository_files.pages(root).items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Fill in generated parts, and point links to repository files at their pages."""
    root = Path(config.config_file_path).parent
    markdown = _MARKER.sub(lambda match: _GENERATORS[match["name"]](*match["arguments"].split()), markdown)
    return repository_files.with_site_links(markdown, page.file.src_uri, root)
