"""Notes in Markdown as HTML: no HTML of users passes through, and nothing is loaded from other hosts."""

from __future__ import annotations

import functools

from markdown_it import MarkdownIt
from markupsafe import Markup


def markdown(text: str) -> Markup:
    """Return Markdown as HTML.

    Args:
        text: of a user. HTML in it is shown as text, images as links, and links with other schemes than those of web
            pages and mail are no links.
    """
    return Markup(_parser().render(text))


@functools.cache
def _parser() -> MarkdownIt:
    # `js-default` is CommonMark without HTML, with tables and strikethrough; it refuses links such as `javascript:`.
    return MarkdownIt("js-default", {"html": False, "linkify": False}).disable("image")
