"""What every test may rely on: a data root of its own, and quiet TensorFlow."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from pathlib import Path

import pytest
import surroundings
from database import server

surroundings.neutralize(os.environ)
surroundings.allow_slow_examples()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Tests start many processes. Without the compiled files each would compile TensorFlow's Python code again, which takes
# longer than most of the trainings.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background with Ctrl-C ignored, and so would be all that the tests start: those
    # that send SIGINT would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE / "keras"))
sys.path.insert(0, str(_HERE))


#: Files that take more than half a minute, longest first: two processes that share the tests, file by file, begin with
#: these and end with short ones, so that neither is left with minutes of work alone. The first occupies two cores by
#: itself, the second one.
_LONGEST = [
    "distributed/test_workers.py",
    "keras/test_like_plain_keras.py",
    "keras/test_scripts.py",
    "distributed/test_virtual_workers.py",
    "keras/test_kills.py",
    "keras/test_ways_killed.py",
    "loops/test_loop_kills.py",
    "loops/test_loop.py",
    "master/test_ray.py",
    "keras/test_fit.py",
    "examples/test_generations.py",
    "examples/test_verify_resume.py",
    "cluster/test_examples.py",
    "examples/test_exact_experiments.py",
    "examples/test_distributed_experiments.py",
    "launch/test_nodes.py",
    "browser/test_pages.py",
    "storage/test_faults.py",
    "master/test_detached.py",
    "examples/test_digits_search.py",
    "keras/test_released.py",
    "examples/test_ray_experiments.py",
    "launch/test_distributed.py",
    "keras/test_exact_resume.py",
    "cluster/test_cli.py",
    "distributed/test_trials_on_workers.py",
    "database/test_choice.py",
    "examples/test_digits.py",
    "stock/test_stock_client.py",
    "master/test_survival.py",
    "master/test_search_survival.py",
    "keras/test_determined_callback.py",
    "storage/test_storages.py",
    "security/test_identities.py",
    "docs/test_blocks.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; the others keep their order."""
    places = {_HERE / name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """Take all that is imported by now out of the garbage collector's sight.

    TensorFlow and Keras are millions of objects that live as long as the process; looking through them again and again
    is a sixth of the time of the trainings in it.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgresql():
    """Return a PostgreSQL server of the tests' own; one for all tests of this process."""
    with server.running() as found:
        if found is None:
            pytest.skip(server.MISSING)
        yield found


@pytest.fixture(scope="session")
def give_database(request):
    """Return a function that gives a data root the kind of database that this run of the tests is about.

    With `DET_KERAS_TEST_DATABASE=postgresql` its masters use PostgreSQL, and each data root has a database of its own.
    Without it they use SQLite, and the function does nothing.
    """
    found = request.getfixturevalue("postgresql") if server.is_chosen() else None
    return functools.partial(server.give, found)


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    """Give each test a data root that nobody else uses, and no master to fall back on."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("DET_KERAS_HOME", str(home))
    for name in ("DET_KERAS_DB", "DET_MASTER", "DET_USER", "DET_PASS", "DET_USER_TOKEN", "DET_TASK_TYPE"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(scope="session")
def machines():
    """Two machines of two slots each, of a Ray cluster; tests that take one away add another."""
    pytest.importorskip("ray")
    from ray_machines import Machines

    found = Machines(2, 2)
    yield found
    found.close()
