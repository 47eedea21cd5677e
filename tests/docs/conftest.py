"""What the examples of the documents read from a master."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import forked_masters
import httpx
import pytest
from master.fakes import Client

from det_keras.home import Home
from det_keras.master import process

CONFIG = "name: digits\nsearcher: {name: single, metric: val_loss}\n"


# Not of the whole session: the master gives up a trial that sends no heartbeat for some minutes, in which other files
# may run.
@pytest.fixture(scope="module")
def master_with_an_experiment(tmp_path_factory) -> Iterator[Home]:
    """Start a master on which experiment 1 has a trial that reported validations."""
    home = Home(tmp_path_factory.mktemp("master")).create()
    running = forked_masters.start(home, slots=1)
    with httpx.Client(base_url=running.url, trust_env=False) as http:
        client = Client(http, home.token_file.read_text().strip())
        experiment_id = client.create(CONFIG, unmanaged=True)
        body = {"experimentId": experiment_id, "hparams": {"learning_rate": 0.01}, "unmanaged": True}
        trial_id = client.post("/api/v1/trials", body)["trial"]["id"]
        client.post(f"/api/v1/trials/{trial_id}/start", {"trialId": trial_id, "resume": False})
        for batches, loss in ((10, 0.5), (20, 0.25)):
            client.report(trial_id, "validation", batches, {"val_loss": loss})
        assert (experiment_id, trial_id) == (1, 1)
    yield home
    process.stop(home, kill_tasks=True)


@pytest.fixture
def reported_experiment(master_with_an_experiment: Home, own_home: Path, monkeypatch) -> None:
    """Let this test's `connect` find the master with the experiment."""
    running = process.find(master_with_an_experiment)
    assert running is not None
    monkeypatch.setenv("DET_MASTER", running.url)
    monkeypatch.setenv("DET_USER_TOKEN", master_with_an_experiment.token_file.read_text().strip())
