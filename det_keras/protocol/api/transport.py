"""The type of what sends calls to a master: `det_keras.client.Session`, or a substitute in a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class Transport(Protocol):
    """Sends calls; options and errors are those of `det_keras.client.Session`."""

    def get(self, path: str, *, params: Mapping[str, object] | None = None, **options: Any) -> Any: ...

    def post(self, path: str, body: object = None, **options: Any) -> Any: ...

    def put(self, path: str, body: object = None, **options: Any) -> Any: ...

    def patch(self, path: str, body: object = None, **options: Any) -> Any: ...

    def delete(self, path: str, body: object = None, **options: Any) -> Any: ...

    def stream(
        self, path: str, *, params: Mapping[str, object] | None = None
    ) -> Iterator[dict[str, Any]]: ...

    def download(self, path: str, *, accept: str, body: object = None) -> Iterator[bytes]: ...
