"""Renders templates as responses: escaped, with headers that block scripts from other origins."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio.to_thread
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from det_keras import display
from det_keras.about import __version__
from det_keras.master.accounts.auth import page_token
from det_keras.master.errors import ApiError
from det_keras.protocol.states import TERMINATED, bare, named

#: Only the master's own files may be run as scripts, whatever a name or a log line contains. Plots set inline styles.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
# The state at the start of a tab's title, where little more than that can be read.
_SIGNS = {
    "running": "▶",
    "completed": "✓",
    "error": "✗",
    "paused": "‖",
    "stopping": "■",
    "canceled": "⊘",
    "waiting": "…",
}
# Of things in the record of changes.
_PAGES_OF_THINGS = {
    "checkpoint": "/checkpoints",
    "experiment": "/experiments",
    "job": "/jobs",
    "tensorboard": "/jobs",
    "trial": "/trials",
}
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


@functools.cache
def static_files() -> dict[str, Path]:
    """Return the scripts and styles that the pages load, by name; names from requests are never used as paths."""
    files = (Path(__file__).parent / "static").rglob("*")
    return {path.name: path for path in files if path.suffix in (".css", ".js", ".svg")}


async def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page.

    Args:
        request: the page's request.
        template: file name of the template.
        status: HTTP status of the response.
        values: variables of the template.
    """
    state = request.state
    token = getattr(state, "token", "")
    shown = {
        "path": request.url.path,
        "query": request.url.query,
        "caller": getattr(state, "caller", None),
        "position": getattr(state, "position", ""),
        "csrf_token": page_token(token) if token else "",
        **values,
    }
    text = await anyio.to_thread.run_sync(functools.partial(render, template, shown))
    return HTMLResponse(text, status_code=status, headers=_HEADERS)


async def error_page(request: Request, error: ApiError) -> Response:
    """Return the page that shows an error."""
    title = HTTPStatus(error.status).phrase
    return await page(request, "error.html", status=error.status, title=title, message=str(error))


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return a rendered template; all values are escaped."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        version=__version__,
        static=_static_url,
        state_kind=state_kind,
        state_sign=lambda state: _SIGNS[state_kind(state)],
        sign_of=_SIGNS.__getitem__,
        job_mark=_job_mark,
        deed_address=_deed_address,
    )
    environment.filters.update(
        state=display.state_text,
        size=lambda value: display.size_text(float(value or 0)),
        percent=display.percent_text,
        number=display.number_text,
        metric=display.metric_text,
        duration=display.seconds_text,
        speed=display.speed_text,
        count=lambda value: f"{value or 0:,}",
        flat=lambda hparams: dict(display.flat_hparams(hparams)),
        trial_query=lambda trials: "&".join(f"trial={trial['id']}" for trial in trials),
        markdown=markdown,
        moment=_moment,
        deed=display.deed_text,
        deed_object=display.object_text,
        triggers=display.triggers_text,
        ago=_ago,
        urlquote=lambda text: quote(str(text), safe=""),
        isolated=_isolated,
        json_script=_json_script,
    )
    return environment


def _deed_address(entry: Mapping[str, Any]) -> str | None:
    """Return the page of the thing that an entry of the record of changes is about; None if it has none."""
    page_of = _PAGES_OF_THINGS.get(entry["kind"])
    is_gone = entry["verb"] == "delete" or not entry["objectId"]
    return None if page_of is None or is_gone else f"{page_of}/{quote(entry['objectId'], safe='')}"


def state_kind(state: str | None) -> str:
    """Return the name of the icon and colour of a state."""
    name = bare(state or "")
    if name.startswith("STOPPING") or name in ("DELETING", "TERMINATING"):
        return "stopping"
    known = {
        "COMPLETED": "completed",
        "ERROR": "error",
        "DELETE_FAILED": "error",
        "CANCELED": "canceled",
        "DELETED": "canceled",
        "TERMINATED": "completed",
        "PAUSED": "paused",
        "RUNNING": "running",
        "PARTIALLY_DELETED": "canceled",
    }
    return known.get(name, "waiting")


def _job_mark(job: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of state and the text of a job: a job that has ended shows how."""
    if job["state"] != named(TERMINATED):
        return state_kind(job["state"]), display.state_text(job["state"]).lower()
    status = job["exitStatus"] or "ended"
    if status == "exit code 0":
        return "completed", "completed"
    return ("canceled" if status == "killed" else "error"), status.splitlines()[0]


@functools.cache
def _static_url(name: str) -> str:
    """Return the address of a file. It changes with the content, so that browsers may cache the file forever."""
    return f"/static/{name}?v={static_files()[name].stat().st_mtime_ns:x}"


def _isolated(text: str) -> str:
    """Return text whose writing direction does not affect its surroundings (Unicode's FSI and PDI)."""
    return f"\u2068{text}\u2069"


def _moment(text: str | None) -> Markup:
    """Return a time; a script shows it in the browser's time zone."""
    return Markup('<time datetime="{}">{}</time>').format(text or "", display.time_text(text))


def _ago(text: str | None) -> Markup:
    """Return how long ago a time was, with the time itself as a tooltip."""
    moment = display.parse_time(text)
    if moment is None:
        return Markup("-")
    seconds = (datetime.now(timezone.utc) - moment).total_seconds()
    words = f"{display.seconds_text(seconds).split()[0]} ago"
    return Markup('<time datetime="{}" data-ago title="{}">{}</time>').format(
        text, display.time_text(text), words
    )


def _json_script(value: Any) -> Markup:
    """Return strict JSON for a script element: nothing in it can end the element.

    NaN and infinities, which browsers refuse in JSON, become null: gaps in a plot.
    """
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_with_gaps(value), separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _with_gaps(value: Any) -> Any:
    """Return values for JSON with None in place of numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _with_gaps(item) for name, item in value.items()}
    return [_with_gaps(item) for item in value] if isinstance(value, list | tuple) else value


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
