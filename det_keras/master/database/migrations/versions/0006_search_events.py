"""The state of searches in a table of its own, with the events since it was stored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "searches",
        sa.Column("experiment_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_searches_experiment_id_experiments"
        ),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_searches"),
    )
    op.create_table(
        "search_events",
        sa.Column("experiment_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_search_events_experiment_id_experiments"
        ),
        sa.PrimaryKeyConstraint("experiment_id", "number", name="pk_search_events"),
    )
    op.execute(
        "INSERT INTO searches (experiment_id, number, state) "
        "SELECT id, 0, searcher FROM experiments WHERE searcher <> '{}'"
    )
    # The column stays, empty: SQLite before 3.35 can only copy the table, which others refer to.
    op.execute("UPDATE experiments SET searcher = '{}'")


def downgrade() -> None:
    """Undo, for a master that was stopped: it has stored the states."""
    op.execute(
        "UPDATE experiments SET searcher = (SELECT state FROM searches WHERE experiment_id = experiments.id) "
        "WHERE id IN (SELECT experiment_id FROM searches)"
    )
    op.drop_table("search_events")
    op.drop_table("searches")
