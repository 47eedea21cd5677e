"""The launcher of many ranks. Its ranks are mostly plain Python: only the last tests need Horovod itself."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import warm
from amount import AMOUNT
from warm.program import READ_EARLY

from det_keras.launch.distributed import INSTALL_COMMAND, rank_environments
from det_keras.launch.network import host_name_problem
from det_keras.launch.placement import Placement

from . import waiting
from .waiting import is_dead

pytestmark = pytest.mark.process

HAS_HOROVOD = importlib.util.find_spec("horovod") is not None
needs_horovod = pytest.mark.skipif(not HAS_HOROVOD, reason="Horovod is not installed: the extra `horovod`")

MODULE = "det_keras.launch.distributed"
RANK = "import os; rank = int(os.environ['HOROVOD_RANK']); "
IN_A_JOB = {
    "DET_TASK_TYPE": "GENERIC",
    "DET_MASTER": "http://127.0.0.1:8080",
    "DET_TASK_ID": "one",
    "DET_ALLOCATION_ID": "one.1",
    "DET_SESSION_TOKEN": "secret",
}


# Ranks take longer to start than a task.
eventually = functools.partial(waiting.eventually, timeout_s=20.0)


class Launched:
    """A launcher and what it printed.

    Args:
        root: a directory of its own.
        arguments: of the launcher.
        environment: its variables.
        is_warm: it and its ranks are forks of a process that has imported TensorFlow, which the ranks need.
    """

    def __init__(
        self, root: Path, arguments: list[str], environment: dict[str, str], *, is_warm: bool
    ) -> None:
        self._files = {name: root / name for name in ("stdout", "stderr")}
        start = warm.Popen if is_warm else functools.partial(subprocess.Popen, start_new_session=True)
        with self._files["stdout"].open("wb") as out, self._files["stderr"].open("wb") as err:
            command = [sys.executable, "-m", MODULE, *arguments]
            self.process = start(command, env=environment, stdout=out, stderr=err)

    @property
    def stdout(self) -> str:
        return self._files["stdout"].read_text()

    @property
    def stderr(self) -> str:
        return self._files["stderr"].read_text()

    def finish(self, timeout_s: float = 60.0) -> int:
        return self.process.wait(timeout_s)

    def numbers(self, count: int) -> list[int]:
        """Wait until that many lines are printed; return the number in each."""
        eventually(lambda: len(self.stdout.splitlines()) >= count)
        return [int(line.split()[-1]) for line in self.stdout.splitlines()]


@pytest.fixture
def environment():
    """An environment in which ranks use the builtin engine, whether or not Horovod is installed."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    ours = ("DET_", "HOROVOD_", "OMP_", "TF_NUM", "PYTHON")
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(ours) or name in READ_EARLY
    }
    chosen = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "DET_KERAS_ENGINE": "builtin"}
    return {**inherited, **chosen}


@pytest.fixture
def launch(tmp_path, environment):
    started = []

    def start(
        *arguments: str,
        code: str | None = None,
        variables: dict[str, str] | None = None,
        root: str = ".",
        is_warm: bool = False,
    ) -> Launched:
        command = [] if code is None else ["--", sys.executable, "-c", code]
        (tmp_path / root).mkdir(exist_ok=True)
        variables = {**environment, **(variables or {})}
        launched = Launched(tmp_path / root, [*arguments, *command], variables, is_warm=is_warm)
        started.append(launched.process)
        return launched

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_each_line_carries_its_rank_on_its_own_stream(launch):
    launched = launch(
        "--np", "2", code=RANK + "import sys; print('out', rank); sys.exit(print('err', file=sys.stderr))"
    )
    assert launched.finish() == 0
    assert sorted(launched.stdout.splitlines()) == ["[rank=0] out 0", "[rank=1] out 1"]
    assert sorted(launched.stderr.splitlines()) == ["[rank=0] err", "[rank=1] err"]


def test_a_line_is_seen_when_it_is_printed(launch):
    launched = launch("--np", "2", code=RANK + "import time; print('here'); time.sleep(60)")
    eventually(lambda: sorted(launched.stdout.splitlines()) == ["[rank=0] here", "[rank=1] here"])


