"""The reason of a failure: what Python itself printed last."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from det_keras.launch.exit_reason import ExitReason
from det_keras.protocol.log_lines import LineSplitter

_FAILS = """
import sys
def inner(x):
    return 1 / x
try:
    inner(0)
except ZeroDivisionError as error:
    print("trying again")
    raise RuntimeError("gave up") from error
"""


def reason_of(code: str) -> tuple[str, str]:
    """Run a script; return the reason, and all that it wrote to stderr."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    reason = ExitReason()
    for name, data in (("stdout", ended.stdout), ("stderr", ended.stderr)):
        splitter = LineSplitter(name)
        reason.add([*splitter.feed(data), *splitter.finish()])
    return reason.text(
        ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
    ), ended.stderr.decode()


def test_reason_is_the_traceback_as_python_prints_it():
    reason, printed = reason_of(_FAILS)
    assert [line for line in reason.splitlines() if line] == [line for line in printed.splitlines() if line]
    assert reason.splitlines()[-1] == "RuntimeError: gave up"


def test_last_of_several_tracebacks_counts():
    caught = "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()\n"
    assert reason_of(f"{caught}print('on')\nraise KeyError('end')")[0].splitlines()[-1] == "KeyError: 'end'"


def test_without_a_traceback_it_is_the_end_of_stderr():
    code = "import sys\nfor i in range(30): print(i, file=sys.stderr)\nsys.exit(3)"
    assert reason_of(code)[0].splitlines() == [str(i) for i in range(18, 30)]


def test_signal_is_named():
    reason, _ = reason_of("import os; os.kill(os.getpid(), 9)")
    assert signal.SIGKILL.name in reason
    assert "memory" in reason


def test_success_has_no_reason():
    assert reason_of("import sys; print('warned', file=sys.stderr)")[0] == ""


@pytest.mark.parametrize("lines", [0, 1])
def test_nothing_printed_is_no_reason(lines):
    assert reason_of("print('out')\n" * lines + "raise SystemExit(4)")[0] == ""


def test_ranks_that_take_turns_have_tracebacks_of_their_own():
    reason = ExitReason()
    for number in ("Traceback (most recent call last):\n", '  File "x", line 1\n', "ValueError: here\n"):
        for rank in (0, 1):
            reason.add([{"s": "stderr", "r": rank, "m": number.replace("here", f"rank {rank}")}])
    assert reason.text(1).splitlines() == [
        "Traceback (most recent call last):",
        '  File "x", line 1',
        "ValueError: rank 1",
    ]
