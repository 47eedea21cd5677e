"""The history of the database's schema, one script per change in `versions/`; run at every start."""

from __future__ import annotations

__all__ = ["HEAD"]

#: The newest revision. It is named here so that a start with nothing to migrate does not import Alembic.
HEAD = "0020"
