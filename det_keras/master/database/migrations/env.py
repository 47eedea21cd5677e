"""Alembic's connection to the database: the master's own, or one made from a URL during development."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import create_engine

from det_keras.master.database.models import Base, Json, PlainText, UtcTime


def _render_item(kind: str, item: Any, _: Any) -> Any:
    """Write our column types as plain SQL types: a migration must not change with our code."""
    if kind == "type" and isinstance(item, Json | PlainText):
        return "sa.Text()"
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcTime) else False


def _run() -> None:
    connection = context.config.attributes.get("connection")
    if connection is None:
        url = context.config.get_main_option("sqlalchemy.url")
        assert url is not None
        connection = create_engine(url).connect()
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        # SQLite cannot alter most of a table: Alembic then copies it.
        render_as_batch=True,
        render_item=_render_item,
    )
    with context.begin_transaction():
        context.run_migrations()


_run()