def test_each_rank_knows_its_place_and_where_to_meet(launch):
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    launched = launch("--np", "2", code=code)
    assert launched.finish() == 0
    lines = sorted(launched.stdout.splitlines())
    first, second = (json.loads(line.split("] ", 1)[1]) for line in lines)
    assert (first["HOROVOD_RANK"], second["HOROVOD_RANK"]) == ("0", "1")
    assert (first["HOROVOD_LOCAL_RANK"], second["HOROVOD_LOCAL_RANK"]) == ("0", "1")
    for one in (first, second):
        assert (one["HOROVOD_SIZE"], one["HOROVOD_LOCAL_SIZE"], one["HOROVOD_CROSS_SIZE"]) == ("2", "2", "1")
        assert one["DET_CHIEF_IP"] == "127.0.0.1"
        assert one["DET_KERAS_ENGINE"] == "builtin"
        assert "HOROVOD_GLOO_RENDEZVOUS_PORT" not in one
    assert first["DET_CHIEF_KEY"] == second["DET_CHIEF_KEY"]
    assert len(first["DET_CHIEF_KEY"]) == 64


def test_ranks_share_the_cores_and_leave_what_the_user_chose():
    given = {"TF_NUM_INTRAOP_THREADS": "7", "HOROVOD_CYCLE_TIME": "3"}
    first = rank_environments(given, Placement((2,)), 1, cores=8, chief_key="key")[0]
    assert first["OMP_NUM_THREADS"] == first["TF_NUM_INTEROP_THREADS"] == "4"
    assert (first["TF_NUM_INTRAOP_THREADS"], first["HOROVOD_CYCLE_TIME"]) == ("7", "3")
    third = rank_environments({}, Placement((3,)), 1, cores=2, chief_key="key")[2]
    assert third["OMP_NUM_THREADS"] == "1"
    assert (third["HOROVOD_GLOO_RENDEZVOUS_ADDR"], third["HOROVOD_GLOO_RENDEZVOUS_PORT"]) == (
        "127.0.0.1",
        "1",
    )


def test_each_launch_has_a_key_of_its_own(launch):
    code = "import os; print(os.environ['DET_CHIEF_KEY'])"
    launches = [launch("--np", "2", code=code, root=name) for name in ("one", "other")]
    keys = set()
    for launched in launches:
        assert launched.finish() == 0
        keys |= {line.split()[-1] for line in launched.stdout.splitlines()}
    assert len(keys) == 2


def test_two_launches_at_once_exchange_objects_apart(launch):
    code = RANK + (
        "from det_keras.core import DistributedContext\n"
        "workers = DistributedContext(rank=rank, size=2, local_rank=rank, local_size=2)\n"
        "print(workers.allgather(rank))"
    )
    launches = [launch("--np", "2", code=code, root=name) for name in ("one", "other")]
    for launched in launches:
        assert launched.finish() == 0, launched.stderr
        assert sorted(launched.stdout.splitlines()) == ["[rank=0] [0, 1]", "[rank=1] [0, 1]"]


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        ([], {}),
        (["--np", "1"], {}),
        ([], {**IN_A_JOB, "DET_SLOT_IDS": "[]"}),
        ([], {**IN_A_JOB, "DET_SLOT_IDS": "[3]"}),
    ],
    ids=["alone", "one", "no slots", "one slot"],
)
def test_a_single_rank_is_the_command_itself(launch, arguments, variables):
    launched = launch(
        *arguments, code="import os; print(os.getpid(), 'HOROVOD_RANK' in os.environ)", variables=variables
    )
    assert launched.finish() == 0
    assert launched.stdout == f"{launched.process.pid} False\n"


def test_an_allocation_gets_a_rank_for_each_slot(launch):
    variables = {**IN_A_JOB, "DET_SLOT_IDS": "[0, 2, 5]"}
    launched = launch(code=RANK + "print(rank)", variables=variables)
    assert launched.finish() == 0
    assert sorted(launched.stdout.splitlines()) == [f"[rank={rank}] {rank}" for rank in range(3)]


@pytest.mark.parametrize("dashes", [[], ["--"]], ids=["option", "behind dashes"])
def test_a_trial_class_is_run_by_its_module(launch, dashes):
    # The package of that module refuses this at once, before it loads TensorFlow: so we see that it was asked.
    launched = launch("--np", "2", *dashes, "--trial", "some:Trial", variables={"KERAS_BACKEND": "none"})
    assert launched.finish() == 1
    assert "[rank=0] " in launched.stderr
    assert "det_keras trains with Keras on TensorFlow" in launched.stderr


@pytest.mark.parametrize(
    ("code", "expected", "ending"),
    [
        (RANK + "raise SystemExit(7 if rank == 1 else 0)", 7, "Rank 1 exited with code 7."),
        (RANK + "os.kill(os.getpid(), 9 if rank == 0 else 0)", 137, "Rank 0 was ended by SIGKILL."),
    ],
    ids=["exit code", "signal"],
)
def test_exit_code_is_that_of_the_rank_that_failed(launch, code, expected, ending):
    launched = launch("--np", "2", code=code)
    assert launched.finish() == expected
    assert ending.rstrip(".") in launched.stderr


