"""Reads the bodies of requests: as many bytes as a call may have, no slower than a bad line sends them."""

from __future__ import annotations

import anyio
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from det_keras.master.errors import ApiError

#: Without a login: more than any name and password need.
MOST_ANONYMOUS_BYTES = 64 << 10
#: The usual body: a config of 1 MiB, escaped.
MOST_BYTES = 4 << 20
#: Files of an experiment or a job: 95 MB in base64.
MOST_FILE_BYTES = 128 << 20
#: Lines of a log.
MOST_LOG_BYTES = 64 << 20

# A body gets 10 s, and one more for each 16 KiB; but a client that sends nothing for 30 s has left.
_FIRST_S = 10.0
_BYTES_PER_S = 16 << 10
_LONGEST_GAP_S = 30.0


class TooLargeError(ApiError):
    """The body is too large."""

    status, code, reason = 413, 3, "InvalidArgument"

    def __init__(self, most_bytes: int, length: str = "more") -> None:
        super().__init__(f"The body may have {_size(most_bytes)} here, received {length} bytes.")


class TooSlowError(ApiError):
    """The body arrives too slowly."""

    status, code, reason = 408, 4, "DeadlineExceeded"

    def __init__(self) -> None:
        super().__init__(
            f"The body arrived too slowly: it has {_FIRST_S:.0f} s, and one more for each "
            f"{_BYTES_PER_S >> 10} KiB."
        )


class BrokenOffError(ApiError):
    """The client closed the connection within the body, and so does not receive this."""

    status, code, reason = 400, 1, "Cancelled"


async def read_body(scope: Scope, receive: Receive, most_bytes: int) -> bytes:
    """Return the body of a request.

    Args:
        scope: the request.
        receive: returns its messages.
        most_bytes: how long it may be. Nothing is read of a body whose Content-Length is larger.

    Raises:
        TooLargeError: it is longer.
        TooSlowError: it arrives too slowly.
        BrokenOffError: the client closed the connection.
    """
    length = Headers(scope=scope).get("content-length", "")
    if length.isdigit() and int(length) > most_bytes:
        raise TooLargeError(most_bytes, length)
    parts: list[bytes] = []
    size, is_whole = 0, False
    with anyio.move_on_after(_FIRST_S) as limit:
        while not is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BrokenOffError("The client closed the connection before the body was complete.")
            part = message.get("body", b"")
            size += len(part)
            if size > most_bytes:
                raise TooLargeError(most_bytes)
            parts.append(part)
            is_whole = not message.get("more_body", False)
            if not is_whole:
                earned = limit.deadline + len(part) / _BYTES_PER_S
                limit.deadline = min(earned, anyio.current_time() + _LONGEST_GAP_S)
    if not is_whole:
        raise TooSlowError
    return b"".join(parts)


async def arrived(scope: Scope, receive: Receive, most_bytes: int) -> Receive:
    """Wait until the body of a request has arrived; return a `receive` that has all of it.

    Args:
        scope: the request.
        receive: returns its messages.
        most_bytes: as in `read_body`, which raises the same errors.
    """
    body = await read_body(scope, receive, most_bytes)
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"
