"""The page at `/docs`: all calls with their parameters and descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from det_keras.master.server.responses import reply

router = APIRouter(include_in_schema=False)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }
h2 { margin-top: 2em; border-bottom: 1px solid #ccc; }
summary { cursor: pointer; padding: .2em 0; }
code, .verb { font-family: ui-monospace, monospace; }
.verb { display: inline-block; width: 5em; font-weight: bold; color: #05539c; }
.about { color: #666; margin-left: .5em; }
table { border-collapse: collapse; margin: .5em 0 1em 5em; }
td, th { text-align: left; padding: .1em 1em .1em 0; vertical-align: top; }
body { overflow-wrap: anywhere; }
details { overflow-x: auto; }
@media (max-width: 40em) {
  .verb { width: auto; margin-right: .5em; } table { margin-left: 0; }
}
@media (prefers-color-scheme: dark) {
  body { background: #111; color: #ddd; } .verb, a { color: #7db8f0; } .about { color: #999; }
}
"""


@router.get("/docs")
def page(request: Request) -> Response:
    """Show all calls."""
    # The policy allows no scripts and no other origins, whatever a description contains.
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    headers = {"Content-Security-Policy": policy}
    return HTMLResponse(reference_page(request.app.state.describe()), headers=headers)


@router.get("/openapi.json")
def description(request: Request) -> Response:
    """Return the OpenAPI description of all calls."""
    return reply(request.app.state.describe())


def reference_page(described: Mapping[str, Any]) -> str:
    """Return the page for an OpenAPI description. It needs no scripts and no other files."""
    sections: dict[str, list[str]] = {}
    for path, operations in described["paths"].items():
        for verb, operation in operations.items():
            entry = _entry(verb.upper(), path, operation, described["components"]["schemas"])
            sections.setdefault(_section(path), []).append(entry)
    parts = [f"<h2>{escape(name)}</h2>\n" + "\n".join(entries) for name, entries in sections.items()]
    info = described["info"]
    title = f"{escape(info['title'])}, Determined {escape(info['version'])}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        # Without one, browsers ask for another file.
        '<link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head>\n<body><main><h1>{title}</h1>\n<p>{_text(info['description'])}</p>\n"
        f'<p>The same as OpenAPI: <a href="/openapi.json">/openapi.json</a>.</p>\n'
        f"{''.join(parts)}\n</main></body></html>\n"
    )


class _Row(NamedTuple):
    name: str
    place: str
    kind: str
    is_required: bool
    about: str = ""


def _section(path: str) -> str:
    parts = path.removeprefix("/api/v1").strip("/").split("/")
    return parts[0]


def _entry(verb: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    rows = [
        _Row(
            parameter["name"],
            parameter["in"],
            _kind(parameter["schema"]),
            parameter.get("required", False),
            parameter.get("description", ""),
        )
        for parameter in operation.get("parameters", ())
    ]
    rows += _body_rows(operation, schemas)
    head = (
        f'<span class="verb">{verb}</span><code>{escape(path)}</code>'
        f'<span class="about">{_text(operation.get("description", ""))}</span>'
    )
    if not rows:
        return f"<details><summary>{head}</summary></details>"
    cells = "\n".join(
        f"<tr><td><code>{escape(row.name)}</code></td><td>{escape(row.place)}</td><td>{escape(row.kind)}</td>"
        f"<td>{'required' if row.is_required else ''}</td><td>{_text(row.about)}</td></tr>"
        for row in rows
    )
    return f"<details><summary>{head}</summary><table>{cells}</table></details>"


def _body_rows(operation: Mapping[str, Any], schemas: Mapping[str, Any], prefix: str = "") -> list[_Row]:
    body = operation.get("requestBody")
    if body is None:
        return []
    return _fields(_resolved(body["content"]["application/json"]["schema"], schemas), schemas, prefix)


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any], prefix: str) -> list[_Row]:
    rows = []
    for name, field in schema.get("properties", {}).items():
        rows.append(_Row(prefix + name, "body", _kind(field), name in schema.get("required", ())))
        inner = _resolved(field.get("items", field), schemas)
        rows += _fields(inner, schemas, f"{prefix}{name}{'[]' if 'items' in field else ''}.")
    return rows


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema that a schema refers to, also as an alternative to null."""
    for choice in schema.get("anyOf", ()):
        if "$ref" in choice:
            return _resolved(choice, schemas)
    if "$ref" not in schema:
        return schema
    found = schemas[schema["$ref"].rpartition("/")[2]]
    assert isinstance(found, Mapping)
    return found


def _kind(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(choice) for choice in schema["anyOf"] if choice.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "object" if "$ref" in schema else "any"))


def _text(text: str) -> str:
    return escape(text)
