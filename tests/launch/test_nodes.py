"""The launcher over several nodes: two containers on one machine, with loopback addresses of their own."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest
import warm
from amount import AMOUNT
from warm.program import READ_EARLY

from det_keras.cluster_info import ClusterInfo
from det_keras.launch.meeting import derive_key, meeting_ports
from det_keras.launch.network import host_name_problem
from det_keras.launch.placement import Placement
from det_keras.workers.channel import Channel, present

from . import waiting
from .waiting import is_dead

pytestmark = pytest.mark.process

HAS_HOROVOD = importlib.util.find_spec("horovod") is not None
needs_horovod = pytest.mark.skipif(not HAS_HOROVOD, reason="Horovod is not installed: the extra `horovod`")
SCENARIOS = Path(__file__).parents[1] / "distributed" / "scenarios.py"
ADDRESSES = ["127.0.0.2", "127.0.0.3"]
# A container has its info files at a fixed place; these two share a file system.
CONTAINER = """
import os, sys
from pathlib import Path
from det_keras import cluster_info
usual = cluster_info.INFO_DIRECTORY
cluster_info.INFO_DIRECTORY = Path(sys.argv[1])
def forget():
    cluster_info.INFO_DIRECTORY = usual
    cluster_info.get_cluster_info.cache_clear()
