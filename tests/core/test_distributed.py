"""Objects between the ranks of a job: who gets what, and who may not join."""

from __future__ import annotations

import logging
import pickle
import socket
import stat
import threading
import time

import pytest
from ranks import on_ranks

from det_keras.cluster_info import WorkerInfo
from det_keras.core import DistributedContext
from det_keras.errors import ClusterInfoError, DetError
from det_keras.home import Home
from det_keras.launch.network import free_port
from det_keras.workers.exchange import SocketExchange, own_key


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_rank_gets_what_the_call_promises(size):
    def work(distributed):
        value = {"rank": distributed.rank}
        return (
            distributed.gather(value),
            distributed.allgather(value),
            distributed.broadcast(value),
            distributed.gather_local(value),
            distributed.allgather_local(value),
            distributed.broadcast_local(value),
        )

    everything = [{"rank": rank} for rank in range(size)]
    for rank, result in enumerate(on_ranks(size, work)):
        on_chief = everything if rank == 0 else None
        assert result == (on_chief, everything, {"rank": 0}, on_chief, everything, {"rank": 0})


def test_objects_of_a_megabyte_arrive_whole():
    def work(distributed):
        return distributed.allgather(bytes([distributed.rank]) * (1 << 20))

    assert all(result == [b"\0" * (1 << 20), b"\1" * (1 << 20)] for result in on_ranks(2, work))


def test_local_calls_stay_on_the_machine():
    """Two machines of two workers; each machine has its own calls, as often as it likes."""
    port, key, results = free_port("127.0.0.1"), b"k" * 32, {}
    local_ports = [free_port("127.0.0.1"), free_port("127.0.0.1")]

    def run(rank):
        cross_rank, local_rank = divmod(rank, 2)
        worker = WorkerInfo(rank, 4, local_rank, 2, cross_rank, 2)
        # Both "machines" are this one: the second's local port must not be the first's.
        exchange = SocketExchange.__new__(SocketExchange)
        from det_keras.workers.exchange import Star

        exchange._all = Star(rank, 4, "127.0.0.1", port, key, 30)
        exchange._local = Star(local_rank, 2, "127.0.0.1", local_ports[cross_rank], key, 30)
        context = DistributedContext.of(worker, exchange)
        calls = [context.allgather_local(rank) for _ in range(1 + cross_rank)]
        results[rank] = (calls[0], context.allgather(rank), context.broadcast_local(rank))
        context.close()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    everybody = [0, 1, 2, 3]
    assert results[0] == results[1] == ([0, 1], everybody, 0)
    assert results[2] == results[3] == ([2, 3], everybody, 2)


def test_worker_without_the_key_is_refused_and_nothing_of_it_is_unpickled(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("DET_CHIEF_KEY", "the key of this job")
    port, found, bomb = free_port("127.0.0.1"), [], tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (bomb.touch, ())

    def chief():
        with caplog.at_level(logging.WARNING):
            found.append(DistributedContext(rank=0, size=2, local_rank=0, local_size=2, pub_port=port))

    thread = threading.Thread(target=chief, daemon=True)
    thread.start()
    connected = None
    while connected is None:
        try:
            connected = socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.01)
    payload = pickle.dumps(Bomb())
    connected.sendall(len(payload).to_bytes(4, "big") + payload)
    silent = socket.create_connection(("127.0.0.1", port))
    worker = WorkerInfo(1, 2, 1, 2, 0, 1)
    with pytest.raises(DetError, match="does not know the key"):
        SocketExchange(worker, "127.0.0.1", port, b"another key", patience_s=10)
    right = SocketExchange(worker, "127.0.0.1", port, b"the key of this job", patience_s=10)
    thread.join(10)
    assert found, "strangers kept the job from starting"
    assert not bomb.exists()
    assert "does not know the key of this job" in caplog.text
    for one in (right, found[0], connected, silent):
        one.close()


def test_rank_that_leaves_is_an_error_for_the_others():
    def work(distributed):
        if distributed.rank == 1:
            return None
        return distributed.allgather(1)

    with pytest.raises(DetError, match="place 1 ended"):
        raise on_ranks(2, work)[0]


def test_port_in_use_is_an_error_that_names_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DetError, match=rf"127\.0\.0\.1:{port}.*port_offset"):
            DistributedContext(rank=0, size=2, local_rank=0, local_size=2, pub_port=port)


def test_several_machines_need_an_address_and_a_key(monkeypatch):
    place = {"rank": 0, "size": 2, "local_rank": 0, "local_size": 1, "cross_rank": 0, "cross_size": 2}
    with pytest.raises(ValueError, match="chief_ip"):
        DistributedContext(**place)
    with pytest.raises(ValueError, match="DET_CHIEF_KEY"):
        DistributedContext(**place, chief_ip="127.0.0.1")


def test_rank_outside_of_the_job_is_refused():
    with pytest.raises(ValueError, match=r"`rank` must be from 0 to 1\. Received: 2"):
        DistributedContext(rank=2, size=2)


def test_key_of_a_user_is_made_once_and_theirs_alone(tmp_path):
    home, keys = Home(tmp_path / "home"), []
    threads = [threading.Thread(target=lambda: keys.append(own_key(home))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(keys)) == 1
    assert len(keys[0]) == 64
    mode = (home.root / "exchange.key").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


class Noted(DistributedContext):
    """Writes down what it is made of instead of connecting."""

    def __init__(self, **given):
        self.given = given


PLACE = {"rank": 3, "size": 4, "local_rank": 1, "local_size": 2, "cross_rank": 5, "cross_size": 6}


class Hvd:
    """What Horovod's modules answer."""

    def __getattr__(self, name):
        return lambda: PLACE[name]


def test_context_from_a_horovod_module():
    assert Noted.from_horovod(Hvd(), "1.2.3.4").given == {**PLACE, "chief_ip": "1.2.3.4"}


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (
            Noted.from_torch_distributed,
            ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"],
        ),
        (
            Noted.from_deepspeed,
            ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"],
        ),
    ],
    ids=["torch", "deepspeed"],
)
def test_context_from_variables_of_other_launchers(monkeypatch, make, names):
    with pytest.raises(ClusterInfoError, match="RANK"):
        make()
    for name, value in zip(names, PLACE.values(), strict=True):
        monkeypatch.setenv(name, str(value))
    assert make().given == {**PLACE, "chief_ip": None}


def test_second_worker_of_one_rank_is_refused(caplog):
    port, key, found = free_port("127.0.0.1"), b"k", []
    chief = threading.Thread(
        target=lambda: found.append(SocketExchange(WorkerInfo(0, 3, 0, 3), "127.0.0.1", port, key)),
        daemon=True,
    )
    chief.start()
    with caplog.at_level(logging.WARNING):
        workers = [
            SocketExchange(WorkerInfo(rank, 3, rank, 3), "127.0.0.1", port, key, patience_s=10)
            for rank in (1, 1, 2)
        ]
        chief.join(10)
    assert found
    assert "An unexpected or second rank 1 of 3 was refused" in caplog.text
    for one in (*workers, *found):
        one.close()


def test_jobs_of_one_user_do_not_take_each_others_workers(monkeypatch):
    from det_keras.cluster_info import ChiefInfo

    jobs = {ChiefInfo.from_environment({"MASTER_PORT": str(port)}).job for port in (1, 2)}
    assert len(jobs) == 2
