"""Programs in forks of the server behave as in new interpreters."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import warm
from warm.program import READ_EARLY

pytestmark = pytest.mark.process

STARTERS = pytest.mark.parametrize("runner", [subprocess.run, warm.run], ids=["interpreter", "fork"])

STATE = """
import atexit, gc, json, logging, os, pickle, signal, sys, threading
class Thing: pass
main = sys.modules["__main__"]
found = {
    "argv": sys.argv, "first": sys.path[:2], "file": globals().get("__file__"), "name": __name__,
    "main": main.__dict__ is globals(), "type": pickle.loads(pickle.dumps(Thing)) is Thing,
    "original": sys.orig_argv[1:], "folder": os.getcwd(),
    "environment": dict(os.environ), "input": sys.stdin.read(),
    "descriptors": sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
                          and "urandom" not in os.readlink(f"/proc/self/fd/{name}")),
    "handlers": [str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "threads": [thread.name for thread in threading.enumerate()], "logging": logging.root.handlers,
    "buffered": [sys.stdout.line_buffering, sys.stdout.write_through, sys.stderr.line_buffering],
    "encodings": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors], "collects": gc.isenabled(),
}
print(json.dumps(found))
"""


@STARTERS
def test_process_ends_as_its_program_says(runner, tmp_path):
    code = """
import atexit, sys, threading, time
def late():
    time.sleep(0.2)
    print("thread")
atexit.register(print, "at exit")
threading.Thread(target=late).start()
print("main")
{}
"""
    expected = {
        "sys.exit(3)": (3, ""), "sys.exit('why')": (1, "why\n"), "sys.exit()": (0, ""), "sys.exit(257)": (1, ""),
        "pass": (0, ""), "1 / 0": (1, "ZeroDivisionError: division by zero\n"),
        "raise KeyboardInterrupt": (-2, "KeyboardInterrupt\n"),
        "sys.excepthook = lambda *args: print('hook', args[0].__name__, file=sys.stderr)\n1 / 0": (
            1, "hook ZeroDivisionError\n"
        ),
    }  # fmt: skip
    for end, (status, message) in expected.items():
        done = runner([sys.executable, "-c", code.format(end)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (status, "main\nthread\nat exit\n"), end
        assert done.stderr.endswith(message), end


@STARTERS
def test_process_ends_at_once_with_os_exit_or_a_signal(runner, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    code = "import atexit, os\natexit.register(print, 'at exit')\nprint('lost')\n"
    for end, status in {"os._exit(4)": 4, "os.abort()": -6, "os.kill(os.getpid(), 9)": -9}.items():
        done = runner([sys.executable, "-c", code + end], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (status, ""), end


@pytest.mark.parametrize("kind", ["script", "module", "code"])
@pytest.mark.parametrize("variables", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["", "unbuffered"])
def test_program_sees_what_it_would_see_in_an_interpreter(kind, variables, tmp_path, monkeypatch):
    (tmp_path / "state.py").write_text(STATE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    start = {"script": ["state.py"], "module": ["-m", "state"], "code": ["-c", STATE]}[kind]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": "elsewhere", "A": "b", **variables}
    kept = (*READ_EARLY, "TF_CPP_MIN_LOG_LEVEL", "HOME", "LANG")
    environment |= {name: os.environ[name] for name in kept if name in os.environ}
    found = [
        json.loads(
            runner(
                [sys.executable, *start, "--x", "é"],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                **options,
            ).stdout
        )
        for runner, options in ((subprocess.run, {"stdin": subprocess.DEVNULL}), (warm.run, {}))
    ]
    assert found[1] == found[0]


@STARTERS
def test_traceback_begins_with_the_programs_own_line(runner, tmp_path):
    (tmp_path / "script.py").write_text("def fail():\n    raise ValueError('no')\nfail()\n")
    done = runner([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, check=False)
    lines = done.stderr.splitlines()
    assert lines[:2] == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/script.py", line 3, in <module>',
    ]


def test_tensorflow_is_imported_and_not_used_and_random_numbers_differ():
    code = (
        "import sys, os, random, numpy\nassert 'tensorflow' in sys.modules\n"
        "from tensorflow.python.eager import context\nassert context.context()._context_handle is None\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
        "print(random.random(), numpy.random.random(), numpy.random.default_rng().random())"
    )
    printed = [
        warm.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout.split()
        for _ in range(2)
    ]
    assert all(first != second for first, second in zip(*printed, strict=True))


def test_program_that_needs_an_interpreter_of_its_own_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="Only a program of this interpreter"):
        warm.run(["sh", "-c", "true"])
    with pytest.raises(ValueError, match="Only a program of this interpreter"):
        warm.run([sys.executable, "-O", "-c", "pass"])
    with pytest.raises(ValueError, match="PYTHONHASHSEED is read"):
        warm.run([sys.executable, "-c", "pass"], env={**os.environ, "PYTHONHASHSEED": "1"})


def test_running_process_is_signalled_waited_for_and_read():
    code = "import time\nprint('started', flush=True)\ntime.sleep(60)\n"
    process = warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == "started\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.05)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.05)
    assert os.getpgid(process.pid) == process.pid
    process.terminate()
    assert process.wait(timeout=20) == process.poll() == -signal.SIGTERM
    process.kill()


def test_run_that_takes_too_long_is_killed(tmp_path):
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"
    with (tmp_path / "out").open("w") as out, pytest.raises(subprocess.TimeoutExpired):
        warm.run([sys.executable, "-c", code], stdout=out, stderr=subprocess.PIPE, timeout=3)
    assert not psutil.pid_exists(int((tmp_path / "out").read_text()))


def test_forks_end_with_the_process_of_the_tests(tmp_path):
    code = (
        "import os, sys, warm\n"
        "child = warm.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=False)
    deadline = time.monotonic() + 20
    while psutil.pid_exists(int(done.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


LAUNCHED = """
import json, os, sys
print("rank", os.environ["HOROVOD_RANK"], "tensorflow" in sys.modules, sys.argv[1:], os.getsid(0) == os.getpid())
print("a warning", file=sys.stderr)
if os.environ["HOROVOD_RANK"] == sys.argv[1]:
    sys.exit(7)
