"""Bounds the calls that are answered at the same time, so that each kind of callers leaves room for the others.

Calls of tasks may take all places, those of users three quarters, and those without a login a quarter: running trials
report whatever users do, and users get through whatever strangers do. Of the calls that were admitted, those of users
and those of strangers are worked on one after another, in two lines.
"""

from __future__ import annotations

import contextlib
import enum
from collections import Counter
from collections.abc import Callable, Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from det_keras.master.accounts.auth import Caller
from det_keras.master.errors import ApiError, TooManyRequestsError, UnavailableError
from det_keras.master.server.auth_middleware import HARMLESS
from det_keras.master.server.bodies import MOST_ANONYMOUS_BYTES, arrived
from det_keras.master.server.capacity import Capacity
from det_keras.master.server.line import Line, Turn
from det_keras.master.server.protocol import Connection, connection_of
from det_keras.master.server.responses import error_reply

# How many calls are worked on at a time: one for each thread of Python that does something useful, and one that waits
# for the disk meanwhile.
_USERS_AT_A_TIME = 2
_ANONYMOUS_AT_A_TIME = 1
_REPORTS = ("/metrics", "/metrics/together")


class Bound:
    """A number of things that may exist at once, in all and of one holder; on the event loop only.

    Args:
        things: what they are, in the plural, such as ``calls``.
        most: how many in all.
        most_of_one: how many of one holder; None for `most`.
        advice: what a holder who has too many can do.
    """

    def __init__(self, things: str, most: int, most_of_one: int | None = None, advice: str = "") -> None:
        self._things = things
        self._most = most
        self._most_of_one = most if most_of_one is None else most_of_one
        self._advice = advice
        self._held: Counter[str] = Counter()
        self._total = 0

    @contextlib.contextmanager
    def hold(self, holder: str) -> Iterator[None]:
        """Count one more, until the end of the block.

        Args:
            holder: in messages, such as ``user 'determined'``.

        Raises:
            TooManyRequestsError: the holder has as many as one may have, and waiting does not help.
            UnavailableError: there are too many at the moment.
        """
        if self._held[holder] >= self._most_of_one:
            text = f"The master serves {self._most_of_one} {self._things} of {holder} at once."
            if self._advice:
                raise TooManyRequestsError(f"{text} {self._advice}")
            raise UnavailableError(f"{text} Try again.")
        if self._total >= self._most:
            raise UnavailableError(f"The master serves {self._most} {self._things} at once. Try again.")
        self._held[holder] += 1
        self._total += 1
        try:
            yield
        finally:
            self._total -= 1
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]


class Admission:
    """All bounds of calls.

    Args:
        capacity: their numbers.
    """

    def __init__(self, capacity: Capacity) -> None:
        of_address = capacity.anonymous_calls_per_address
        self._all = Bound("calls", capacity.calls)
        self._of_users = Bound("calls of users", capacity.user_calls)
        self._anonymous = Bound("calls without a login", capacity.anonymous_calls, of_address)
        self._user_uploads, self._task_uploads = (
            Bound("calls whose bodies have not arrived", most, capacity.uploads_per_caller)
            for most in (capacity.user_uploads, capacity.task_uploads)
        )
        self._user_streams, self._task_streams = (
            Bound(
                "followed logs, open pages and long polls",
                most,
                capacity.streams_per_caller,
                "Close some of them.",
            )
            for most in (capacity.user_streams, capacity.task_streams)
        )
        self._downloads = Bound(
            "downloads of metrics and checkpoints",
            capacity.downloads,
            capacity.downloads_per_caller,
            "Wait until one of them has ended.",
        )
        self._lines = {
            Standing.USER: Line(_USERS_AT_A_TIME),
            Standing.ANONYMOUS: Line(_ANONYMOUS_AT_A_TIME),
        }

    def admit(self, place: Place) -> None:
        """Give a call its place.

        Raises:
            UnavailableError: there are too many calls of this kind.
        """
        bounds = (self._anonymous, self._of_users, self._all)
        for bound in bounds[place.standing :]:
            place.hold(bound)

    async def line_up(self, place: Place, scope: Scope) -> None:
        """Wait until a call may be worked on; calls of tasks, and reports, do not wait."""
        is_report = scope["method"] == "POST" and scope["path"].endswith(_REPORTS)
        line = self._lines.get(place.standing)
        if line is not None and not is_report:
            place.turn = line.turn()
            await place.turn.take()

    def count_upload(self, place: Place, receive: Receive) -> Receive:
        """Count a call as an upload until its body has arrived: clients can take a long time to send it.

        Args:
            place: that of the call, which has a login.
            receive: returns the messages of the body.

        Returns:
            What returns them from now on.

        Raises:
            UnavailableError: there are too many, in all or of this caller.
        """
        end = place.hold(self._task_uploads if place.standing is Standing.TASK else self._user_uploads)

        async def counted() -> Message:
            place.leave_line()
            message = await receive()
            if not message.get("more_body", False):
                end()
                if place.turn is not None:
                    await place.turn.take()
            return message

        return counted

    def open_stream(self, place: Place) -> None:
        """Count a call as a stream: its connection stays open for long.

        Raises:
            ApiError: there are too many, in all or of this caller.
        """
        place.leave_line()
        place.hold(self._task_streams if place.standing is Standing.TASK else self._user_streams)

    def open_download(self, place: Place) -> None:
        """Count a call as a download: it keeps a file or the database open while the client reads.

        Raises:
            ApiError: there are too many, in all or of this caller.
        """
        place.hold(self._downloads)


