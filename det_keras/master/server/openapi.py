"""The description of all calls in the form of OpenAPI, generated from the routes themselves.

Bodies are read raw, whatever their Content-Type says, so that the framework knows nothing of them: what it
generates is completed with the schemas of the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from det_keras.master.serializers.cluster import PROTOCOL_VERSION
from det_keras.master.server.calls import message_of

__all__ = ["describe_calls"]

_INTRODUCTION = (
    "The subset of Determined's REST API that this master serves. Any other call below `/api/v1` is answered with "
    "501 and its name. Bodies are JSON, in camelCase or snake_case, whatever their Content-Type; null means "
    "absent; unknown fields are passed over."
)
_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "description": "Why a call was refused; routes outside of `/api` answer with `message` alone.",
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
        "description": "`Bearer` and the token of a task.",
    },
    "browser": {"type": "apiKey", "in": "cookie", "name": "auth"},
}


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
