"""A fast path for the most frequent call: a report of metrics.

The web framework resolves the route and its dependencies and does other work that this call does not need. This takes
longer than storing the report. The route itself (`api.reports`) defines the call, and works without this middleware.
It parses bodies with the same function.
"""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from det_keras.master.api.reports import read_report
from det_keras.master.errors import ApiError
from det_keras.master.reports.batcher import ReportBatcher
from det_keras.master.server.responses import error_reply, reply

__all__ = ["Express"]

_REPORT = re.compile(r"/api/v1/trials/([0-9]+)/metrics", re.ASCII)


class Express:
    """ASGI middleware that handles reports of metrics and passes every other call to `app`.

    Args:
        app: the next application.
        report_batcher: stores reports.
    """

    def __init__(self, app: ASGIApp, report_batcher: ReportBatcher) -> None:
        self._app = app
        self._batcher = report_batcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        found = _REPORT.fullmatch(scope["path"]) if is_post else None
        if found is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._batcher.take(await read_report(int(found[1]), Request(scope, receive)))
        except ApiError as error:
            await error_reply(scope["path"], error)(scope, receive, send)
            return
        await reply()(scope, receive, send)
