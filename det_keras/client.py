"""The HTTP session with a master, for training processes, the command line and the SDK.

A master may be restarted while a trial runs. So calls are tried again for a limited time and with jitter, on
connection errors and on 502, 503 and 504. Reports of a trial are idempotent at the master, so a report whose
answer was lost may be sent twice.
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from det_keras.errors import MasterError
from det_keras.protocol.answers import UNAVAILABLE, content_of, error_of, unavailable
from det_keras.protocol.api import Api
from det_keras.protocol.values import is_loopback

# A master says by it that it did nothing. A proxy says by the others that it got no answer: the master may have handled
# the call.
_NOT_HANDLED = 503
# It logs each call at INFO; a level that somebody has set stays.
if not logging.getLogger("httpx").level:
    logging.getLogger("httpx").setLevel(logging.WARNING)

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0


class Session:
    """Sends calls to one master with one token.

    Args:
        url: the master's address, with scheme and port.
        token: a user token, or with `is_task` a task token; "" for calls that need none.
        is_task: whether `token` is a task token.
        patience_s: how long a call is tried again while the master cannot be reached, in seconds.
        cert_file: CA bundle for TLS, ``noverify``, or None for the system's.
        cert_name: the name in the master's certificate; None for that of its address.
        transport: replaces the network, for tests.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        is_task: bool = False,
        patience_s: float = 10.0,
        cert_file: str | None = None,
        cert_name: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.patience_s = patience_s
        name = "Grpc-Metadata-x-allocation-token" if is_task else "Authorization"
        verify: Any = False if cert_file == "noverify" else (cert_file or True)
        self._open_client: Callable[[], httpx.Client] = lambda: httpx.Client(
            base_url=self.url,
            headers={name: f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(30.0, connect=5.0),
            verify=verify,
            transport=transport,
            # A master on loopback is never behind the proxy that the environment may name.
            trust_env=not is_loopback(urlsplit(self.url).hostname or ""),
        )
        self._client, self._process = self._open_client(), os.getpid()
        self._extensions = {"sni_hostname": cert_name} if cert_name else {}

    @property
    def _http(self) -> httpx.Client:
        if self._process != os.getpid():
            # Forked: two processes that write to one connection would disturb each other.
            self._client, self._process = self._open_client(), os.getpid()
        return self._client

    @property
    def api(self) -> Api:
        """The calls that the product makes, by subject."""
        return Api(self)

    def get(self, path: str, *, params: Mapping[str, object] | None = None, **options: Any) -> Any:
        """GET `path` and return the decoded JSON; options as in `request`."""
        return self.request("GET", path, params=params, **options)

    def post(self, path: str, body: object = None, **options: Any) -> Any:
        """POST `body` as JSON to `path` and return the decoded JSON; options as in `request`."""
        return self.request("POST", path, body=body, **options)

    def put(self, path: str, body: object = None, **options: Any) -> Any:
        """PUT `body` as JSON to `path` and return the decoded JSON; options as in `request`."""
        return self.request("PUT", path, body=body, **options)

    def patch(self, path: str, body: object = None, **options: Any) -> Any:
        """PATCH `path` and return the decoded JSON; options as in `request`."""
        return self.request("PATCH", path, body=body, **options)

    def delete(self, path: str, body: object = None, **options: Any) -> Any:
        """DELETE `path`, with a body if given, and return the decoded JSON; options as in `request`."""
        return self.request("DELETE", path, body=body, **options)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        body: object = None,
        timeout_s: float = 30.0,
        patience_s: float | None = None,
        repeatable: bool = True,
    ) -> Any:
        """Call the master and return the decoded JSON of its answer.

        Args:
            method: the HTTP verb.
            path: from the root, such as ``/api/v1/me``.
            params: query parameters; lists repeat the name, None is left out.
            body: sent as JSON; None sends no body.
            timeout_s: how long one answer may take, in seconds.
            patience_s: as in the constructor, for this call only.
            repeatable: whether the call may be sent again when its answer was lost, or a proxy answers with 502 or
                504. If not, only attempts that the master did not handle are repeated.

        Raises:
            MasterError: the master rejected the call; `status` and `message` give the reason.
            MasterUnavailableError: no answer of a master came within `patience_s`.
        """
        deadline = time.monotonic() + (self.patience_s if patience_s is None else patience_s)
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                response = self._http.request(
                    method,
                    path,
                    params=_query(params),
                    timeout=timeout_s,
                    extensions=self._extensions,
                    **_content(body),
                )
                if response.status_code not in UNAVAILABLE:
                    return content_of(response, self.url)
                failure: Exception = error_of(response, self.url)
                may_repeat = repeatable or response.status_code == _NOT_HANDLED
            except httpx.TransportError as error:
                failure = unavailable(self.url, error)
                may_repeat = repeatable or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            left_s = deadline - time.monotonic()
            if not may_repeat or left_s <= 0:
                raise failure
            # Jitter: after a master's restart, its trials do not all try at the same instant. The last try is at the
            # end of the time.
            time.sleep(min(delay_s * random.uniform(0.5, 1.0), left_s))
            delay_s = min(delay_s * 2, _LONGEST_DELAY_S)

    def stream(self, path: str, *, params: Mapping[str, object] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the `result` of every line of a newline-delimited JSON stream as it arrives.

        Raises:
            MasterError: the master rejected the call or ended the stream with an error line.
            MasterUnavailableError: the connection failed or broke.
        """
        timeout = httpx.Timeout(10.0, read=None)
        try:
            with self._http.stream(
                "GET", path, params=_query(params), timeout=timeout, extensions=self._extensions
            ) as response:
                if response.status_code != 200:
                    response.read()
                    raise error_of(response, self.url)
                for line in response.iter_lines():
                    yield _stream_result(line)
        except httpx.TransportError as error:
            raise unavailable(self.url, error) from error

    def download(self, path: str, *, accept: str, body: object = None) -> Iterator[bytes]:
        """Yield the bytes of the answer to GET `path`, or to POST if there is a body.

        Args:
            path: from the root.
            accept: the accepted media types.
            body: sent as JSON; None sends no body.

        Raises:
            MasterError: the master refused.
            MasterUnavailableError: the connection failed or broke.
        """
        content = _content(body)
        headers = {"Accept": accept, **content.pop("headers", {})}
        try:
            with self._http.stream(
                "GET" if body is None else "POST",
                path,
                headers=headers,
                timeout=60.0,
                extensions=self._extensions,
                **content,
            ) as response:
                if response.status_code != 200:
                    response.read()
                    raise error_of(response, self.url)
                # Decompressed, if the connection compressed it.
                yield from response.iter_bytes()
        except httpx.TransportError as error:
            raise unavailable(self.url, error) from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _query(params: Mapping[str, object] | None) -> dict[str, Any]:
    given = {name: value for name, value in (params or {}).items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}


def _content(body: object) -> dict[str, Any]:
    if body is None:
        return {}
    return {"content": json.dumps(body, allow_nan=False), "headers": {"Content-Type": "application/json"}}


def _stream_result(line: str) -> dict[str, Any]:
    message = json.loads(line)
    if "error" in message:
        error = message["error"]
        raise MasterError(int(error.get("httpCode", 500)), str(error.get("message", error)))
    result = message["result"]
    assert isinstance(result, dict)
    return result
