"""The supervisor alone: it needs no master."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import psutil
import pytest

from .waiting import eventually, is_dead

pytestmark = pytest.mark.process


class Supervised:
    """A supervisor and what it leaves."""

    def __init__(self, root: Path, argv: list[str], context: Path | None = None, **variables: str) -> None:
        self.directory = root / "allocation"
        self.directory.mkdir(exist_ok=True)
        self.work = root / "work"
        environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", **variables}
        spec = {
            "argv": argv,
            "environment": environment,
            "directory": str(self.work),
            "context": None if context is None else str(context),
        }
        (self.directory / "spec.json").write_text(json.dumps(spec))

    def start(self) -> subprocess.Popen:
        command = [sys.executable, "-m", "det_keras.launch.supervisor", str(self.directory / "spec.json")]
        self.process = subprocess.Popen(command, start_new_session=True)
        return self.process

    def finish(self) -> dict:
        assert self.process.wait(60) == 0
        return json.loads((self.directory / "exit.json").read_text())

    def lines(self) -> list[tuple[str, str]]:
        content = (self.directory / "log.jsonl").read_text()
        return [(entry["s"], entry["m"]) for entry in map(json.loads, content.splitlines())]

    def says(self, text: str) -> bool:
        return (self.directory / "log.jsonl").exists() and ("stdout", f"{text}\n") in self.lines()


@pytest.fixture
def supervise(tmp_path):
    started = []

    def make(code: str | list[str], **options) -> Supervised:
        argv = [sys.executable, "-c", code] if isinstance(code, str) else code
        supervised = Supervised(tmp_path, argv, **options)
        started.append(supervised.start())
        return supervised

    yield make
    for process in started:
        process.kill()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
    ],
)
def test_exit_code_is_left_on_disk(supervise, code, expected):
    assert supervise(code).finish()["exit_code"] == expected


def test_output_is_logged_by_stream_and_its_last_line_needs_no_end(supervise):
    supervised = supervise("import sys; print('out'); sys.stderr.write('err'); sys.exit(1)")
    supervised.finish()
    assert sorted(supervised.lines()) == [("stderr", "err\n"), ("stdout", "out\n")]


def test_program_that_does_not_exist_is_no_exit_code(supervise):
    result = supervise(["/no/such/program"]).finish()
    assert "No such file" in result["launch_error"]


def test_what_cannot_be_started_or_unpacked_says_so(supervise, tmp_path):
    assert "embedded null byte" in supervise(["true\0"]).finish()["launch_error"]
    broken = tmp_path / "context.tar.gz"
    archive = bytearray(gzip.compress(bytes(2000)))
    # What stands behind the header is no deflated data any more.
    archive[10] |= 0b110
    for number, content in enumerate((archive, archive[:-9], b"")):
        broken.write_bytes(content)
        (tmp_path / "allocation").rename(tmp_path / f"before-{number}")
        result = supervise("pass", context=broken).finish()
        assert "Could not unpack the files" in result["launch_error"]


# Takes all pages of the file system of its first argument.
FILL = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(file, bytes(4096))
except OSError:
    pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root may mount a small disk.")
def test_result_waits_for_space_on_a_full_disk(supervise, tmp_path):
    allocation = tmp_path / "allocation"
    allocation.mkdir()
    if subprocess.call(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(allocation)]):
        pytest.skip("No file system can be mounted here.")
    try:
        supervised = supervise([sys.executable, "-c", FILL, str(allocation / "filler")])
        eventually((allocation / "filler").exists)
        # Deleted when there was no space for the result.
        eventually(lambda: not supervised.work.exists())
        assert not (allocation / "exit.json").exists()
        (allocation / "filler").unlink()
        assert supervised.finish()["exit_code"] == 0
    finally:
        subprocess.call(["umount", "--lazy", str(allocation)])


def test_files_that_find_no_space_leave_no_result(tmp_path):
    script = """
import errno, sys
from det_keras.launch import supervisor

def find_no_space(spec):
    raise OSError(errno.ENOSPC, "No space left on device")