"""


@pytest.mark.parametrize("failing", [None, 1])
def test_ranks_of_a_launcher_are_forks_with_output_and_exit_codes(failing, tmp_path):
    (tmp_path / "rank.py").write_text(LAUNCHED)
    command = [sys.executable, "-m", "det_keras.launch.distributed", "--np", "2", "--engine", "builtin", "--"]
    done = warm.run([*command, sys.executable, "rank.py", str(failing)], cwd=tmp_path, capture_output=True)
    assert done.returncode == (0 if failing is None else 7), done.stderr
    for rank in (0, 1):
        assert f"[rank={rank}] rank {rank} True ['{failing}'] True\n" in done.stdout
        assert f"[rank={rank}] a warning\n" in done.stderr
    assert ("Rank 1 exited with code 7" in done.stderr) == (failing is not None)
    assert done.stderr.count("INFO") == 0


@pytest.mark.parametrize("is_launcher", [False, True])
def test_program_that_says_that_it_becomes_a_launcher_forks_its_ranks(is_launcher):
    code = "import sys\nfrom det_keras.launch.distributed import main\nsys.exit(main(sys.argv[1:]))\n"
    rank = [sys.executable, "-c", "import sys; print('tensorflow' in sys.modules)"]
    command = [sys.executable, "-c", code, "--np", "2", "--engine", "builtin", "--", *rank]
    with warm.Popen(command, stdout=subprocess.PIPE, is_launcher=is_launcher) as launcher:
        out, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    assert sorted(out.splitlines()) == [f"[rank={rank}] {is_launcher}" for rank in range(2)]


def test_killed_launcher_takes_its_ranks_along(tmp_path):
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    command = [sys.executable, "-m", "det_keras.launch.distributed", "--np", "2", "--engine", "builtin", "--"]
    launcher = warm.Popen([*command, sys.executable, "-c", code], stdout=subprocess.PIPE)
    ranks = [int(launcher.stdout.readline().split()[1]) for _ in range(2)]
    assert {psutil.Process(rank).ppid() for rank in ranks} == {launcher.pid}
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(rank) for rank in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_program_that_replaces_itself_by_another_keeps_its_environment_and_what_it_may_inherit(tmp_path):
    (tmp_path / "second.py").write_text(
        "import os, sys\nprint('tensorflow' in sys.modules, os.environ['A'], sys.argv, os.read(int(sys.argv[1]), 9))\n"
    )
    code = """
import os, sys
read, write = os.pipe()
os.write(write, b"through")
os.set_inheritable(read, True)
os.execvp(sys.argv[1], [sys.argv[1], "second.py", str(read)])
"""
    environment = {**os.environ, "A": "b"}
    command = [sys.executable, "-c", code, sys.executable]
    done = warm.run(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    assert re.fullmatch(r"True b \['second.py', '\d+'\] b'through'\n", done.stdout)
