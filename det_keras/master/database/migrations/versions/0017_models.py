"""The model registry."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "models",
        sa.Column("id", big, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("folded_name", sa.Text(), nullable=False),
        *_described(),
        sa.Column("owner_id", big, nullable=False),
        sa.Column("workspace_id", big, nullable=False),
        sa.Column("is_archived", sa.Boolean(), nullable=False),
        sa.Column("aliases", sa.Text(), nullable=False),
        sa.Column("last_version", big, nullable=False),
        *_times(),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_models_owner_id_users"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_models_workspace_id_workspaces"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
        sa.UniqueConstraint("folded_name", name="uq_models_folded_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "model_versions",
        sa.Column("id", big, nullable=False),
        sa.Column("model_id", big, nullable=False),
        sa.Column("version", big, nullable=False),
        sa.Column("checkpoint_uuid", sa.Text().with_variant(sa.String(36), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        *_described()[1:],
        sa.Column("user_id", big, nullable=False),
        *_times(),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_model_versions_model_id_models"),
        sa.ForeignKeyConstraint(
            ["checkpoint_uuid"], ["checkpoints.uuid"], name="fk_model_versions_checkpoint_uuid_checkpoints"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_model_versions_user_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_model_versions"),
        sa.UniqueConstraint("model_id", "version", name="uq_model_versions_model_id_version"),
        sa.UniqueConstraint("model_id", "checkpoint_uuid", name="uq_model_versions_model_id_checkpoint_uuid"),
    )
    op.create_index("ix_model_versions_checkpoint_uuid", "model_versions", ["checkpoint_uuid"])
    op.create_table(
        "trial_sources",
        sa.Column("id", big, nullable=False),
        sa.Column("trial_id", big, nullable=False),
        sa.Column("checkpoint_uuid", sa.Text().with_variant(sa.String(36), "sqlite"), nullable=False),
        sa.Column("kind", sa.Text().with_variant(sa.String(32), "sqlite"), nullable=False),
        sa.Column("model_id", big, nullable=True),
        sa.Column("model_version", big, nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_trial_sources_trial_id_trials"),
        sa.ForeignKeyConstraint(
            ["checkpoint_uuid"], ["checkpoints.uuid"], name="fk_trial_sources_checkpoint_uuid_checkpoints"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_trial_sources"),
        sa.UniqueConstraint("trial_id", "checkpoint_uuid", name="uq_trial_sources_trial_id"),
    )
    op.create_index("ix_trial_sources_checkpoint_uuid", "trial_sources", ["checkpoint_uuid"])


def downgrade() -> None:
    """Undo."""
    op.drop_table("trial_sources")
    op.drop_table("model_versions")
    op.drop_table("models")


def _described() -> list[sa.Column[Any]]:
    names = ("description", "notes", "labels", "meta")
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _times() -> list[sa.Column[Any]]:
    names = ("creation_time", "last_updated_time")
    return [sa.Column(name, sa.DateTime(timezone=True), nullable=False) for name in names]
