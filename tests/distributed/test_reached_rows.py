"""What each of two workers holds comes back on its own rank, wherever the whole job is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import reached_rows
import warm

pytestmark = [pytest.mark.process, pytest.mark.kill]

#: Batches after which all ranks kill themselves, in one process after another.
KILLS = {
    # In the fit that an exception leaves at batch 8, behind its first epoch; and in the one that follows.
    "fits": (7, 7),
}


def launch(folder, name, *kill_after):
    """Run a script on two workers, and return how it ended."""
    command = [sys.executable, "-m", "det_keras.launch.distributed", "--np", "2", "--", sys.executable]
    done = warm.run(
        [*command, reached_rows.__file__, str(folder), name, *map(str, kill_after)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def results(folder):
    return [json.loads(Path(folder, f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("name", reached_rows.ROWS)
def test_what_ranks_hold_comes_back_on_each(name, tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir(), killed.mkdir()
    code, output = launch(undisturbed, name)
    assert code == 0, output[-4000:]
    for batches in KILLS[name]:
        code, output = launch(killed, name, batches)
        assert code != 0, f"it was not killed after {batches} batches"
        assert "Traceback" not in output, output[-4000:]
    code, output = launch(killed, name)
    assert code == 0, output[-4000:]
    expected = results(undisturbed)
    for found, one in zip(results(killed), expected, strict=True):
        assert found["batches"] < one["batches"], "it was not resumed"
        assert found["found"] == one["found"]
    first, second = (one["found"] for one in expected)
    assert first["weights"] == second["weights"]
    assert first["own"] != second["own"], "each rank has a state of its own"