def test_rank_that_rejects_its_hyperparameters_decides_even_if_another_fails_before_it(launch, tmp_path):
    # So does rank 0, which loses its connection to rank 1, while rank 1 reports to the master.
    code = (
        RANK
        + f"""
import time
if rank == 0:
    raise SystemExit(1)
while "Rank 0 exited with code 1" not in open({str(tmp_path / "stderr")!r}).read():
    time.sleep(0.01)
raise SystemExit(79)
"""
    )
    launched = launch("--np", "2", code=code)
    assert launched.finish() == 0
    assert "After that, rank 1 rejected these hyperparameters" in launched.stderr


def test_a_rank_that_dies_ends_the_others_and_what_they_started(launch):
    code = """
import os, subprocess, sys, time
if os.environ["HOROVOD_RANK"] == "0":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid)
print(os.getpid())
time.sleep(600)
"""
    launched = launch("--np", "2", code=code)
    pids = launched.numbers(3)
    victim = next(int(line.split()[-1]) for line in launched.stdout.splitlines() if "[rank=1]" in line)
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    assert launched.finish() == 137
    assert time.monotonic() - began < 10
    assert "Rank 1 was ended by SIGKILL. Ending the other 1 of 2 ranks." in launched.stderr
    eventually(lambda: all(map(is_dead, pids)))


HANGS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
BEATS = """
import os, signal, time
from det_keras.workers.heartbeat import beat_for_ever
rank = int(os.environ["HOROVOD_RANK"])
beat_for_ever(rank, os.environ)
"""


def test_a_rank_that_is_stopped_ends_all_and_is_named(launch):
    launched = launch("--np", "2", "--hang-timeout-seconds", "0.6", code=HANGS)
    pids = launched.numbers(2)
    stopped = next(int(line.split()[-1]) for line in launched.stdout.splitlines() if "[rank=1]" in line)
    os.kill(stopped, signal.SIGSTOP)
    assert launched.finish() == 137
    assert "Rank 1 has shown no sign of life for 0.6 s" in launched.stderr
    eventually(lambda: all(map(is_dead, pids)))


def test_a_rank_whose_heartbeat_stops_is_named_also_from_inside_a_shell(launch):
    """The process that was started for the rank is not the one that trains: only the heartbeat tells."""
    code = BEATS + "rank and os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)"
    command = ["sh", "-c", f"{sys.executable} -c '{code}'; true"]
    launched = launch("--np", "2", "--hang-timeout-seconds", "2", "--", *command)
    assert launched.finish() == 137
    assert "Rank 1 has shown no sign of life for 2 s" in launched.stderr


def test_a_rank_that_waits_does_not_hang_as_long_as_its_heart_beats(launch):
    assert launch("--np", "2", "--hang-timeout-seconds", "1.5", code=BEATS + "time.sleep(4)").finish() == 0


def test_a_rank_that_works_without_a_heartbeat_does_not_hang(launch):
    # The only thread that ever gets to run: no other may take its turn. One rank that works is enough.
    code = (
        BEATS
        + "import sys; sys.setswitchinterval(100)\n"
        + "end = time.monotonic() + 3\nwhile rank == 0 and time.monotonic() < end: pass"
    )
    assert launch("--np", "2", "--hang-timeout-seconds", "1.5", code=code).finish() == 0


def test_a_rank_that_sleeps_and_never_had_a_heartbeat_does_not_hang(launch):
    assert (
        launch("--np", "2", "--hang-timeout-seconds", "0.3", code="import time; time.sleep(1)").finish() == 0
    )


def test_the_last_words_of_a_rank_come_before_the_note_of_its_end(launch, tmp_path):
    code = (
        RANK
        + f"""
import time
if rank == 1:
    raise ValueError("why")
while "Rank 1 exited" not in open({str(tmp_path / "stderr")!r}).read():
    time.sleep(0.01)
"""
    )
    launched = launch("--np", "2", code=code)
    assert launched.finish() == 1
    lines = launched.stderr.splitlines()
    assert lines.index("[rank=1] ValueError: why") < next(
        i for i, line in enumerate(lines) if "Rank 1 exited" in line
    )


