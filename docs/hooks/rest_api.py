"""The REST API, from the OpenAPI description that the master generates from its routes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from det_keras.home import Home
from det_keras.master.app import create_app
from det_keras.master.database.notifier import Notifier
from det_keras.master.embedded import EmbeddedMaster, open_store

__all__ = ["generate"]


def generate() -> str:
    """Return a table of calls for each part of the API."""
    description = _describe()
    sections: dict[str, list[str]] = {}
    for path, operations in description["paths"].items():
        for verb, operation in operations.items():
            part = path.removeprefix("/api/v1").strip("/").partition("/")[0]
            sections.setdefault(part, []).append(_row(verb, path, operation))
    head = "| Call | What it does | Parameters |\n| --- | --- | --- |"
    tables = [f"## {part}\n\n{head}\n" + "\n".join(rows) for part, rows in sections.items()]
    return "\n\n".join([description["info"]["description"], *tables]) + "\n"


def _row(verb: str, path: str, operation: dict[str, Any]) -> str:
    names = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] != "path"]
    summary = " ".join(
        operation.get("description", operation.get("summary", "")).partition("\n\n")[0].split()
    )
    parameters = ", ".join(f"`{name}`" for name in names)
    if "requestBody" in operation:
        parameters = "; ".join(filter(None, [parameters, "a JSON body"]))
    return f"| `{verb.upper()} {path}` | {summary} | {parameters} |"


def _describe() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        home, notifier = Home(Path(folder)).create(), Notifier()
        store = open_store(home, notifier, {})
        master = EmbeddedMaster(home, store, notifier, url="http://127.0.0.1", slots=[], environment={})
        description: dict[str, Any] = create_app(master).state.describe()
        store.close()
    return description
