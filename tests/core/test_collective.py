"""Sums and gathered bytes of processes that share memory: real processes, and NumPy as the oracle."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras.errors import DetError
from det_keras.workers.collective import Collective, tree_sum
from det_keras.workers.exchange import Star
from det_keras.workers.inherited import ENDS_VARIABLE, SLOT_BYTES, Ends, SharedMemory

pytestmark = pytest.mark.process

FORK = multiprocessing.get_context("fork")


class Group:
    """Processes that run functions with a `Collective` each, and return what these return."""

    def __init__(self, counts):
        self._connections, self._processes = [], []
        listener = socket.create_server(("127.0.0.1", 0)) if len(counts) > 1 else None
        port = listener.getsockname()[1] if listener else 0
        memories = [
            SharedMemory(count, listener=None if node else listener, port=port)
            for node, count in enumerate(counts)
        ]
        for node, count in enumerate(counts):
            for place in range(count):
                ours, theirs = FORK.Pipe()
                arguments = (theirs, memories[node].ends(place), place, count, node, len(counts))
                process = FORK.Process(target=serve, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._connections.append(ours)
                self._processes.append(process)
        for memory in memories:
            memory.close()

    def run(self, function, arguments):
        """Call `function` in each process with its own one of `arguments`; return the results."""
        for connection, own in zip(self._connections, arguments, strict=True):
            connection.send((function, own))
        for connection in self._connections:
            assert connection.poll(60), "no answer"
        return [connection.recv() for connection in self._connections]

    def close(self):
        for process in self._processes:
            process.kill()
            process.join()


def serve(connection, ends, place, count, node, nodes):
    # As after an exec: a forked process has the ends of all others as well.
    own = {0, 1, 2, connection.fileno(), *ends.descriptors}
    for number in {int(one.name) for one in Path("/proc/self/fd").iterdir()} - own:
        with contextlib.suppress(OSError):
            os.close(number)
    machines = None
    if nodes > 1 and place == 0:
        listener = socket.socket(fileno=ends.listener) if ends.listener >= 0 else None
        machines = Star(node, nodes, "127.0.0.1", ends.port, b"key", listener=listener)
    collective = Collective(place, count, ends, is_single=nodes == 1, machines=machines)
    while True:
        function, argument = connection.recv()
        try:
            connection.send(function(collective, argument))
        except DetError as error:
            connection.send(error)


@functools.cache
def group(counts):
    """Return a group that the tests of this file share."""
    return Group(counts)


@pytest.fixture(scope="module", autouse=True)
def _end_groups():
    yield
    for counts in COUNTS:
        group(counts).close()


LENGTHS = [0, 1, 1000, SLOT_BYTES - 8, SLOT_BYTES - 7, 2 * SLOT_BYTES]
COUNTS = [(1,), (2,), (3,), (4,), (2, 2), (1, 2)]


def add(collective, arrays):
    return [collective.sum(array) for array in arrays]


def gather(collective, contents):
    return [collective.gather(content) for content in contents]


def same_bits(found, expected):
    return (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@settings(max_examples=15, deadline=None)
@given(
    shapes=st.lists(
        st.sampled_from([(), (0,), (1,), (7, 3), (64,), (40_000,), (SLOT_BYTES // 4 + 3,)]), max_size=4
    ),
    dtype=st.sampled_from(["float32", "float64", "float16", "int64", "int32", "bfloat16"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sum_has_the_bits_of_the_tree_on_every_process(counts, shapes, dtype, seed):
    draw = np.random.default_rng(seed)
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    size = sum(counts)
    given_arrays = [[(draw.normal(size=shape) * 100).astype(dtype) for shape in shapes] for _ in range(size)]
    found = group(counts).run(add, given_arrays)
    for index in range(len(shapes)):
        arrays = iter([arrays[index] for arrays in given_arrays])
        # The processes of a machine first.
        machines = [tree_sum([next(arrays) for _ in range(count)], np.add) for count in counts]
        expected = np.asarray(tree_sum(machines, np.add), dtype)
        for sums in found:
            assert same_bits(sums[index], expected)


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.sampled_from(LENGTHS), min_size=4, max_size=4),
    calls=st.integers(1, 2),
)
def test_gathered_bytes_are_those_of_every_process_in_order(counts, lengths, calls):
    size = sum(counts)
    contents = [
        [bytes([65 + rank]) * lengths[(rank + call) % 4] for call in range(calls)] for rank in range(size)
    ]
    for found in group(counts).run(gather, contents):
        for call in range(calls):
            assert found[call] == [contents[rank][call] for rank in range(size)]


def test_tree_of_twice_as_many_halves_is_the_same():
    """Why a sum over parts does not depend on how many processes have them."""
    parts = list(np.random.default_rng(1).normal(size=(8, 1000)).astype(np.float32))
    whole = tree_sum(parts, np.add)
    for workers in (1, 2, 4, 8):
        each = 8 // workers
        sums = [tree_sum(parts[rank * each : (rank + 1) * each], np.add) for rank in range(workers)]
        assert same_bits(tree_sum(sums, np.add), whole)


def dawdle(collective, seed):
    """Make many short calls, with pauses; return what was wrong."""
    draw = random.Random(seed)
    for call in range(300):
        if draw.random() < 0.1:
            time.sleep(draw.random() / 200)
        total = collective.sum(np.full(3, call + seed, np.int64))
        if not (total == 4 * call + 6).all():
            return f"call {call}: {total}"
        if call % 7 == 0 and collective.gather(b"%d" % seed) != [b"0", b"1", b"2", b"3"]:
            return f"gather {call}"
    return None


@pytest.mark.parametrize("counts", [(4,), (2, 2)], ids=str)
def test_processes_of_different_speed_do_not_overtake_each_other(counts):
    assert group(counts).run(dawdle, [0, 1, 2, 3]) == [None] * 4


def call_by_name(collective, name):
    try:
        return collective.sum(np.ones(3, np.float32), name)
    except DetError as error:
        return str(error)


def test_different_calls_are_told_on_every_process():
    own = Group((3,))
    first, second, third = own.run(call_by_name, ["weights", "weights", "logs"])
    own.close()
    for told in (first, second, third):
        assert "The workers make different calls" in told
        assert "'weights float32 3'" in told
        assert "'logs float32 3'" in told


def call_by_size(collective, size):
    try:
        return collective.sum(np.ones(size, np.float32), "weights")
    except DetError as error:
        return str(error)


def test_arrays_of_different_sizes_are_told():
    own = Group((2,))
    told = own.run(call_by_size, [3, 4])
    own.close()
    assert all("'weights float32 3'" in one and "'weights float32 4'" in one for one in told)


def stop_or_add(collective, call):
    """Make calls, and end this process after so many."""
    for number in range(5):
        if number == call:
            os._exit(0)
        collective.sum(np.ones(3, np.float32))


@pytest.mark.parametrize("call", [0, 3])
def test_process_that_ends_is_named_by_all_that_wait_for_it(call):
    own = Group((4,))
    for place, connection in enumerate(own._connections):
        connection.send((stop_or_add, call if place == 2 else -1))
    for place, connection in enumerate(own._connections):
        if place != 2:
            assert connection.poll(30), "it waits"
            assert "The worker of local rank 2 ended" in str(connection.recv())
    own.close()


def end_after(collective, pause):
    """Make one call, and end at once."""
    time.sleep(pause)
    total = collective.sum(np.ones(100_000, np.float32))
    os._exit(int(total[0]))


def test_process_that_ends_after_its_last_call_is_no_fault():
    for _ in range(10):
        own = Group((4,))
        for place, connection in enumerate(own._connections):
            connection.send((end_after, place / 100))
        for process in own._processes:
            process.join(30)
        codes = [process.exitcode for process in own._processes]
        own.close()
        assert codes == [4] * 4


def fork_and_end(collective, _):
    """Leave a child behind that has what this process had open."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    os._exit(0)