supervisor._unpack = find_no_space
sys.exit(supervisor.main(sys.argv[1:]))
"""
    Supervised(tmp_path, ["true"])
    directory = tmp_path / "allocation"
    command = [sys.executable, "-c", script, str(directory / "spec.json")]
    subprocess.run(command, start_new_session=True, check=True)
    assert not (directory / "exit.json").exists()
    assert "No space left" in (directory / "log.jsonl").read_text()


def test_task_starts_in_its_files_and_they_are_gone_afterwards(supervise, tmp_path):
    source = tmp_path / "hello.txt"
    source.write_text("hello")
    with tarfile.open(tmp_path / "context.tar.gz", "w:gz") as archive:
        archive.add(source, "sub/hello.txt")
    supervised = supervise("print(open('sub/hello.txt').read())", context=tmp_path / "context.tar.gz")
    supervised.finish()
    assert supervised.lines() == [("stdout", "hello\n")]
    assert not supervised.work.exists()


@pytest.mark.parametrize(
    ("hook", "code", "printed"),
    [("export A=1\necho hook\n", 0, ["hook", "1"]), ("echo hook\nfalse\n", 1, ["hook"])],
    ids=["succeeds", "fails"],
)
def test_startup_hook_runs_first(supervise, tmp_path, hook, code, printed):
    (tmp_path / "startup-hook.sh").write_text(hook)
    with tarfile.open(tmp_path / "context.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "startup-hook.sh", "startup-hook.sh")
    supervised = supervise("import os; print(os.environ.get('A'))", context=tmp_path / "context.tar.gz")
    assert supervised.finish()["exit_code"] == code
    assert [text for _, text in supervised.lines()] == [f"{line}\n" for line in printed]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_passed_on(supervise, number):
    code = f"""
import signal, sys, time
signal.signal({int(number)}, lambda *_: (print('got it'), sys.exit(5)))
print('ready')
while True: time.sleep(1)
"""
    supervised = supervise(code)
    eventually(lambda: supervised.says("ready"))
    supervised.process.send_signal(number)
    assert supervised.finish()["exit_code"] == 5
    assert supervised.says("got it")


# Says that it is ready, and when asked to end takes longer for it than a shell does.
SAVES = """
import signal, time
def leave(*_):
    time.sleep(1)
    print("saved")
    raise SystemExit(5)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, leave)
print("ready")
while True:
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("{}", 5),
        ("VALUE=1 {}", None),
        ("cd / && {}", None),
        ("(true; {})", None),
        ("trap 'exit 3' {:d}; {}", 3),
    ],
    ids=["simple", "with-variable", "list", "subshell", "trap"],
)
def test_training_below_a_shell_may_save_after_a_signal(supervise, tmp_path, script, code, number):
    (tmp_path / "train.py").write_text(SAVES)
    program = f"{sys.executable} {tmp_path / 'train.py'}"
    text = script.format(number, program) if "trap" in script else script.format(program)
    # No shell can trap what was ignored when it began, as under `nohup`.
    before = signal.signal(number, signal.SIG_DFL)
    supervised = supervise(["sh", "-c", text])
    signal.signal(number, before)
    eventually(lambda: supervised.says("ready"))
    supervised.process.send_signal(number)
    result = supervised.finish()
    assert supervised.says("saved")
    # Some shells run the last program of a text in their own place.
    assert result["exit_code"] in ({code} if code is not None else {5, 128 + number})


def test_signal_to_the_shell_alone_reaches_the_training(supervise, tmp_path):
    (tmp_path / "train.py").write_text(SAVES)
    supervised = supervise(["sh", "-c", f"{sys.executable} {tmp_path / 'train.py'}; exit 4"])
    eventually(lambda: supervised.says("ready"))
    (shell,) = [
        child for child in psutil.Process(supervised.process.pid).children() if child.name() in ("sh", "dash")
    ]
    shell.send_signal(signal.SIGTERM)
    assert supervised.finish()["exit_code"] == 143
    assert supervised.says("saved")


@pytest.mark.parametrize(
    "script", ["exit 7", "cd /tmp", "if true; then exit 7; fi", "test -e / && exit 7", "(exit 7)"]
)
def test_text_that_only_the_shell_understands_is_left_to_it(supervise, script):
    assert supervise(["sh", "-c", script]).finish()["exit_code"] == (0 if script == "cd /tmp" else 7)


def test_usr1_kills_whatever_the_task_does(supervise):
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready'); time.sleep(60)"
    supervised = supervise(code)
    eventually(lambda: supervised.says("ready"))
    supervised.process.send_signal(signal.SIGUSR1)
    assert supervised.finish()["exit_code"] == 137


