"""On PostgreSQL, integers of 64 bits and texts of any length, as SQLite stores them in every column."""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMNS = text(
    "SELECT table_name, column_name, data_type FROM information_schema.columns"
    " WHERE table_schema = current_schema() AND table_name <> 'alembic_version'"
    " AND data_type IN ('character varying', 'integer') ORDER BY table_name, ordinal_position"
)
_SEQUENCES = text(
    "SELECT sequence_name FROM information_schema.sequences WHERE sequence_schema = current_schema()"
)
_TYPES = {"character varying": "TEXT", "integer": "BIGINT"}


def upgrade() -> None:
    """Apply."""
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return
    for table, column, kind in connection.execute(_COLUMNS).all():
        op.execute(f'ALTER TABLE "{table}" ALTER COLUMN "{column}" TYPE {_TYPES[kind]}')
    for (sequence,) in connection.execute(_SEQUENCES).all():
        op.execute(f'ALTER SEQUENCE "{sequence}" AS BIGINT')


def downgrade() -> None:
    """Undo nothing: the wider types hold what the earlier ones did."""