class Standing(enum.IntEnum):
    """The kinds of callers; a later one has all the places of an earlier one, and more."""

    ANONYMOUS = 0
    USER = 1
    TASK = 2


class Place:
    """What one call occupies, until it has been answered.

    Args:
        caller: the caller; None without a login.
        address: the client's address.
    """

    def __init__(self, caller: Caller | None, address: str) -> None:
        if caller is None:
            self.standing, self.holder = Standing.ANONYMOUS, f"the address {address}"
        elif caller.allocation_id is not None:
            self.standing, self.holder = Standing.TASK, f"allocation {caller.allocation_id}"
        else:
            self.standing, self.holder = Standing.USER, f"user {caller.username!r}"
        self._held = contextlib.ExitStack()
        #: When the call is worked on; None for a call that does not wait in line.
        self.turn: Turn | None = None

    def hold(self, bound: Bound) -> Callable[[], None]:
        """Occupy one of something; return what frees it before the end of the call."""
        held = self._held.enter_context(contextlib.ExitStack())
        held.enter_context(bound.hold(self.holder))
        return held.close

    def leave_line(self) -> None:
        """Let the next call be worked on."""
        if self.turn is not None:
            self.turn.leave()

    def leave(self) -> None:
        """Free what the call occupied."""
        self.leave_line()
        self._held.close()


class AdmissionMiddleware:
    """Gives calls their places, or refuses them; calls are authenticated before.

    Args:
        app: the next application.
        admission: the bounds.
    """

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller: Caller | None = scope["state"].get("caller")
        connection = connection_of(scope)
        place = Place(caller, (scope.get("client") or ("",))[0])
        scope["state"]["place"] = place
        try:
            if caller is None:
                receive = await arrived(scope, receive, MOST_ANONYMOUS_BYTES)
            # A call from inside of the process belongs to the call of a page, which has its place.
            if connection is not None:
                self._admission.admit(place)
                if caller is not None and connection.is_receiving:
                    receive = self._admission.count_upload(place, receive)
                connection.begin_call(has_login=caller is not None)
        except ApiError as error:
            place.leave()
            await error_reply(scope["path"], error)(scope, receive, send)
            return
        try:
            if connection is None:
                await self._app(scope, receive, send)
            else:
                await self._answer(connection, place, scope, receive, send)
        finally:
            place.leave()

    async def _answer(
        self, connection: Connection, place: Place, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async def answered(message: Message) -> None:
            # Sending the rest takes as long as the client reads.
            place.leave_line()
            await send(message)

        await self._admission.line_up(place, scope)
        if connection.is_left and scope["method"] in HARMLESS:
            return
        await self._app(scope, receive, answered)
        # Answers that are not read occupy memory.
        await connection.drain()
