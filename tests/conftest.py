"""What every test may rely on: a data root of its own, and quiet TensorFlow."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import surroundings
import tiers
import times
from database import server

surroundings.neutralize(os.environ)
surroundings.allow_slow_examples()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Masters start no copies of trials, which take as long as the trials; the tests of the copies ask for them.
os.environ["DET_KERAS_VERIFY_RESUME"] = "never"
# Tests start many processes. Without the compiled files each would compile TensorFlow's Python code again, which takes
# longer than most of the trainings.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background with Ctrl-C ignored, and so would be all that the tests start: those
    # that send SIGINT would wait forever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE / "keras"))
sys.path.insert(0, str(_HERE))


#: Of which run the times are stored: that of a tox environment, or of no environment.
_RUN = os.environ.get("TOX_ENV_NAME", "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which a run leaves to another one what that one has tested."""
    parser.addoption(
        "--without-passed",
        metavar="RUN",
        help="leave out the tests that passed in the last run of this tox environment, on the same code",
    )
    parser.addoption(
        "--share",
        metavar="NUMBER[/SHARES]",
        help="run one share of the files, the next number takes another one; by default as many shares as take a "
        "quarter of an hour each",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Measure the times once, not in each of the processes that share the tests."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(times.Times(_RUN))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the fast tests, and begin with the files that take longest; the others keep their order."""
    config.stash[tiers.COLLECTED] = frozenset(item.nodeid for item in items)
    pilots, slow = tiers.pilots(), times.slow_tests()
    for item in items:
        if tiers.is_fast(item, pilots, slow):
            item.add_marker("fast")
    run, share = config.getoption("--without-passed"), config.getoption("--share")
    if run:
        passed = times.passed_tests(run)
        _keep(config, items, lambda item: item.nodeid not in passed)
    if share is not None:
        number, _, count = share.partition("/")
        shares = int(count) if count else None
        files = times.share_of({_file(item) for item in items}, int(number), times.kept_times(_RUN), shares)
        _keep(config, items, lambda item: _file(item) in files)
    seconds = times.last_times(_RUN)
    items.sort(key=lambda item: -seconds.get(_file(item), 0.0))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _keep(config: pytest.Config, items: list[pytest.Item], is_kept: Callable[[pytest.Item], bool]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not is_kept(item)])
    items[:] = filter(is_kept, items)


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


@pytest.fixture(scope="module")
def machines():
    """Two machines of two slots each, of a Ray cluster; tests that take one away add another.

    Not for the whole session: idle, Ray's processes take a twentieth of two cores.
    """
    pytest.importorskip("ray")
    from ray_machines import Machines

    found = Machines(2, 2)
    yield found
    found.close()
