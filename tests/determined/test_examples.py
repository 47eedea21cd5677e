"""The examples and the ready configs, submitted unchanged and run in containers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


def test_digits(double):
    printed = double.det(
        "experiment", "create", ROOT / "examples/digits/const.yaml", ROOT / "examples/digits", "-f"
    ).stdout
    print(printed)
    assert re.search("Best val_accuracy", printed)
