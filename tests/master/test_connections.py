"""Which connections stay, which are closed when their time is over, and which give way to others."""

from __future__ import annotations

import dataclasses

import pytest

from det_keras.master.server.capacity import Capacity
from det_keras.master.server.connections import KEEP_ALIVE_S, REQUEST_S, Activity, Connections
from master.fakes import Clock

# Six connections, three of them without a request, two of these from one address.
SMALL = dataclasses.replace(Capacity.of(64), connections=6, waiting=3, waiting_per_address=2)


class Client:
    """A connection that only records that it was closed."""

    def __init__(self, address: str = "192.0.2.1", *, has_unread: bool = False) -> None:
        self.address = address
        self.has_unread = has_unread
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True


@pytest.fixture
def connections(clock):
    return Connections(SMALL, clock)


def connect(connections: Connections, clock: Clock, *clients: Client, activity=Activity.WAITING) -> None:
    for client in clients:
        assert connections.make_room()
        connections.add(client)
        connections.move(client, activity)
        clock.now_s += 1


def test_silent_connection_that_is_oldest_gives_way(connections, clock):
    clients = [Client(f"192.0.2.{number}") for number in range(4)]
    connect(connections, clock, *clients)
    assert [client.is_closed for client in clients] == [True, False, False, False]
    assert len(connections) == 3


def test_address_with_many_silent_connections_gives_way_first(connections, clock):
    other, *crowd = clients = [Client("192.0.2.9"), Client(), Client(), Client("192.0.2.3")]
    connect(connections, clock, *clients)
    assert not other.is_closed
    assert [client.is_closed for client in crowd] == [True, False, False]


def test_new_connection_does_not_give_way_before_its_request_can_have_arrived(connections):
    for number in range(3):
        assert connections.make_room()
        connections.add(Client(f"192.0.2.{number}"))
    assert not connections.make_room()


def test_connection_with_a_request_that_was_not_read_yet_does_not_give_way(connections, clock):
    asking, silent = Client("192.0.2.1", has_unread=True), Client("192.0.2.2")
    connect(connections, clock, asking, silent, Client("192.0.2.3"))
    assert connections.make_room()
    assert (asking.is_closed, silent.is_closed) == (False, True)


def test_calls_never_give_way(connections, clock):
    connect(connections, clock, *(Client() for _ in range(6)), activity=Activity.CALL)
    assert not connections.make_room()


def test_unread_answers_give_way_then_idle_strangers_then_idle_users(connections, clock):
    order = [Activity.STALLED, Activity.IDLE_ANONYMOUS, Activity.IDLE]
    clients = {activity: Client() for activity in reversed(order)}
    for activity, client in clients.items():
        connect(connections, clock, client, activity=activity)
    connect(connections, clock, *(Client() for _ in range(3)), activity=Activity.CALL)
    for activity in order:
        assert not clients[activity].is_closed
        assert connections.make_room()
        assert clients[activity].is_closed
        connect(connections, clock, Client(), activity=Activity.CALL)


@pytest.mark.parametrize(
    ("activity", "longest_s"),
    [(Activity.WAITING, REQUEST_S), (Activity.IDLE, KEEP_ALIVE_S), (Activity.IDLE_ANONYMOUS, KEEP_ALIVE_S)],
)
def test_connection_is_closed_when_its_time_is_over(connections, clock, activity, longest_s):
    client = Client()
    connections.add(client)
    connections.move(client, activity)
    clock.now_s += longest_s - 0.1
    connections.close_overdue()
    assert not client.is_closed
    clock.now_s += 0.1
    connections.close_overdue()
    assert client.is_closed
    assert len(connections) == 0


def test_call_may_last_as_long_as_it_likes(connections, clock):
    client = Client()
    connect(connections, clock, client, activity=Activity.CALL)
    clock.now_s += 1e6
    connections.close_overdue()
    assert not client.is_closed


def test_whoever_waits_for_room_is_told_once(connections, clock):
    told = []
    connect(connections, clock, *(client := [Client(), Client()]), activity=Activity.CALL)
    connections.when_room = lambda: told.append("room")
    connections.remove(client[0])
    connections.remove(client[1])
    assert told == ["room"]


def test_connections_that_give_way_are_one_line_of_the_log_in_a_minute(connections, clock, caplog):
    for _ in range(50):
        assert connections.make_room()
        connections.add(Client())
        clock.now_s += 1
    assert len(caplog.records) == 1
    clock.now_s += 60
    assert connections.make_room()
    assert "46 more like this" in caplog.records[1].getMessage()


@pytest.mark.parametrize("limit", [64, 128, 256, 1024, 4096, 65_536])
def test_connections_leave_files_for_everything_else(limit):
    capacity = Capacity.of(limit)
    database = 2 * (capacity.threads + capacity.downloads)
    assert capacity.connections + database + 20 <= limit
    assert capacity.calls + capacity.waiting == capacity.connections
    assert capacity.anonymous_calls < capacity.user_calls < capacity.calls
    assert capacity.user_streams + capacity.task_streams < capacity.calls