# Ranks look at the usual place, where nothing is: also those that are forks of this process.
os.register_at_fork(after_in_child=forget)
from det_keras.launch import rank_group
# Most of these ranks only sleep: they would use all of the time in which they may end by themselves.
rank_group._GRACE_S = 0.5
from det_keras.launch.distributed import main
sys.exit(main(sys.argv[2:]))
"""
only_in_long_mode = pytest.mark.skipif(AMOUNT != "all", reason="in the long mode")
RANK = "import os, time; rank = int(os.environ['HOROVOD_RANK']); "
eventually = functools.partial(waiting.eventually, timeout_s=60.0)


class Allocation:
    """Containers of one allocation, and what their launchers print.

    Args:
        root: a directory of its own.
        environment: variables of the containers.
        slots: how many each container has.
        is_warm: launchers and ranks are forks of a process that has imported TensorFlow, which ranks need.
    """

    def __init__(
        self, root: Path, environment: dict[str, str], slots: tuple[int, ...], *, is_warm: bool
    ) -> None:
        self.root, self._environment, self.slots = root, environment, slots
        self.id = f"1.{uuid.uuid4()}.1"
        # Ranks that only sleep are new interpreters: those start as fast, and need no process to be forked from.
        self._start = (
            functools.partial(warm.Popen, is_launcher=True)
            if is_warm
            else functools.partial(subprocess.Popen, start_new_session=True)
        )
        self.launchers: dict[int, subprocess.Popen[bytes] | warm.Popen] = {}

    @property
    def info(self) -> ClusterInfo:
        return ClusterInfo("http://m", "", "", (), "", self.id, "secret", "TRIAL")

    @property
    def ports(self) -> list[int]:
        return meeting_ports(self.id)

    def start(self, node: int, *arguments: str, code: str = "", **changes) -> None:
        """Start a container; `changes` replace keys of its rendezvous.json."""
        directory = self.root / f"info-{node}"
        directory.mkdir()
        cluster = {"master_url": "http://127.0.0.1:1", "cluster_id": "c", "agent_id": f"agent{node}",
                   "slot_ids": list(range(self.slots[node])), "task_id": "1.t", "allocation_id": self.id,
                   "session_token": "secret", "task_type": "TRIAL"}  # fmt: skip
        meeting = {"container_addrs": ADDRESSES, "container_rank": node, "container_slot_counts": self.slots}
        (directory / "cluster.json").write_text(json.dumps(cluster))
        (directory / "rendezvous.json").write_text(json.dumps({**meeting, **changes}))
        command = ["--", sys.executable, "-c", code] if code else []
        with (self.root / f"{node}.out").open("wb") as out, (self.root / f"{node}.err").open("wb") as err:
            self.launchers[node] = self._start(
                [sys.executable, "-c", CONTAINER, str(directory), *arguments, *command],
                env=self._environment, stdout=out, stderr=err,
            )  # fmt: skip

    def start_all(self, *arguments: str, code: str = "") -> None:
        for node in range(len(self.slots)):
            self.start(node, *arguments, code=code)

    def out(self, node: int) -> list[str]:
        return (self.root / f"{node}.out").read_text().splitlines()

    def err(self, node: int) -> str:
        return (self.root / f"{node}.err").read_text()

    def finish(self, timeout_s: float = 60.0) -> list[int]:
        return [launcher.wait(timeout_s) for _, launcher in sorted(self.launchers.items())]

    def pids(self) -> dict[int, int]:
        """Wait until all ranks have printed their pid; return it by rank."""
        eventually(lambda: sum(len(self.out(node)) for node in self.launchers) >= sum(self.slots))
        lines = [line for node in self.launchers for line in self.out(node)]
        return {int(line[6 : line.index("]")]): int(line.split()[-1]) for line in lines}


@pytest.fixture
def allocate(tmp_path):
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    ours = ("DET_", "HOROVOD_", "OMP_", "TF_NUM", "PYTHON", "INTER_TRAIN")
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(ours) or name in READ_EARLY
    }
    inherited |= {"DET_KERAS_HOME": os.environ["DET_KERAS_HOME"], "DET_SESSION_TOKEN": "secret"}
    started = []

    def make(slots: tuple[int, ...] = (2, 2), *, is_warm: bool = False, **variables: str) -> Allocation:
        environment = {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}
        environment["DET_KERAS_ENGINE"] = "builtin"
        started.append(Allocation(tmp_path, environment, slots, is_warm=is_warm))
        return started[-1]

    yield make
    for allocation in started:
        for launcher in allocation.launchers.values():
            launcher.kill()
            launcher.wait()


@pytest.fixture
def pair(allocate):
    """An allocation of two nodes with two slots each."""
    return allocate()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((2, 2), [[(0, 0, 0, 2), (1, 1, 0, 2)], [(2, 0, 1, 2), (3, 1, 1, 2)]]),
        ((1, 2, 1), [[(0, 0, 0, 3)], [(1, 0, 1, 3), (2, 1, 0, 1)], [(3, 0, 2, 3)]]),
    ],
)
def test_ranks_are_numbered_node_by_node(counts, expected):
    addresses = tuple(f"10.0.0.{node}" for node in range(len(counts)))
    placements = [Placement(counts, addresses, node) for node in range(len(counts))]
    found = [
        [(one.rank, one.local_rank, one.cross_rank, one.cross_size) for one in placement.workers()]
        for placement in placements
    ]
    assert found == expected
    assert {one.size for placement in placements for one in placement.workers()} == {sum(counts)}


def test_each_container_starts_its_own_ranks_of_one_job(allocate):
    pair = allocate((1, 2))
    pair.start_all(code="import json, os; print(json.dumps(dict(os.environ)))")
    assert pair.finish() == [0, 0]
    found = {}
    for node in (0, 1):
        for line in pair.out(node):
            mark, _, text = line.partition(" ")
            found[mark] = json.loads(text)
            assert found[mark]["HOROVOD_HOSTNAME"] == f"node-{node}"
    assert sorted(found) == ["[rank=0]", "[rank=1]", "[rank=2]"]
    assert {(one["HOROVOD_SIZE"], one["DET_CHIEF_IP"]) for one in found.values()} == {("3", "127.0.0.2")}
    # The same for all, and not the secret from which it comes.
    assert len({one["DET_CHIEF_KEY"] for one in found.values()} - {"secret"}) == 1
    assert len({one["INTER_TRAIN_PROCESS_COMM_PORT_1"] for one in found.values()}) == 1


with_horovod = [
    needs_horovod,
    pytest.mark.skipif(
        host_name_problem(socket.gethostname(), Placement((2,))) is not None,
        reason="Horovod listens where the host name leads",
    ),
]


# Over Horovod, what its ranks on two nodes exchange is tested below, and trainings in tests/distributed.
@pytest.mark.parametrize(
    "engine", ["builtin", pytest.param("horovod", marks=[*with_horovod, only_in_long_mode])]
)
def test_two_nodes_train_the_weights_of_one_node_bit_for_bit(engine, allocate, tmp_path):
    # The builtin engine adds on each node first, and then over nodes; Horovod does not tell nodes apart.
    # The number of threads decides the order of TensorFlow's sums.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
    pair = allocate((2, 2) if engine == "builtin" else (1, 1), is_warm=True, **threads)
    script = [sys.executable, str(SCENARIOS)]
    pair.start_all("--engine", engine, "--", *script, str(tmp_path / "two"), "arrays_sgd", "embedding")
    assert pair.finish(180) == [0, 0], pair.err(0) + pair.err(1)
    launcher = [sys.executable, "-m", "det_keras.launch.distributed", "--np", str(sum(pair.slots))]
    one = [*launcher, "--engine", engine, "--", *script]
    done = warm.run(
        [*one, str(tmp_path / "one"), "arrays_sgd", "embedding"],
        env={**os.environ, **threads},
        timeout=180,
        check=False,
    )
    assert done.returncode == 0
    for scenario in ("arrays_sgd", "embedding"):
        weights = [np.load(tmp_path / name / scenario / "variables.npz") for name in ("two", "one")]
        assert weights[0].files == weights[1].files
        for name in weights[0].files:
            np.testing.assert_array_equal(weights[0][name], weights[1][name])


IN_A_TREE = """
import os
import numpy as np
import tensorflow as tf
from det_keras.cluster_info import WorkerInfo
from det_keras.workers.collective import tree_sum
from det_keras.keras.distributed.exchange import EngineExchange, sum_over_parts
worker = WorkerInfo.from_environment(os.environ)
EngineExchange(worker)
parts = [np.random.default_rng(rank).normal(size=1000).astype('float32') for rank in range(4)]
(total,) = sum_over_parts([[tf.constant(parts[worker.rank])]], name='tree')
print('same', np.array_equal(total, tree_sum(parts, np.add)))
"""


@pytest.mark.parametrize("slots", [pytest.param((2, 2), marks=only_in_long_mode), (1, 3)], ids=str)
def test_sum_of_parts_has_the_same_bits_however_ranks_are_divided_between_nodes(slots, allocate):
    pair = allocate(slots, is_warm=True)
    pair.start_all("--engine", "builtin", code=IN_A_TREE)
    assert pair.finish(120) == [0, 0], pair.err(0) + pair.err(1)
    assert sorted(pair.out(0) + pair.out(1)) == [f"[rank={rank}] same True" for rank in range(4)]


IN_AN_EXCHANGE = """
import os
from det_keras.cluster_info import WorkerInfo
from det_keras.keras.distributed.exchange import EngineExchange
worker = WorkerInfo.from_environment(os.environ)
exchange = EngineExchange(worker)
print('gathered', exchange.allgather(worker.rank), exchange.allgather(worker.rank, local=True))
worker.rank == 3 and os.kill(os.getpid(), 9)
exchange.allgather(1)
"""


@pytest.mark.parametrize("engine", ["builtin", pytest.param("horovod", marks=with_horovod)])
def test_rank_that_is_killed_in_an_exchange_ends_all_nodes_and_is_named(engine, allocate):
    pair = allocate(is_warm=True)
    pair.start_all("--engine", engine, code=IN_AN_EXCHANGE)
    assert pair.finish(120) == [137, 137], pair.err(0) + pair.err(1)
    assert "[rank=0] gathered [0, 1, 2, 3] [0, 1]" in pair.out(0)
    assert "[rank=3] gathered [0, 1, 2, 3] [2, 3]" in pair.out(1)
    for node in (0, 1):
        assert "Rank 3 on node 1 (127.0.0.3) was ended by SIGKILL. Ending" in pair.err(node)


SLEEPS = RANK + "print(os.getpid(), flush=True); time.sleep(600)"


@pytest.mark.parametrize("victim", [1, 3], ids=["on the chief's node", "on the other"])
def test_rank_that_dies_ends_the_ranks_of_all_nodes(pair, victim):
    pair.start_all(code=SLEEPS)
    pids = pair.pids()
    os.kill(pids[victim], signal.SIGKILL)
    assert pair.finish() == [137, 137]
    node = victim // 2
    for err in (pair.err(0), pair.err(1)):
        assert f"Rank {victim} on node {node} ({ADDRESSES[node]}) was ended by SIGKILL. Ending" in err
    eventually(lambda: all(map(is_dead, pids.values())))


def test_exit_code_of_all_launchers_is_that_of_the_rank_that_failed_last_of_all(pair):
    """The ranks of the chief's node have long ended by then."""
    code = RANK + "time.sleep(1.5 if rank == 2 else 0); raise SystemExit(7 if rank == 2 else 0)"
    pair.start_all(code=code)
    assert pair.finish() == [7, 7]
    assert "Rank 2 on node 1 (127.0.0.3) exited with code 7, after the ranks of this node" in pair.err(0)


