"""Responses: strict JSON, errors in the form that clients expect, streams of lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response, StreamingResponse

from det_keras.master.errors import ApiError, TooManyRequestsError, UnavailableError
from det_keras.master.wire import encode_json

_JSON = "application/json"
# The rest of the body is not read, so the connection cannot be used for another request.
_BODY_IS_LEFT = (408, 413)


def reply(content: Mapping[str, Any] | None = None) -> Response:
    """Return a successful response; without content it is ``{}``."""
    return Response(encode_json(content or {}), media_type=_JSON)


def list_reply(content: Mapping[str, Any]) -> Response:
    """Return a successful response with one list, whose items are JSON text already."""
    (name,) = (name for name, value in content.items() if isinstance(value, list))
    rest = encode_json({key: value for key, value in content.items() if key != name})
    body = b'{"%s":[%s],%s' % (name.encode(), b",".join(content[name]), rest[1:])
    return Response(body, media_type=_JSON)


def error_reply(path: str, error: ApiError, *, status: int | None = None) -> Response:
    """Return an error response: nested below ``/api``, a plain message elsewhere.

    Args:
        path: path of the call.
        error: the error.
        status: HTTP status; None for the status of the error's class.
    """
    headers = {}
    if isinstance(error, UnavailableError):
        headers["Retry-After"] = "1"
    elif isinstance(error, TooManyRequestsError) and error.wait_s is not None:
        headers["Retry-After"] = str(error.wait_s)
    if error.status in _BODY_IS_LEFT:
        headers["Connection"] = "close"
    return Response(
        encode_json(error_body(path, error)),
        status_code=error.status if status is None else status,
        media_type=_JSON,
        headers=headers,
    )


def error_body(path: str, error: ApiError) -> dict[str, Any]:
    """Return the JSON object of an error response."""
    message = str(error)
    if not path.startswith("/api/"):
        return {"message": message}
    return {"error": {"code": error.code, "reason": error.reason, "error": message}}


def stream_reply(
    lines: AsyncIterator[bytes], *, media_type: str = _JSON, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response that sends lines as they are produced."""
    return StreamingResponse(lines, media_type=media_type, headers=headers)


def result_line(result: Mapping[str, Any]) -> bytes:
    """Return one line of a stream."""
    return encode_json({"result": result}) + b"\n"


def error_line(error: ApiError) -> bytes:
    """Return the last line of a stream that fails after its first line."""
    content = {
        "grpcCode": error.code,
        "httpCode": error.status,
        "message": str(error),
        "httpStatus": error.reason,
    }
    return encode_json({"error": content}) + b"\n"
