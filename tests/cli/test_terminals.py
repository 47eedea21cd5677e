"""What commands write to a terminal: nothing of what others wrote is obeyed by it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from det_keras.cli.following import follow, logs

pytestmark = pytest.mark.process

EVIL = "\x1b]0;owned\x07\x1b[2J"
SHOWN = r"\x1b]0;owned\x07\x1b[2J"


def on_terminal(det, *args: str) -> str:
    """Return what a command writes to a terminal."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "det_keras.cli", *args]
    child = subprocess.Popen(
        command, cwd=det.directory, env=det.environment(), stdin=subprocess.DEVNULL, stdout=its, stderr=its
    )
    os.close(its)
    found = b""
    try:
        while data := os.read(ours, 1 << 16):
            found += data
    except OSError:
        # The end of a terminal.
        pass
    os.close(ours)
    child.wait(timeout=60)
    return found.decode()


@pytest.mark.parametrize("is_raw", [False, True], ids=["shown", "raw"])
def test_log_of_the_master_is_shown_on_a_terminal_and_as_it_is_in_a_pipe(det, is_raw):
    (det.home).mkdir(mode=0o700)
    (det.home / "master.log").write_text(f"INFO: {EVIL}\n")
    option = ["--raw"] if is_raw else []
    assert on_terminal(det, "deploy", "local", "logs", *option) == f"INFO: {EVIL if is_raw else SHOWN}\r\n"
    assert det.out("deploy", "local", "logs") == f"INFO: {EVIL}\n"


def test_followed_log_of_the_master_continues_after_it_was_rotated(det):
    det.home.mkdir(mode=0o700)
    path = det.home / "master.log"
    path.write_text("one\n")
    following = det.start("deploy", "local", "logs", "--follow")
    assert following.stdout.readline() == "one\n"
    with path.open("a") as earlier:
        path.rename(det.home / "master.log.1")
        path.write_text("three\n")
        earlier.write("two\n")
    assert [following.stdout.readline(), following.stdout.readline()] == ["two\n", "three\n"]
    following.kill()
    following.communicate()


def test_error_of_a_master_is_shown_on_a_terminal(det, stub):
    stub.answers["/api/v1/experiments"] = (400, {"error": {"code": 3, "error": f"No: {EVIL}"}})
    user = det.with_variables(DET_USER_TOKEN="t")
    assert f"No: {SHOWN}" in on_terminal(user, "-m", stub.url, "experiment", "list")


class Log:
    """The log of a trial with one line."""

    def __init__(self):
        self.line = {"id": "1", "message": f"{EVIL}\n"}

    def lines(self, *, limit):
        return [self.line]

    def tail(self, number):
        return [self.line]

    def follow(self, after):
        return iter([self.line])


class Session:
    """A session with a trial."""

    @property
    def api(self):
        return self

    def trial_logs(self, trial_id):
        return Log()


@pytest.mark.parametrize(
    "print_lines",
    [
        lambda: logs.print_log(Log()),
        lambda: logs.print_log(Log(), last=3),
        lambda: logs.print_log(Log(), follow=True),
        lambda: follow._print_last_lines(Session(), 1),
    ],
    ids=["all", "tail", "follow", "failed trial"],
)
def test_log_of_a_trial_is_shown_on_a_terminal(print_lines, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_lines()
    assert SHOWN in capsys.readouterr().out
