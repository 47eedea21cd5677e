"""Through the master: a script with state in many places that is paused in its last fit, and activated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.process, pytest.mark.kill]

CONFIG = {
    "name": "stages",
    "entrypoint": "python3 stages.py",
    "searcher": {"name": "single", "metric": "loss"},
    "min_checkpoint_period": {"batches": 2},
    "reproducibility": {"experiment_seed": 5, "deterministic_ops": True},
}


def test_script_that_is_paused_in_its_last_fit_ends_the_same(cluster, tmp_path):
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "stages.py").write_bytes((Path(__file__).parent / "stages.py").read_bytes())

    def create(name, *variables):
        config = tmp_path / f"{name}.yaml"
        environment = {"environment_variables": [f"RESULT={tmp_path / name}.json", *variables]}
        config.write_text(yaml.safe_dump({**CONFIG, "environment": environment}))
        return cluster.create(config, folder)

    mark = tmp_path / "waits"
    undisturbed, paused = create("undisturbed"), create("paused", f"WAIT={mark}")
    cluster.until(mark.exists)
    cluster.det("experiment", "pause", paused)
    trial = cluster.trial(paused)
    cluster.until(lambda: "is saved" in "".join(cluster.logs(trial)))
    assert not (tmp_path / "paused.json").exists()
    cluster.det("experiment", "activate", paused)
    ends = [cluster.wait(experiment) for experiment in (undisturbed, paused)]
    assert ends == ["STATE_COMPLETED"] * 2
    found, expected = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("paused", "undisturbed")
    )
    assert found == expected
    first, second = (
        [cluster.metrics(cluster.trial(experiment), group) for group in ("training", "validation")]
        for experiment in (undisturbed, paused)
    )
    assert second == first
