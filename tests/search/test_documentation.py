"""What docs/search.md promises."""

from __future__ import annotations

import re
from pathlib import Path

from search.searches import searcher

PAGE = (Path(__file__).parents[2] / "docs" / "search.md").read_text(encoding="utf-8")


def test_example_of_the_simulator_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    best, total, endings = re.fullmatch(r"([\d.]+) (\d+) (\{.*\})\n", capsys.readouterr().out).groups()
    assert 0 < float(best) < 1
    assert int(total) < 16 * 64
    assert endings.startswith("{4: ")


def test_every_method_of_the_page_exists():
    names = re.findall(r"^\| `(\w+)` \|", PAGE.split("## The methods")[1].split("##")[0], re.MULTILINE)
    assert names == ["single", "random", "grid", "async_halving", "adaptive_asha", "tpe"]
    fields = {
        "random": "max_trials: 3",
        "async_halving": "max_trials: 3, num_rungs: 2, max_time: 4, time_metric: epochs",
        "adaptive_asha": "max_trials: 3, max_time: 4, time_metric: epochs",
        "tpe": "max_trials: 3",
    }
    for name in names:
        assert searcher(f"name: {name}, {fields.get(name, '')}", "").initial()
