"""The report of an experiment for those who have its link, without a login.

The page is written anew, so it shows what is known now. Each request looks for the link first. Callers without a login
are answered one after another, so a page that took long is kept for a while: those who load it again and again delay
logins only a little.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from det_keras.master.api import experiments, steering
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import NotFoundError, UnavailableError
from det_keras.master.server.calls import MasterDep, Page
from det_keras.master.web.report import facts_of, report_headers, report_page

logger = logging.getLogger(__name__)

# Not below the router of the other pages, which prepares for what users look at next.
router = APIRouter(include_in_schema=False)

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex",
    "Cache-Control": "no-store",
}
# A page is used again for this long, or for ten times as long as it took if that is longer.
_KEPT_S = 2.0
_KEPT_TIMES = 10
_MOST_PAGES = 16


@dataclass(frozen=True)
class _Written:
    page: str
    policy: str
    until: float


class SharedPages:
    """The pages that were written last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: dict[int, _Written] = {}

    def page(self, master: EmbeddedMaster, experiment_id: int) -> tuple[str, str]:
        """Return the report of an experiment and its policy."""
        # One at a time: those who wait get the page of the first.
        with self._lock:
            known = self._written.get(experiment_id)
            if known is None or known.until < time.monotonic():
                began = time.monotonic()
                page, policy = _write(master, experiment_id)
                took_s = time.monotonic() - began
                self._written.pop(experiment_id, None)
                known = _Written(page, policy, began + took_s + max(_KEPT_S, _KEPT_TIMES * took_s))
                self._written[experiment_id] = known
                while len(self._written) > _MOST_PAGES:
                    del self._written[next(iter(self._written))]
            return known.page, known.policy


@router.get("/shared/{token}")
async def shared(master: MasterDep, request: Request, token: str) -> Response:
    """Return the report to which a link leads; whatever else the link is, it is not found."""
    pages: SharedPages = request.app.state.shared_pages
    try:
        experiment_id = await anyio.to_thread.run_sync(master.shared_links.find, token)
        if experiment_id is None:
            return _refusal(404, "There is no such page.")
        page, policy = await anyio.to_thread.run_sync(pages.page, master, experiment_id)
    except NotFoundError:
        # It was deleted meanwhile.
        return _refusal(404, "There is no such page.")
    except UnavailableError:
        return _refusal(503, "The page cannot be written at the moment. Try again.")
    except Exception:
        # Not the usual answer, which has the error, nor the usual line of the log, which has the address: the token
        # is a part of it.
        logger.exception("A shared report cannot be written.")
        return _refusal(500, "The page cannot be written.")
    return HTMLResponse(page, headers=_HEADERS | report_headers(policy))


def _refusal(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status_code=status, headers=_HEADERS)


def _write(master: EmbeddedMaster, experiment_id: int) -> tuple[str, str]:
    # The functions of the REST API and not its calls: there is no login.
    shown = _content(experiments.detail(master, experiment_id))
    trials = _content(experiments.trials(master, experiment_id, Page(0, -1, None), states=[]))
    rungs = _content(steering.rungs(master, experiment_id))
    return report_page(master, facts_of(shown["experiment"], trials["trials"], rungs), is_shared=True)


def _content(answer: Response) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(bytes(answer.body))
    return content
