"""The slots of an allocation, and how far its log is stored, by node."""

from __future__ import annotations

import json
import socket

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("allocations", sa.Column("shares", sa.Text(), server_default="[]", nullable=False))
    op.add_column("allocations", sa.Column("log_offsets", sa.Text(), server_default="{}", nullable=False))
    # Until now there was one node, this machine.
    start = f'[{{"node": {json.dumps(socket.gethostname())}, "address": "127.0.0.1", "slot_ids": '
    op.execute(
        sa.text(
            "UPDATE allocations SET shares = :start || slot_ids || '}]' WHERE slot_ids <> '[]'"
        ).bindparams(start=start)
    )
    op.execute(
        sa.text("UPDATE allocations SET log_offsets = :start || CAST(log_offset AS TEXT) || '}'").bindparams(
            start='{"0": '
        )
    )
    # SQLite has learned to drop columns in 3.35 only: Alembic copies the table there.
    with op.batch_alter_table("allocations") as batch:
        batch.drop_column("slot_ids")
        batch.drop_column("log_offset")


def downgrade() -> None:
    """Undo, for a master without live allocations: what they occupy is not put back."""
    op.add_column("allocations", sa.Column("slot_ids", sa.Text(), server_default="[]", nullable=False))
    op.add_column("allocations", sa.Column("log_offset", sa.BigInteger(), server_default="0", nullable=False))
    op.drop_column("allocations", "log_offsets")
    op.drop_column("allocations", "shares")