def test_child_of_a_process_does_not_hide_its_end():
    own = Group((2,))
    own._connections[1].send((fork_and_end, None))
    own._connections[0].send((add, [np.ones(3)]))
    assert own._connections[0].poll(30), "it waits"
    # Of its inbox or of the other's, whichever is noticed first.
    assert re.search(r"worker.* ended", str(own._connections[0].recv()))
    own.close()


def test_process_that_waits_uses_no_processor():
    own = Group((2,))
    pid = own._processes[0].pid
    started = threading.Event()

    def wait():
        started.set()
        own._connections[0].send((add, [np.ones(1)]))

    threading.Thread(target=wait).start()
    started.wait()
    time.sleep(0.5)
    used = psutil.Process(pid).cpu_times()
    own.close()
    assert used.user + used.system < 0.3


def test_memory_that_was_not_inherited_is_refused(tmp_path):
    memory = SharedMemory(1)
    text = Ends.to_text([memory.ends(0)])
    code = (
        "import os\nfrom det_keras.workers.collective import Collective\nfrom det_keras.workers.inherited import Ends\n"
        f"file = os.open({str(tmp_path / 'other')!r}, os.O_CREAT)\n"
        f"os.dup2(file, {memory.ends(0).memory})\n"
        f"Collective(0, 1, Ends.from_text(os.environ[{ENDS_VARIABLE!r}])[0])"
    )
    environment = {**os.environ, ENDS_VARIABLE: text}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    memory.close()
    assert "was not started by the launcher" in done.stderr


def test_ends_survive_their_text():
    ends = Ends(3, (1, 2), 4, (-1, 5), 6, 7)
    assert Ends.from_text(Ends.to_text([ends, ends])) == [ends, ends]
    assert dataclasses.replace(ends, listener=-1).descriptors == (3, 4, 5)
    with pytest.raises(ValueError, match="does not describe"):
        Ends.from_text("[{}]")