def test_what_the_task_leaves_running_is_killed_and_not_waited_for(supervise):
    code = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid)
"""
    supervised = supervise(code)
    began = time.monotonic()
    assert supervised.finish()["exit_code"] == 0
    assert time.monotonic() - began < 10
    eventually(lambda: is_dead(int(supervised.lines()[0][1])))


@pytest.mark.kill
@pytest.mark.parametrize("argv", ["direct", "shell"])
def test_task_dies_with_its_supervisor(supervise, argv):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    command = (
        [sys.executable, "-c", code]
        if argv == "direct"
        else ["sh", "-c", f"{sys.executable} -c '{code}'; true"]
    )
    supervised = supervise(command)
    log = supervised.directory / "log.jsonl"
    eventually(lambda: log.exists() and log.read_text())
    task = int(supervised.lines()[0][1])
    supervised.process.kill()
    eventually(lambda: is_dead(task))
    assert not (supervised.directory / "exit.json").exists()


@pytest.mark.kill
def test_lock_is_held_until_the_task_of_a_killed_supervisor_is_dead(supervise):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    supervised = supervise(["sh", "-c", f"{sys.executable} -c '{code}'; true"])
    log = supervised.directory / "log.jsonl"
    eventually(lambda: log.exists() and log.read_text())
    task = int(supervised.lines()[0][1])
    (reaper,) = [child for child in psutil.Process(supervised.process.pid).children() if child.name() != "sh"]
    path = supervised.directory / "supervisor.lock"
    # It kills the task's group while the file is open, and so locked.
    assert str(path) in [file.path for file in reaper.open_files()]
    supervised.process.kill()
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Killed at least; the kernel may still be clearing it away.
        eventually(lambda: is_dead(task), 1.0)


def test_second_supervisor_of_an_allocation_runs_nothing(supervise):
    supervised = supervise("print('ready', flush=True); import time; time.sleep(0.5)")
    eventually(lambda: supervised.says("ready"))
    second = supervised.start()
    assert second.wait(60) == 0
    assert [text for _, text in supervised.lines()] == ["ready\n"]


def test_command_line_does_not_name_the_master(supervise):
    supervised = supervise("print('ready', flush=True); import time; time.sleep(60)")
    # Between fork and exec a process has no command line yet.
    eventually(lambda: supervised.says("ready"))
    line = " ".join(psutil.Process(supervised.process.pid).cmdline())
    assert "det_keras.launch.supervisor" in line
    assert "det_keras.master" not in line


@pytest.mark.parametrize("moment", ["while files are unpacked", "while the task runs"])
def test_task_ends_with_the_process_that_holds_the_supervisors_input(tmp_path, moment):
    code = f"import time; open({str(tmp_path / 'ran')!r}, 'w').close(); time.sleep(60)"
    supervised = Supervised(tmp_path, [sys.executable, "-c", code])
    path = supervised.directory / "spec.json"
    spec = json.loads(path.read_text())
    if moment == "while files are unpacked":
        # A pipe that nobody writes to: the supervisor waits for the archive.
        spec["context"] = str(tmp_path / "never.tgz")
        os.mkfifo(spec["context"])
    path.write_text(json.dumps({**spec, "dies_with_stdin": True}))
    process = subprocess.Popen(
        [sys.executable, "-m", "det_keras.launch.supervisor", str(path)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    ran = tmp_path / "ran"
    eventually(lambda: ran.exists() if spec["context"] is None else not path.exists())
    children = psutil.Process(process.pid).children(recursive=True)
    process.stdin.close()
    assert process.wait(10) == -signal.SIGKILL
    eventually(lambda: all(is_dead(child.pid) for child in children))
    assert not (supervised.directory / "exit.json").exists()
    assert ran.exists() == (spec["context"] is None)


def test_task_of_such_a_supervisor_ends_at_once(tmp_path):
    supervised = Supervised(tmp_path, ["true"])
    path = supervised.directory / "spec.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dies_with_stdin": True}))
    command = [sys.executable, "-m", "det_keras.launch.supervisor", str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    eventually((supervised.directory / "exit.json").exists)
    entry = json.loads((supervised.directory / "exit.json").read_text())
    assert entry["exit_code"] == 0
    assert process.wait(10) == 0
