"""Open pages are notified of what they show, and of nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from det_keras.master.database.change_feed import EVERYTHING, ChangeFeed, Subject
from det_keras.master.server.watched import Watched
from master.fakes import SINGLE

_SUBJECTS = st.frozensets(
    st.builds(Subject, st.sampled_from(["trial", "task"]), st.integers(1, 5)), max_size=3
)


@given(st.lists(_SUBJECTS, max_size=30), st.data())
def test_feed_tells_exactly_what_changed_since(transactions, data):
    feed = ChangeFeed()
    positions = [feed.position]
    for subjects in transactions:
        feed.record(subjects)
        positions.append(feed.position)
    since = data.draw(st.integers(0, len(transactions)))
    assert feed.since(positions[since]) == (feed.position, frozenset().union(*transactions[since:]))


def test_feed_that_has_forgotten_tells_everything():
    feed = ChangeFeed()
    for number in range(5000):
        feed.record({Subject("trial", number)})
    assert feed.since(3) == (5000, frozenset({EVERYTHING}))
    # A page that was rendered before a restart of the master has a position of another feed.
    assert feed.since(5001) == (5000, frozenset({EVERYTHING}))
    assert ChangeFeed().since(1) == (0, frozenset({EVERYTHING}))
    assert feed.since(4999) == (5000, frozenset({Subject("trial", 4999)}))


def notified(world, watched, action):
    """Return which of some pages are notified of an action."""
    position = world.master.store.feed.position
    action()
    _, changed = world.master.store.feed.since(position)
    return {
        name for name in watched if bool(changed) and Watched([name]).includes(world.master.store, changed)
    }


def test_page_is_notified_of_its_own_experiment_only(world):
    number, trial, _ = world.launch()
    other = world.client.create(SINGLE, activate=False)
    pages = [
        f"experiment:{number}", f"experiment-row:{number}", f"trial:{trial['id']}", f"task:{trial['taskId']}",
        f"experiment:{other}", "task", "experiment",
    ]  # fmt: skip
    whole = {f"experiment:{number}", f"trial:{trial['id']}", f"task:{trial['taskId']}"}
    report = notified(world, pages, lambda: world.client.report(trial["id"], "training", 1, {"loss": 1.0}))
    assert report == {*whole, "task"} - {"task"}
    validation = notified(
        world, pages, lambda: world.client.report(trial["id"], "validation", 1, {"loss": 1.0})
    )
    assert whole <= validation
    assert f"experiment:{other}" not in validation
    renamed = {"name": "other"}
    patch = notified(
        world, pages, lambda: world.client.call("PATCH", f"/api/v1/experiments/{other}", renamed)
    )
    assert patch == {f"experiment:{other}", "experiment"}


def test_lines_of_a_log_notify_no_page(world):
    # Paused: nothing else changes meanwhile.
    trial = world.client.trials(world.client.create(SINGLE, activate=False))[0]
    position = world.master.store.feed.position
    world.client.post("/api/v1/task/logs", {"logs": [{"taskId": trial["taskId"], "log": "a line\n"}]})
    assert world.client.log(trial["id"])[-1]["log"] == "a line\n"
    assert world.master.store.feed.position == position
