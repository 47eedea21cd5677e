"""The record of who changed what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "audit",
        sa.Column("id", big, nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("user_id", big),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("token_id", big),
        sa.Column("allocation_id", sa.Text()),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("object_id", sa.Text(), nullable=False),
        sa.Column("owner_id", big),
        sa.Column("of_kind", sa.Text(), nullable=False),
        sa.Column("of_id", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_made_at", "audit", ["made_at"])
    op.create_index("ix_audit_user_id", "audit", ["user_id"])
    op.create_index("ix_audit_owner_id", "audit", ["owner_id"])
    op.create_index("ix_audit_kind_object_id", "audit", ["kind", "object_id"])
    op.create_index("ix_audit_of_kind_of_id", "audit", ["of_kind", "of_id"])


def downgrade() -> None:
    """Undo."""
    op.drop_table("audit")
