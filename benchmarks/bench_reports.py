"""A metric report of a local run after 100,000 others, and after none."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from measure import in_turns, report

# isort: split
from det_keras import core

BEFORE, TURNS, EACH = 100_000, 9, 500

with tempfile.TemporaryDirectory() as folder:
    numbers = itertools.count()
    with core.init(run_dir=Path(folder) / "long") as long, core.init(run_dir=Path(folder) / "short") as short:

        def reports(context: core.Context, count: int) -> None:
            """Report distinct metrics."""
            for number in itertools.islice(numbers, count):
                context.train.report_metrics("training", number, {"loss": 1 / (number + 1), "accuracy": 0.5})

        reports(long, BEFORE)
        first, late = in_turns(TURNS, lambda: reports(short, EACH), lambda: reports(long, EACH))
    report(
        "a report after 100,000 others, against one of the first",
        late / first,
        goal=1.25,
        detail=f"{1e6 * late / EACH:.0f} us each",
    )
