"""What changed of the parts of a live page: one call for all of them, with the differences only.

A page that is kept up to date shows many answers: its own HTML, a table, the curves of each card. Requested one by one
they would be hundreds of requests a minute, most of whose bytes the page has already. So the page names all of them in
one call, each with the mark of the text that it has.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections import OrderedDict
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from det_keras.master.server.calls import body
from det_keras.master.server.responses import reply
from det_keras.master.web.rest import Rest
from det_keras.master.wire import Message

router = APIRouter(include_in_schema=False)

MOST_PARTS = 60
_LONGEST_ADDRESS = 20_000
_LONGEST_MARK = 64
# What pages show; all of it only reads. Below a checkpoint is its archive, which is no part of a page.
_ALLOWED = re.compile(
    r"/(experiments|trials|projects|models|webhooks|jobs|cluster|compare|figures|tables|api/v1/trials)(?![\w.-])"
    r"|/checkpoints/[\w-]+(?![\w./-])"
)
_MOST_BYTES = 32 << 20
_OK = 200
_MARK = "x-mark"
# Texts are compared by what is between two of these characters, and found again by so many of such pieces.
_PIECE = re.compile(r"[^,<>]*[,<>]|[^,<>]+\Z")
_PIECES = 4


class Part(Message):
    """An answer that a page shows.

    Attributes:
        address: with its query.
        have: the mark of the text that the page has; empty for none.
    """

    address: Annotated[str, Field(max_length=_LONGEST_ADDRESS)]
    have: Annotated[str, Field(max_length=_LONGEST_MARK)] = ""


class PartsBody(Message):
    """All answers that a page shows."""

    parts: Annotated[list[Part], Field(max_length=MOST_PARTS)]


class Remembered:
    """The latest texts by their marks, for any thread, as many as fit into 32 MiB."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._size = 0

    def note(self, text: str) -> str:
        """Remember a text, and return its mark."""
        mark = hashlib.sha256(text.encode()).hexdigest()[:_LONGEST_MARK]
        with self._lock:
            if mark in self._texts:
                self._texts.move_to_end(mark)
                return mark
            self._texts[mark] = text
            self._size += len(text)
            while self._size > _MOST_BYTES:
                self._size -= len(self._texts.popitem(last=False)[1])
        return mark

    def get(self, mark: str) -> str | None:
        """Return the text of a mark, if it is still known."""
        with self._lock:
            return self._texts.get(mark)


_remembered = Remembered()


@router.post("/live/parts")
async def parts(request: Request, asked: Annotated[PartsBody, body(PartsBody)]) -> Response:
    """Return the parts of a page: for each its status, its mark, and its text or what changed of it.

    A part has `same` if the page has it, `changes` if the page has an earlier text (see `changes`), otherwise `text`.
    """
    rest = Rest(request)
    answers = await asyncio.gather(*(_answer(rest, part) for part in asked.parts))
    return reply({"parts": answers})


async def _answer(rest: Rest, part: Part) -> dict[str, Any]:
    if _ALLOWED.match(part.address) is None:
        return {"status": 404, "text": "{}"}
    status, text = await rest.text(part.address)
    if status != _OK:
        return {"status": status, "text": text}
    mark = _remembered.note(text)
    if mark == part.have:
        return {"status": status, "mark": mark, "same": True}
    before = _remembered.get(part.have)
    found = None if before is None else await anyio.to_thread.run_sync(changes, before, text)
    if found is None:
        return {"status": status, "mark": mark, "text": text}
    return {"status": status, "mark": mark, "changes": found}


def changes(before: str, after: str) -> list[str | list[int]] | None:
    """Return how a text is made of another one, in order: texts, and ``[from, to]`` for what is copied.

    Places are counted in UTF-16, as in JavaScript: None if that differs from Python's, and if most is new anyway.

    Example:
        ```pycon
        >>> changes("a,b,c,d,e,f,g,h,", "a,b,c,d,e,X,f,g,h,")
        [[0, 10], 'X,f,g,h,']
        ```
    """
    if not before.isascii() and max(before) > "\uffff":
        return None
    old, new = _PIECE.findall(before), _PIECE.findall(after)
    starts = [0]
    for piece in old:
        starts.append(starts[-1] + len(piece))
    places: dict[tuple[str, ...], int] = {}
    for place in range(len(old) - _PIECES + 1):
        places.setdefault(tuple(old[place : place + _PIECES]), place)
    made: list[str | list[int]] = []
    unknown: list[str] = []
    new_length = 0
    place = 0
    while place < len(new):
        at = places.get(tuple(new[place : place + _PIECES]))
        if at is None:
            unknown.append(new[place])
            place += 1
            continue
        end = at
        while end < len(old) and place < len(new) and old[end] == new[place]:
            end, place = end + 1, place + 1
        if unknown:
            made.append("".join(unknown))
            new_length += len(made[-1])
            unknown = []
        made.append([starts[at], starts[end]])
    if unknown:
        made.append("".join(unknown))
        new_length += len(made[-1])
    return made if 2 * new_length < len(after) else None


class MarkMiddleware:
    """Names the mark of an answer that is sent as a whole, for pages that will ask what changed of it.

    Args:
        app: the next application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; one with the header `X-Mark` gets the mark in a header of this name."""
        if scope["type"] != "http" or _MARK not in Headers(scope=scope):
            await self._app(scope, receive, send)
            return
        begun: list[ASGIMessage] = []

        async def marked(message: ASGIMessage) -> None:
            if message["type"] == "http.response.start":
                begun.append(message)
                return
            start = begun.pop() if begun else None
            if start is not None:
                if start["status"] == _OK and not message.get("more_body", False):
                    text = message.get("body", b"").decode("utf-8", "replace")
                    MutableHeaders(scope=start)[_MARK] = _remembered.note(text)
                await send(start)
            await send(message)

        await self._app(scope, receive, marked)
