"""Each kind of callers leaves room for the others, and nobody holds everything."""

from __future__ import annotations

import contextlib
import dataclasses
import threading

import pytest

from det_keras.master.accounts.auth import Caller
from det_keras.master.errors import TooManyRequestsError, UnavailableError
from det_keras.master.server.admission import Admission, Place
from det_keras.master.server.capacity import Capacity
from master.fakes import Client, eventually

CAPACITY = dataclasses.replace(
    Capacity.of(1024),
    calls=8,
    user_calls=6,
    anonymous_calls=3,
    anonymous_calls_per_address=2,
    user_streams=3,
    task_streams=3,
    streams_per_caller=2,
    downloads=3,
    downloads_per_caller=2,
)
USER, OTHER = (Caller(number, name, False, name) for number, name in enumerate(("bob", "eve")))
TASK = Caller(1, "bob", True, "hash", "1.1")


def admit(admission: Admission, caller: Caller | None, address: str = "192.0.2.1") -> Place:
    place = Place(caller, address)
    try:
        admission.admit(place)
    except UnavailableError:
        place.leave()
        raise
    return place


def most(admission: Admission, caller: Caller | None) -> int:
    """Return how many more calls of this kind are admitted, from any address."""
    with contextlib.ExitStack() as places:
        for count in range(100):
            try:
                places.callback(admit(admission, caller, f"192.0.2.{count}").leave)
            except UnavailableError:
                return count
    raise AssertionError("There is no bound.")


def test_strangers_leave_room_for_users_and_users_for_tasks():
    admission = Admission(CAPACITY)
    assert [most(admission, caller) for caller in (None, USER, TASK)] == [3, 6, 8]
    strangers = [admit(admission, None, f"192.0.2.{number}") for number in range(3)]
    assert most(admission, USER) == 3
    users = [admit(admission, USER) for _ in range(3)]
    assert most(admission, TASK) == 2
    for place in strangers + users:
        place.leave()
    assert most(admission, TASK) == 8


def test_strangers_of_one_address_leave_room_for_those_of_others():
    admission = Admission(CAPACITY)
    places = [admit(admission, None) for _ in range(2)]
    with pytest.raises(
        UnavailableError, match=r"2 calls without a login of the address 192\.0\.2\.1 at once"
    ):
        admit(admission, None)
    places.append(admit(admission, None, "192.0.2.2"))


def test_refused_call_occupies_nothing():
    admission = Admission(dataclasses.replace(CAPACITY, user_calls=1))
    place = admit(admission, USER)
    with pytest.raises(UnavailableError):
        admit(admission, None)
    place.leave()
    assert most(admission, None) == 1


@pytest.mark.parametrize("kind", ["open_stream", "open_download"])
def test_user_may_not_hold_all_streams(kind):
    admission = Admission(CAPACITY)
    places = [Place(caller, "") for caller in (USER, USER, USER, OTHER, OTHER)]
    hold = getattr(admission, kind)
    hold(places[0])
    hold(places[1])
    with pytest.raises(TooManyRequestsError, match=r"serves 2 .* of user 'bob' at once"):
        hold(places[2])
    hold(places[3])
    with pytest.raises(UnavailableError, match="serves 3 "):
        hold(places[4])
    places[0].leave()
    hold(places[4])


def test_streams_of_users_leave_those_of_tasks_alone():
    admission = Admission(CAPACITY)
    places = [Place(caller, "") for caller in (USER, USER, OTHER, TASK)]
    for place in places:
        admission.open_stream(place)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/trials/{trial}/logs?follow=true",
        "/api/v1/tasks/{task}/logs?follow=true",
        "/api/v1/master/logs?follow=true",
        "/api/v1/allocations/{allocation}/signals/preemption?timeoutSeconds=60",
        "/live",
        "/api/v1/trials/metrics/training_metrics?trialIds={trial}",
        "/api/v1/trials/metrics/validation_metrics?trialIds={trial}",
        "/api/v1/trials/metrics/trial_metrics?group=training&trialIds={trial}",
        "/checkpoints/11111111-2222-3333-4444-555555555555",
        "/checkpoints/11111111-2222-3333-4444-555555555555/archive",
    ],
)
def test_every_call_that_lasts_is_counted(world, path):
    _, trial, allocation_id = world.launch()
    nothing = dataclasses.replace(CAPACITY, user_streams=0, downloads=0)
    world.http.app.state.admission = Admission(nothing)
    place = path.format(trial=trial["id"], task=trial["taskId"], allocation=allocation_id)
    answer = world.http.get(place, headers={"Authorization": f"Bearer {world.client.token}"})
    assert answer.status_code == 503
    assert "The master serves 0 " in answer.text


def test_log_that_is_read_once_is_no_stream(world):
    _, trial, _ = world.launch()
    world.http.app.state.admission = Admission(dataclasses.replace(CAPACITY, user_streams=0))
    headers = {"Authorization": f"Bearer {world.client.token}"}
    assert world.http.get(f"/api/v1/trials/{trial['id']}/logs", headers=headers).status_code == 200


def test_stream_that_ended_makes_room_for_another(world):
    _, _, allocation_id = world.launch()
    world.http.app.state.admission = Admission(dataclasses.replace(CAPACITY, streams_per_caller=1))
    path = f"/api/v1/allocations/{allocation_id}/signals/preemption?timeoutSeconds="
    # Refused while one of the short polls below is being answered.
    polling = threading.Thread(target=lambda: eventually(lambda: _status(world.client, path + "60") == 200))
    polling.start()
    eventually(lambda: _status(world.client, path + "0") == 429)
    world.client.post(f"/api/v1/allocations/{allocation_id}/signals/pending_preemption")
    polling.join()
    assert _status(world.client, path + "0") == 200


def _status(client: Client, path: str) -> int:
    return client.http.get(path, headers={"Authorization": f"Bearer {client.token}"}).status_code
