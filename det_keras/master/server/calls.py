"""Dependencies and helpers shared by the routes: the master, the caller, the body, pages of lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import Depends, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic.alias_generators import to_camel

from det_keras.master.accounts.auth import Caller
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.server.admission import Admission, Place
from det_keras.master.server.bodies import MOST_BYTES, read_body
from det_keras.master.wire import Message, parse_message, unknown_text

MessageT = TypeVar("MessageT", bound=Message)
T = TypeVar("T")

# Longer bodies are parsed on another thread, so that the event loop is not blocked.
_LONG_BYTES = 1 << 16
# Parameters of Determined that change nothing here: of lists that are always empty, of pools that are bound to nothing.
_LIST = frozenset({"sortBy", "users", "userIds", "workspaceId"})
_WITHOUT_EFFECT = {
    "/api/v1/notebooks": _LIST,
    "/api/v1/shells": _LIST,
    "/api/v1/resource-pools": frozenset({"unbound"}),
    "/api/v1/experiments": frozenset({"showTrialData"}),
}
_PARAMETERS: dict[object, frozenset[str]] = {}
_MESSAGES: dict[object, type[Message]] = {}


async def _master(request: Request) -> EmbeddedMaster:
    master = request.app.state.master
    assert isinstance(master, EmbeddedMaster)
    return master


async def _caller(request: Request) -> Caller:
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


async def open_stream(request: Request) -> None:
    """Count a call as one whose connection stays open for long.

    Raises:
        ApiError: there are too many, in all or of this caller.
    """
    admission, place = _admitted(request)
    admission.open_stream(place)


async def open_download(request: Request) -> None:
    """Count a call as one that keeps a file or the database open while the client reads.

    Raises:
        ApiError: there are too many, in all or of this caller.
    """
    admission, place = _admitted(request)
    admission.open_download(place)


async def _follow(request: Request, follow: bool = False) -> bool:
    if follow:
        await open_stream(request)
    return follow


def _admitted(request: Request) -> tuple[Admission, Place]:
    admission, place = request.app.state.admission, request.state.place
    assert isinstance(admission, Admission)
    assert isinstance(place, Place)
    return admission, place


MasterDep = Annotated[EmbeddedMaster, Depends(_master)]
FollowDep = Annotated[bool, Depends(_follow)]
CallerDep = Annotated[Caller, Depends(_caller)]


def body(kind: type[MessageT], *, most_bytes: int = MOST_BYTES, bare_list: str | None = None) -> Any:
    """Return the dependency that reads the body as a message of `kind`, ignoring its Content-Type.

    Args:
        kind: the class of the message.
        most_bytes: limit of the body in bytes.
        bare_list: if the body is a list, the field of the message that receives it; None accepts no list.
    """

    async def read(request: Request) -> MessageT:
        return await _read_body(request, kind, most_bytes=most_bytes, bare_list=bare_list)

    # `message_of` needs it for the description of the calls.
    _MESSAGES[read] = kind
    return Depends(read)


async def _read_body(
    request: Request,
    kind: type[MessageT],
    *,
    most_bytes: int,
    bare_list: str | None,
) -> MessageT:
    """Return the body of a request as a message of `kind`.

    Args:
        request: the request.
        kind: the class of the message.
        most_bytes: limit of the body in bytes.
        bare_list: if the body is a list, the field of the message that receives it; None accepts no list.

    Raises:
        InvalidArgumentError: the body is malformed.
        ApiError: it is longer than `most_bytes`, or does not arrive.
    """
    content = await read_body(request.scope, request.receive, most_bytes)
    names = [to_camel(name) for name in request.path_params]
    # `PATCH /experiments/7` has an `id` as well.
    repeated = frozenset([*names, *(["id"] if names else [])])
    if len(content) > _LONG_BYTES:
        return await anyio.to_thread.run_sync(parse_message, kind, content, bare_list, repeated)
    return parse_message(kind, content, bare_list, repeated)


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse a call with a parameter in its address that it has not: an answer would seem to heed it.

    Raises:
        InvalidArgumentError: there are some; the nearest known ones are named.
    """
    route = request.scope["route"]
    # Pages keep what they show in their addresses.
    if not request.query_params or not route.path.startswith("/api/"):
        return
    known = _parameters_of(route) | _WITHOUT_EFFECT.get(route.path, frozenset())
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if unknown:
        raise InvalidArgumentError(unknown_text("parameter", unknown, sorted(known)))


