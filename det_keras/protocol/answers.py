"""What the answer to a call means: its content, or an error in words for the user.

A proxy may answer in the place of a master, and a mistyped address leads to another program.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import httpx

from det_keras.errors import MasterError, MasterUnavailableError

#: A proxy says by them that the master behind it does not answer.
UNAVAILABLE = frozenset({502, 503, 504})
# Refusals that concern a login: no page but the master's own may ask for one.
_LOGIN = (401, 403)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_LONGEST_TITLE = 60
# What the errors of connections say -> what that means.
_CAUSES = {
    r"Name or service not known|nodename nor servname|No address associated|name resolution": (
        "there is no host {host!r}"
    ),
    r"Connection refused": "nothing listens on port {port} of {host!r}",
    r"WRONG_VERSION_NUMBER|wrong version number|record layer failure": (
        "it does not speak https there; write http:// in its address"
    ),
    r"CERTIFICATE_VERIFY_FAILED": (
        "its certificate is not trusted ({text}); DET_MASTER_CERT_FILE names the file to check it with"
    ),
    r"Server disconnected without sending|Connection reset by peer": "the connection was closed without an answer{tls}",
}


def content_of(response: httpx.Response, url: str) -> Any:
    """Return the decoded JSON of an answer.

    Args:
        response: the answer, read to its end.
        url: the master's address.

    Raises:
        MasterError: the master rejected the call.
        MasterUnavailableError: the answer is not one of a master.
    """
    if response.status_code != 200:
        raise error_of(response, url)
    if not response.content:
        return {}
    try:
        return response.json()
    except ValueError as error:
        raise MasterUnavailableError(_no_master(response, url)) from error


def error_of(response: httpx.Response, url: str) -> MasterError | MasterUnavailableError:
    """Return the error that an answer other than 200 stands for; see `content_of`."""
    status = response.status_code
    try:
        body = response.json()
    except ValueError:
        if status in UNAVAILABLE:
            return MasterUnavailableError(
                f"No answer from the master at {url}: a proxy says {_status_text(response)}."
            )
        text = _no_master(response, url)
        return MasterUnavailableError(text) if status in _LOGIN else MasterError(status, text)
    nested = body.get("error") if isinstance(body, dict) else None
    message = nested.get("error") or nested.get("message") if isinstance(nested, dict) else None
    if message is None and isinstance(body, dict):
        message = body.get("message")
    message = str(message or response.text or response.reason_phrase)
    if status in UNAVAILABLE:
        return MasterUnavailableError(f"The master at {url} is not available: {message}")
    return MasterError(status, message)


def unavailable(url: str, error: Exception) -> MasterUnavailableError:
    """Return the error for a call that got no answer.

    Args:
        url: the master's address.
        error: of the connection.
    """
    text = str(error) or type(error).__name__
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    for pattern, meaning in _CAUSES.items():
        if re.search(pattern, text):
            tls = "" if parts.scheme == "https" else ", as a server does that speaks only https"
            text = meaning.format(host=parts.hostname, port=port, text=text, tls=tls)
            break
    else:
        text = "it did not answer in time" if isinstance(error, httpx.TimeoutException) else text
    return MasterUnavailableError(f"No answer from the master at {url}: {text}.")


def _no_master(response: httpx.Response, url: str) -> str:
    kind = response.headers.get("content-type", "").partition(";")[0]
    title = _TITLE.search(response.text) if kind == "text/html" else None
    page = f"a page of type {kind!r}" if kind else "something else"
    if title is not None:
        page = f"the page {' '.join(title[1].split())[:_LONGEST_TITLE]!r}"
    elif kind == "text/html":
        page = "an HTML page"
    return f"What answers at {url} is not a master: it says {_status_text(response)} with {page}."


def _status_text(response: httpx.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}".strip()
