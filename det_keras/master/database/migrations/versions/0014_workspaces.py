"""Workspaces and projects."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "workspaces",
        sa.Column("id", big, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner_id", big, nullable=False),
        sa.Column("is_archived", sa.Boolean(), nullable=False),
        sa.Column("is_deleting", sa.Boolean(), nullable=False),
        sa.Column("checkpoint_storage", sa.Text()),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_workspaces_owner_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_workspaces"),
        sa.UniqueConstraint("name", name="uq_workspaces_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "projects",
        sa.Column("id", big, nullable=False),
        sa.Column("workspace_id", big, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("owner_id", big, nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("is_archived", sa.Boolean(), nullable=False),
        sa.Column("is_deleting", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_projects_workspace_id_workspaces"
        ),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_projects_owner_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
        sa.UniqueConstraint("workspace_id", "name", name="uq_projects_workspace_id"),
        sa.UniqueConstraint("key", name="uq_projects_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "workspace_pins",
        sa.Column("user_id", big, nullable=False),
        sa.Column("workspace_id", big, nullable=False),
        sa.Column("pinned_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_workspace_pins_user_id_users"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_workspace_pins_workspace_id_workspaces"
        ),
        sa.PrimaryKeyConstraint("user_id", "workspace_id", name="pk_workspace_pins"),
    )
    # All that was there is in the first project of the first workspace, which the master creates when it starts.
    op.add_column("experiments", sa.Column("project_id", big, nullable=False, server_default="1"))
    op.create_index("ix_experiments_project_id", "experiments", ["project_id"])
    op.add_column("tasks", sa.Column("workspace_id", big, nullable=False, server_default="1"))


def downgrade() -> None:
    """Undo."""
    with op.batch_alter_table("tasks") as batch:
        batch.drop_column("workspace_id")
    op.drop_index("ix_experiments_project_id", "experiments")
    with op.batch_alter_table("experiments") as batch:
        batch.drop_column("project_id")
    op.drop_table("workspace_pins")
    op.drop_table("projects")
    op.drop_table("workspaces")