def _parameters_of(route: APIRoute) -> frozenset[str]:
    # By the function: routes cannot be hashed.
    if route.endpoint not in _PARAMETERS:
        _PARAMETERS[route.endpoint] = frozenset(_parameters(route.dependant))
    return _PARAMETERS[route.endpoint]


def _parameters(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def message_of(dependency: object) -> type[Message] | None:
    """Return the message class of a dependency made by `body`; None for other dependencies."""
    return _MESSAGES.get(dependency)


class Page:
    """The requested part of a list.

    Args:
        offset: index of the first row; a negative value counts from the end.
        limit: number of rows; -1 for all, -2 for the total only, 0 for the list's own default.
        is_descending: reverse order; None if the request names no order.
    """

    def __init__(self, offset: int, limit: int, is_descending: bool | None) -> None:
        self.offset = offset
        self.limit = limit
        self.is_descending = is_descending

    def bounds(self, total: int, default_limit: int = -1) -> tuple[int, int]:
        """Return the indexes of the first row of the part and of the one behind it.

        Args:
            total: number of rows of the whole list.
            default_limit: meaning of a limit of 0; -1 for all rows.
        """
        limit = self.limit or default_limit
        start = max(0, total + self.offset) if self.offset < 0 else min(self.offset, total)
        return start, total if limit == -1 else start if limit == _NO_ROWS else min(total, start + limit)

    def described(self, start: int, end: int, total: int) -> dict[str, int]:
        """Return what an answer says of its part of a list; see `bounds`."""
        return {
            "offset": self.offset, "limit": self.limit, "startIndex": start, "endIndex": end, "total": total,
        }  # fmt: skip


async def _page(
    offset: Annotated[
        int, Query(description="Index of the first row; a negative value counts from the end.")
    ] = 0,
    limit: Annotated[
        int,
        Query(description="Number of rows; 0 for the default, -1 for all, -2 for the total only."),
    ] = 0,
    order_by: Annotated[str, Query(alias="orderBy", description="`ORDER_BY_ASC` or `ORDER_BY_DESC`.")] = "",
) -> Page:
    orders = {"": None, "ORDER_BY_UNSPECIFIED": None, "ORDER_BY_ASC": False, "ORDER_BY_DESC": True}
    orders.update({"0": None, "1": False, "2": True})
    if order_by not in orders:
        raise InvalidArgumentError(f"`orderBy` must be ORDER_BY_ASC or ORDER_BY_DESC, received {order_by!r}.")
    if limit < _NO_ROWS:
        raise InvalidArgumentError(
            f"`limit` must be a number of rows, 0 for the default, -1 for all or -2 for none, received {limit}."
        )
    return Page(offset, limit, orders[order_by])


# Requests the total of a list without rows.
_NO_ROWS = -2
PageDep = Annotated[Page, Depends(_page)]


def paged(
    name: str,
    rows: Sequence[T],
    page: Page,
    present: Callable[[Sequence[T]], list[Any]],
    default_limit: int = -1,
) -> dict[str, Any]:
    """Return one page of a list as JSON.

    Args:
        name: name of the list in the response.
        rows: the whole list, in order.
        page: the requested part.
        present: converts rows to JSON objects.
        default_limit: meaning of a limit of 0; -1 for all rows.
    """
    start, end = page.bounds(len(rows), default_limit)
    return {name: present(rows[start:end]), "pagination": page.described(start, end, len(rows))}


def choice(value: str, prefix: str, known: Sequence[str]) -> str:
    """Return an enum's value without its prefix.

    Args:
        value: with or without the prefix.
        prefix: such as ``STATE_``.
        known: the valid values, without the prefix.

    Raises:
        InvalidArgumentError: the value is unknown.
    """
    bare = value.removeprefix(prefix)
    if bare not in known:
        names = ", ".join(f"{prefix}{name}" for name in known)
        raise InvalidArgumentError(f"{value!r} is not one of {names}.")
    return bare


def choices(values: Sequence[str], prefix: str, known: Sequence[str]) -> list[str]:
    """Return the values of a repeated enum without their prefixes.

    Args:
        values: each with or without the prefix.
        prefix: such as ``STATE_``.
        known: the valid values, without the prefix.

    Raises:
        InvalidArgumentError: a value is unknown.
    """
    return [choice(value, prefix, known) for value in values]