COUNTS_SIGNALS = """
import os, signal, time
counts = dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), 0)
def count(number, _):
    counts[number] += 1
for number in counts:
    signal.signal(number, count)
print("ready", os.getpid(), flush=True)
while not any(counts.values()):
    time.sleep(0.01)
time.sleep(0.5)   # a second one would come in this time
print(sum(counts.values()), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda one: one.name)
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["process", "group"])
def test_a_signal_reaches_each_rank_once_and_is_waited_for(launch, number, send):
    launched = launch("--np", "2", code=COUNTS_SIGNALS)
    launched.numbers(2)
    send(launched.process.pid, number)
    assert launched.finish() == 0
    assert sorted(launched.stdout.splitlines()[2:]) == ["[rank=0] 1", "[rank=1] 1"]
    assert "Rank" not in launched.stderr


@pytest.mark.kill
@pytest.mark.parametrize("shell", [False, True], ids=["direct", "shell"])
def test_ranks_die_with_their_launcher(launch, shell):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    command = ["sh", "-c", f"{sys.executable} -c '{code}'; true"] if shell else [sys.executable, "-c", code]
    launched = launch("--np", "2", "--", *command)
    pids = launched.numbers(2)
    launched.process.kill()
    eventually(lambda: all(map(is_dead, pids)))


def test_output_that_nobody_reads_ends_no_rank(environment, tmp_path):
    done = tmp_path / "done"
    code = (
        RANK
        + f"import time; [print('x' * 99) for _ in range(9999)]; rank or open({str(done)!r}, 'w').close()"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", MODULE, "--np", "2", "--", sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
    )
    assert launcher.stdout is not None
    launcher.stdout.read(100)
    launcher.stdout.close()
    assert launcher.wait(60) == 0
    assert done.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--np", "0", "--", "true"], 2, "expected a number of processes, 1 or more. Received: '0'."),
        (["--np", "two", "--", "true"], 2, "Received: 'two'."),
        (["--hang-timeout-seconds", "0", "--", "true"], 2, "expected a number of seconds above 0."),
        (["--np", "2"], 2, "There is nothing to run."),
        (["--np", "2", "--"], 2, "There is nothing to run."),
        (["--trial", "a:B", "--", "true"], 2, "There is both --trial a:B and a command"),
        (["--no-such-option", "--", "true"], 2, "--no-such-option"),
        (["--np", "2", "--", "/no/such/program"], 127, "'/no/such/program' was not found"),
        (["--", "/no/such/program"], 127, "'/no/such/program' was not found"),
        (["--np", "2", "--", __file__], 126, f"needs its interpreter: `python3 {__file__}`"),
        (["--", __file__], 126, f"needs its interpreter: `python3 {__file__}`"),
    ],
)
def test_wrong_arguments_are_named(launch, arguments, code, message):
    launched = launch(*arguments)
    assert launched.finish() == code
    assert message in launched.stderr
    assert "Traceback" not in launched.stderr


def test_a_rank_starts_no_ranks(launch):
    launched = launch("--np", "2", code="pass", variables={"HOROVOD_RANK": "1"})
    assert launched.finish() == 2
    assert "already rank 1 of a job" in launched.stderr


def test_a_wrong_variable_of_the_cluster_is_named(launch):
    launched = launch(code="pass", variables={**IN_A_JOB, "DET_SLOT_IDS": "many"})
    assert launched.finish() == 1
    assert "`DET_SLOT_IDS` is 'many'" in launched.stderr


def test_options_of_horovodrun_become_variables(launch):
    code = RANK + "print(os.environ['HOROVOD_FUSION_THRESHOLD'], os.environ['HOROVOD_CYCLE_TIME'])"
    launched = launch("-np", "2", "--fusion-threshold-mb", "2", "--cycle-time-ms", "9", code=code)
    assert launched.finish() == 0
    assert "[rank=0] 2097152 9" in launched.stdout.splitlines()


WITHOUT_HOROVOD = f"""
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "horovod" else find(name, *rest)
from {MODULE} import main
sys.exit(main(sys.argv[1:]))
"""
ASKS_FOR_HOROVOD = '{"optimizations": {"collective_engine": "horovod"}}'
ENGINE = [sys.executable, "-c", "import os; print(os.environ['DET_KERAS_ENGINE'])"]


@pytest.mark.parametrize(
    ("options", "variables", "code", "told"),
    [
        ([], {}, 0, "[rank=1] builtin"),
        (["--engine", "auto"], {}, 0, "[rank=1] builtin"),
        (["--engine", "horovod"], {}, 1, "The engine `horovod` is not installed."),
        ([], {"DET_KERAS_ENGINE": '"horovod"'}, 1, INSTALL_COMMAND),
        (["--engine", "builtin"], {"DET_KERAS_ENGINE": "horovod"}, 0, "[rank=1] builtin"),
        ([], {"DET_KERAS_ENGINE": "fast"}, 1, "'fast'; expected one of auto, horovod, builtin."),
        (["--engine", "fast"], {}, 2, "invalid choice: 'fast'"),
        (
            [],
            {**IN_A_JOB, "DET_SLOT_IDS": "[0, 1]", "DET_TASK_CONFIG": ASKS_FOR_HOROVOD},
            1,
            "The engine `horovod` is not installed.",
        ),
    ],
)  # fmt: skip
def test_engine_is_chosen_without_horovod(options, variables, code, told, environment):
    chosen = {name: value for name, value in environment.items() if name != "DET_KERAS_ENGINE"} | variables
    count = [] if "DET_SLOT_IDS" in variables else ["--np", "2"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HOROVOD, *count, *options, "--", *ENGINE],
        env=chosen,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


ENDS_ALONE = """
import os
import numpy as np
from det_keras.workers.collective import Collective
from det_keras.workers.inherited import Ends
ends = Ends.from_text(os.environ["DET_KERAS_COLLECTIVE"])[0]
collective = Collective(rank, 3, ends)
collective.sum(np.ones(3))
if rank == 1:
    os._exit(0)
