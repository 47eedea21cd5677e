"""The kinds of columns, and the root of all tables."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import DateTime, MetaData, String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import BigInteger, Integer, TypeDecorator, TypeEngine

from det_keras.master.wire import encode_json


class Json(TypeDecorator[Any]):
    """A plain value as JSON text; NaN and infinities are stored as their names."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Write."""
        return None if value is None else encode_json(value).decode()

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Read."""
        return None if value is None else json.loads(value)


class PlainText(TypeDecorator[str]):
    """Text of any characters and, on PostgreSQL, of any length.

    PostgreSQL refuses the character NUL, which programs do print. There it is stored as two other characters.

    Args:
        length: what the schema of SQLite says, which does not limit texts either; None for none.
    """

    impl = Text
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of a dialect."""
        return Text() if dialect.name == "postgresql" or self.length is None else String(self.length)

    def bind_processor(self, dialect: Dialect) -> Any:
        """Write."""
        return _without_nul if dialect.name == "postgresql" else None

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Read."""
        return _with_nul if dialect.name == "postgresql" else None


# A code point that Unicode reserves for internal use, and which of the two characters it stands for.
_MARK = "\ufdd0"


def _without_nul(text: str | None) -> str | None:
    if text is None or ("\0" not in text and _MARK not in text):
        return text
    return text.replace(_MARK, f"{_MARK}1").replace("\0", f"{_MARK}0")


def _with_nul(text: str | None) -> str | None:
    if text is None or _MARK not in text:
        return text
    return text.replace(f"{_MARK}0", "\0").replace(f"{_MARK}1", _MARK)


# Programs send numbers of 64 bits. SQLite stores them in every column, and numbers rows only in one of type INTEGER.
_Integer = BigInteger().with_variant(Integer(), "sqlite")


class UtcTime(TypeDecorator[datetime]):
    """A time with its zone. SQLite stores no zone: times are stored in UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Write."""
        if value is None:
            return None
        time = value.astimezone(timezone.utc)
        return time.replace(tzinfo=None) if dialect.name == "sqlite" else time

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Read."""
        if value is None:
            return value
        # PostgreSQL returns times in the zone of the session.
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


class utc_text(FunctionElement[str]):  # noqa: N801 - it is written like a function of SQL
    """A time as text such as ``2026-01-02 03:04:05.678901``, in UTC: a long list of times costs no objects."""

    type = Text()
    inherit_cache = True


@compiles(utc_text, "sqlite")
def _stored_text(element: utc_text, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(utc_text, "postgresql")
def _formatted_text(element: utc_text, compiler: SQLCompiler, **options: Any) -> str:
    # Connections have the time zone UTC.
    return f"to_char({compiler.process(element.clauses, **options)}, 'YYYY-MM-DD HH24:MI:SS.US')"


class Base(DeclarativeBase):
    """The root of all tables."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own way to map types
        datetime: UtcTime,
        dict[str, Any]: Json,
        list[Any]: Json,
        int: _Integer,
        str: PlainText,
        dict[str, int]: Json,
    }