def test_rank_that_is_stopped_ends_all_nodes(pair):
    pair.start_all("--hang-timeout-seconds", "1.2", code=SLEEPS)
    pids = pair.pids()
    os.kill(pids[2], signal.SIGSTOP)
    assert pair.finish() == [137, 137]
    for err in (pair.err(0), pair.err(1)):
        assert "Rank 2 on node 1 (127.0.0.3) has shown no sign of life for 1.2 s" in err
    eventually(lambda: all(map(is_dead, pids.values())))


@pytest.mark.parametrize("victim", [0, 1])
def test_launcher_that_is_killed_ends_the_other_nodes(pair, victim):
    pair.start_all(code=SLEEPS)
    pids = pair.pids()
    pair.launchers[victim].kill()
    assert pair.finish() == ([-9, 1] if victim == 0 else [1, -9])
    where = f"node {victim} ({ADDRESSES[victim]})"
    assert f"The connection to the launcher of {where} was lost" in pair.err(1 - victim)
    eventually(lambda: all(map(is_dead, pids.values())))


def connect(pair):
    """Connect to the chief's launcher once it listens."""

    def attempt():
        try:
            return socket.create_connection(("127.0.0.2", pair.ports[0]), timeout=10)
        except ConnectionRefusedError:
            return None

    return eventually(attempt)


