"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = ["did_you_mean"]


def did_you_mean(given: Any, names: Iterable[str]) -> str:
    """Return " Did you mean `x`?" for the nearest of `names`; empty if none is near."""
    if not isinstance(given, str):
        return ""
    by_folded = {name.lower().replace("-", "_"): name for name in names}
    near = difflib.get_close_matches(given.lower().replace("-", "_"), by_folded, n=1, cutoff=0.6)
    return f" Did you mean `{by_folded[near[0]]}`?" if near else ""
