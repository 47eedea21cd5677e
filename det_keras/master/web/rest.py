"""The pages' client of the REST API, inside the same process: pages get the same data as every other client."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

import httpx
from starlette.requests import Request

from det_keras.master import errors

_BY_STATUS = {kind.status: kind for kind in (errors.InvalidArgumentError, errors.NotFoundError)}


class Rest:
    """Calls the REST API with the login of a page's user.

    Args:
        request: the page's request.
    """

    def __init__(self, request: Request) -> None:
        self._transport = httpx.ASGITransport(app=request.app)
        self._headers = {"Authorization": f"Bearer {request.state.token}"}

    async def text(self, address: str) -> tuple[int, str]:
        """Return the status and the text of a GET of any address of this master, as a browser gets it."""
        headers = {**self._headers, "Accept": "text/html, */*", "Accept-Encoding": "identity"}
        async with httpx.AsyncClient(transport=self._transport, base_url="http://master") as client:
            answer = await client.get(address, headers=headers)
        return answer.status_code, answer.text

    async def get(self, path: str, **params: Any) -> dict[str, Any]:
        """Return the response to a GET.

        Args:
            path: below ``/api/v1``.
            params: query parameters; lists are sent as repeated parameters.

        Raises:
            ApiError: the call was refused.
        """
        query = urlencode(params, doseq=True)
        # Names in it come from addresses, decoded.
        path = quote(path, safe="/")
        async with httpx.AsyncClient(transport=self._transport, base_url="http://master") as client:
            answer = await client.get(f"/api/v1{path}?{query}", headers=self._headers)
        content = json.loads(answer.content)
        if answer.status_code != httpx.codes.OK:
            kind = _BY_STATUS.get(answer.status_code, errors.ApiError)
            raise kind(str(content.get("error", {}).get("error", content)))
        assert isinstance(content, dict)
        return content