def test_stranger_is_refused_and_delays_no_start(pair):
    pair.start(0, code=RANK + "print(rank)")
    with connect(pair), connect(pair) as loud, connect(pair) as lying, connect(pair) as early:
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n")
        hello = {"node": 1, "counts": [2, 2], "addresses": ADDRESSES, "purpose": "events"}
        with pytest.raises(OSError, match="closed the connection"):
            present(Channel(lying, 30), b"guessed", hello, 10)
        key = derive_key(pair.info, "launchers").encode()
        with pytest.raises(OSError, match="closed the connection"):
            present(Channel(early, 30), key + b"of an earlier allocation", hello, 10)
        # A first one says nothing, and is still connected.
        pair.start(1, code=RANK + "print(rank)")
        assert pair.finish() == [0, 0]
    assert pair.err(0).count("it does not know the key of this job") == 2
    assert "the other end sent no message of a job" in pair.err(0)
    assert sorted(pair.out(0) + pair.out(1)) == [f"[rank={rank}] {rank}" for rank in range(4)]


def test_launchers_listen_on_their_own_addresses_only_and_not_at_all_once_connected(pair):
    pair.start(0, code=SLEEPS)
    connect(pair).close()

    def listening():
        launchers = [psutil.Process(one.pid) for one in pair.launchers.values()]
        # The ranks of these scripts never use the socket that the first of them inherited for its engine.
        ranks = set(pair.pids().values()) if len(pair.launchers) == 2 else set()
        processes = [
            one
            for launcher in launchers
            for one in (launcher, *launcher.children(recursive=True))
            if one.pid not in ranks
        ]
        every = [one for process in processes for one in process.net_connections("inet")]
        return {one.laddr.ip for one in every if one.status == psutil.CONN_LISTEN}

    assert listening() == {"127.0.0.2"}
    pair.start(1, code=SLEEPS)
    pair.pids()
    assert listening() == set()


def test_program_that_takes_the_port_is_passed_over(pair):
    with socket.create_server(("127.0.0.2", pair.ports[0])):
        pair.start_all(code=RANK + "print(rank)")
        # The program does not answer, which costs the other launcher its patience with it.
        assert pair.finish() == [0, 0]


def test_missing_launcher_is_named_after_the_time_limit(allocate, tmp_path):
    alone = allocate()
    alone.start(0, "--node-timeout-seconds", "1", code="pass")
    assert alone.finish() == [1]
    assert "Waiting at 127.0.0.2:" in alone.err(0)
    assert "The launchers of node 1 (127.0.0.3) did not connect to 127.0.0.2:" in alone.err(0)
    assert "Traceback" not in alone.err(0)


def test_missing_chief_is_named_after_the_time_limit(pair):
    pair.start(1, "--node-timeout-seconds", "2", code="pass")
    assert pair.finish() == [1]
    assert "Waiting for the launcher of node 0 (127.0.0.2)" in pair.err(1)
    assert "The launcher of node 0 (127.0.0.2), where the chief runs, was not found within 2 s" in pair.err(1)
    assert "Traceback" not in pair.err(1)


def test_node_with_another_rendezvous_file_is_refused(pair):
    limit = ("--node-timeout-seconds", "2")
    pair.start(0, *limit, code="pass")
    pair.start(1, *limit, code="pass", container_slot_counts=[2, 3])
    assert pair.finish() == [1, 1]
    assert "its rendezvous.json has other nodes or slots" in pair.err(0)


def test_address_of_another_machine_is_named(pair):
    pair.start(0, code="pass", container_addrs=["192.0.2.1", "192.0.2.2"])
    assert pair.finish() == [1]
    assert "cannot listen on 192.0.2.1, the address of this node in rendezvous.json" in pair.err(0)


def test_number_of_ranks_other_than_the_slots_is_refused(pair):
    pair.start(0, "--np", "3", code="pass")
    assert pair.finish() == [1]
    assert "--np 3 cannot be obeyed on an allocation of several nodes with 4 slots" in pair.err(0)


@pytest.mark.parametrize(("own", "found", "problem"), [
    ("10.0.0.5", "127.0.1.1", "`10.0.0.5 box`"),
    ("10.0.0.5", "10.0.0.5", None),
])  # fmt: skip
def test_host_name_that_other_nodes_cannot_reach_is_told(own, found, problem, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (found, 0))])
    told = host_name_problem("box", Placement((1, 1), (own, "10.0.0.6")))
    assert told is None if problem is None else "other nodes cannot reach it" in told and problem in told
