"""The OpenAPI description of all calls, generated from the routes.

The routes read bodies as raw bytes, independent of the Content-Type, so the framework does not see their types. The
schemas of the messages are therefore added to what it generates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response

from det_keras.master.serializers.cluster import PROTOCOL_VERSION
from det_keras.master.server.calls import message_of
from det_keras.master.server.responses import reply

_INTRODUCTION = (
    "The subset of Determined's REST API that this master serves. Any other call below `/api/v1` returns status "
    "501 and the name of the call. Bodies are JSON in camelCase or snake_case; the Content-Type is ignored. Null means "
    "absent; unknown fields and parameters are refused."
)
_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "description": "The reason for a refusal; routes outside of `/api` return only `message`.",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "integer"},
                "reason": {"type": "string"},
                "error": {"type": "string"},
            },
        },
        "message": {"type": "string"},
    },
}
_SCHEMES = {
    "user": {"type": "http", "scheme": "bearer", "description": "A user's token, from `auth/login`."},
    "task": {
        "type": "apiKey",
        "in": "header",
        "name": "Grpc-Metadata-x-allocation-token",
        "description": "`Bearer`, followed by the token of a task.",
    },
    "browser": {"type": "apiKey", "in": "cookie", "name": "auth"},
}


router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
def description(request: Request) -> Response:
    """Return the OpenAPI description of all calls."""
    return reply(request.app.state.describe())


def describe_calls(routers: Sequence[APIRouter]) -> dict[str, Any]:
    """Return the OpenAPI description of all calls of `routers`."""
    routes = [route for router in routers for route in router.routes]
    described = get_openapi(
        title="det_keras master", version=PROTOCOL_VERSION, description=_INTRODUCTION, routes=routes
    )
    schemas: dict[str, Any] = {"Error": _ERROR}
    for route in routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                operation = described["paths"][route.path_format][method.lower()]
                _complete(operation, _message(route), schemas)
    described["components"] = {"schemas": schemas, "securitySchemes": _SCHEMES}
    described["security"] = [{name: []} for name in _SCHEMES]
    return described


def _message(route: APIRoute) -> type[BaseModel] | None:
    kinds = [message_of(dependency.call) for dependency in route.dependant.dependencies]
    return next((kind for kind in kinds if kind is not None), None)


def _complete(operation: dict[str, Any], message: type[BaseModel] | None, schemas: dict[str, Any]) -> None:
    refusal = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    operation["responses"] = {
        "200": {"description": "Done."},
        "default": {"description": "Refused.", "content": refusal},
    }
    if message is None:
        return
    name = f"{message.__module__.rpartition('.')[2]}.{message.__name__}"
    schema = message.model_json_schema(ref_template=f"#/components/schemas/{name}.{{model}}")
    for inner, definition in schema.pop("$defs", {}).items():
        schemas[f"{name}.{inner}"] = definition
    schemas[name] = schema
    content = {"application/json": {"schema": {"$ref": _REF.format(model=name)}}}
    operation["requestBody"] = {"content": content, "required": bool(schema.get("required"))}