collective.sum(np.ones(3))
"""


def test_rank_that_exits_with_0_in_an_exchange_does_not_hold_the_others(launch):
    launched = launch("--np", "3", "--engine", "builtin", code=RANK + ENDS_ALONE)
    assert launched.finish(60) == 1
    assert "The worker of local rank 1 ended during an exchange" in launched.stderr


def test_builtin_engine_opens_no_port(launch):
    code = RANK + "import time; print(os.getpid(), flush=True); time.sleep(600)"
    launched = launch("--np", "2", code=code)
    pids = launched.numbers(2)
    for pid in (launched.process.pid, *pids):
        assert psutil.Process(pid).net_connections("inet") == []


ALLGATHER = """
import horovod.tensorflow as hvd
hvd.init()
print("gathered", hvd.allgather_object(hvd.rank() * 10), hvd.local_size(), hvd.cross_size())
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1"])
def test_a_host_name_that_stays_on_the_machine_is_no_problem(address, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (address, 0))])
    assert host_name_problem("box", Placement((2,))) is None


@pytest.mark.parametrize("address", ["10.0.0.5", "fe80::1%eth0"])
def test_a_host_name_that_leads_outside_is_told_with_what_to_do(address, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (address, 0))])
    problem = host_name_problem("box", Placement((2,)))
    assert f"resolves to {address}" in problem
    assert "`127.0.0.1 box`" in problem


def test_a_host_name_that_leads_nowhere_is_told(monkeypatch):
    def fail(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert "does not resolve" in host_name_problem("box", Placement((2,)))


@needs_horovod
@pytest.mark.skipif(
    host_name_problem(socket.gethostname(), Placement((2,))) is not None,
    reason="Horovod listens where the host name leads",
)
def test_ranks_meet_over_loopback_only(launch):
    code = (
        ALLGATHER
        + """
import psutil
listening = [c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"]
assert set(listening) <= {"127.0.0.1"}, listening
"""
    )
    launched = launch("--np", "2", "--engine", "horovod", code=code, is_warm=True)
    assert launched.finish(180) == 0, launched.stderr
    assert sorted(launched.stdout.splitlines()) == [
        f"[rank={rank}] gathered [0, 10] 2 1" for rank in range(2)
    ]


@needs_horovod
def test_a_rank_that_dies_in_an_exchange_is_the_one_that_is_named(launch):
    code = ALLGATHER + "import os; hvd.rank() and os.kill(os.getpid(), 9); hvd.allgather_object(1)"
    launched = launch("--np", "2", "--engine", "horovod", code=code, is_warm=True)
    assert launched.finish(180) == 137
    assert "Rank 1 was ended by SIGKILL" in launched.stderr


@needs_horovod
@pytest.mark.skipif(AMOUNT != "all", reason="in the long mode: tests/distributed starts one on two hosts")
def test_a_script_started_by_horovodrun_meets_as_well(environment):
    program = shutil.which("horovodrun", path=str(Path(sys.executable).parent))
    assert program is not None
    done = subprocess.run(
        [program, "-np", "2", sys.executable, "-c", ALLGATHER],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("gathered [0, 10] 2 1") == 2
