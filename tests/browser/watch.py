"""What a page did while it was open: its errors, and whom it asked."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from importlib import resources
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, WebError

__all__ = ["Watch", "accessibility_faults"]


class Watch:
    """Notes what goes wrong on the pages of a browser's context.

    Args:
        context: whose pages are watched.
        host: the only one that they may talk to.
    """

    def __init__(self, context: BrowserContext, host: str) -> None:
        self._host = host
        self._forgiven: list[re.Pattern[str]] = []
        self.errors: list[str] = []
        self.foreign_requests: list[str] = []
        context.on("console", self._note_message)
        context.on("weberror", self._note_error)
        context.on("request", self._note_request)

    @contextlib.contextmanager
    def forgiving(self, pattern: str) -> Iterator[None]:
        """Pass over errors that match, such as those of a master that is being restarted."""
        self._forgiven.append(re.compile(pattern))
        yield
        self._forgiven.pop()

    def check(self) -> None:
        """Fail if a page logged an error or asked another host."""
        assert not self.errors, f"errors on the browser's console: {self.errors}"
        assert not self.foreign_requests, f"requests to other hosts: {self.foreign_requests}"

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._note(f"{message.text} ({message.location.get('url', '')})")

    def _note_error(self, error: WebError) -> None:
        self._note(str(error.error))

    def _note(self, text: str) -> None:
        if not any(pattern.search(text) for pattern in self._forgiven):
            self.errors.append(text)

    def _note_request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("about", "blob", "data", "file") and address.netloc != self._host:
            self.foreign_requests.append(request.url)


def accessibility_faults(page: Page) -> list[str]:
    """Return the faults that axe-core finds on a page, with the elements."""
    script = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    # By the debugger, not by a script element: the page's policy would refuse that, as it should.
    page.evaluate(f"{script}; undefined")
    result = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{fault['id']} ({fault['impact']}): {node['html'][:200]}: {' '.join(node['failureSummary'].split())}"
        for fault in result["violations"]
        for node in fault["nodes"]
    ]
