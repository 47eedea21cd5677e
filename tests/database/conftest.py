"""Databases of a PostgreSQL server, which these tests use whatever the others use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from database.server import PostgresServer


@pytest.fixture
def url(postgresql: PostgresServer) -> Iterator[str]:
    """The URL of an empty database."""
    name = postgresql.create()
    yield postgresql.url(name)
    postgresql.drop(name)
