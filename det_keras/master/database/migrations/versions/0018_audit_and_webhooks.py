"""The record of who changed what; webhooks, and what was sent to them."""

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
    op.create_table(
        "webhooks",
        sa.Column("id", big, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("format", sa.Text().with_variant(sa.String(16), "sqlite"), nullable=False),
        sa.Column("mode", sa.Text().with_variant(sa.String(16), "sqlite"), nullable=False),
        sa.Column("workspace_id", big),
        sa.Column("owner_id", big, nullable=False),
        sa.Column("triggers", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_webhooks_owner_id_users"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_webhooks_workspace_id_workspaces"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_webhooks_workspace_id", "webhooks", ["workspace_id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", big, nullable=False),
        sa.Column("webhook_id", big, nullable=False),
        sa.Column("event_id", sa.Text().with_variant(sa.String(36), "sqlite"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("about", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("state", sa.Text().with_variant(sa.String(16), "sqlite"), nullable=False),
        sa.Column("attempts", big, nullable=False),
        sa.Column("most_attempts", big, nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("status", big),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name="fk_webhook_deliveries_webhook_id_webhooks"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
        sa.UniqueConstraint("webhook_id", "reason", name="uq_webhook_deliveries_webhook_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_webhook_deliveries_state_due_at", "webhook_deliveries", ["state", "due_at"])


def downgrade() -> None:
    """Undo."""
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
    op.drop_table("audit")
