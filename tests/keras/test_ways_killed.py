"""Ways of feeding and calling `fit`, killed twice at drawn batches, end as the undisturbed run."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from way_runs import KILLED, WayRunner

pytestmark = [pytest.mark.process, pytest.mark.kill]

SEED = int(os.environ.get("DET_KERAS_TEST_SEED", "20"))


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """Run what the tests of this module asked for, two at a time; futures by name."""
    runner = WayRunner(tmp_path_factory.mktemp("ways"))
    names = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]

    def kill(name):
        return runner.kill_twice(name, random.Random(f"{SEED} {name}"))

    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(kill, name) for name in names}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", KILLED)
def test_kills_change_nothing(name, results):
    kills, reference, resumed = results[name].result()
    assert resumed.values == reference.values, f"Another end after kills at {kills}, seed {SEED}."
