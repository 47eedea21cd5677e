"""What Python still can do when a script has ended without closing its context."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from det_keras.core.script_end import close_after
from det_keras.errors import MasterUnavailableError

BEGIN = """
import asyncio, atexit, concurrent.futures, sys, threading, time
from det_keras.core.script_end import close_at_end, is_closed, wait_for_thread
"""


def run(code):
    return subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(code)], capture_output=True, text=True, check=False
    )


@pytest.mark.process
def test_threads_and_pools_work_when_the_context_is_closed():
    # What `asyncio.to_thread` and a new thread need is gone in a function of `atexit`, as this shows beside it.
    done = run("""
        def transfer(name):
            try:
                asyncio.run(asyncio.to_thread(print, name, flush=True))
            except RuntimeError as error:
                print(name, "failed", flush=True)

        atexit.register(transfer, "atexit")
        close_at_end(lambda: transfer("second"))
        close_at_end(lambda: transfer("first"))
    """)
    assert (done.stdout.split("\n")[:3], done.returncode) == (["first", "second", "atexit failed"], 0)


@pytest.mark.process
def test_what_cannot_be_closed_ends_the_process_with_1_after_everything_else():
    done = run("""
        def fail():
            raise OSError("undelivered")

        atexit.register(print, "later")
        close_at_end(lambda: print("other context"))
        close_at_end(fail)
        atexit.register(print, "sooner")
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        sys.exit(0)
    """)
    assert done.stdout.split("\n") == ["other context", "thread", "sooner", "later", ""]
    assert "undelivered" in done.stderr
    assert done.returncode == 1


@pytest.mark.process
def test_closed_context_is_not_closed_again():
    done = run("""
        def close():
            print("closed")

        close_at_end(close)
        close()
        is_closed(close)
        is_closed(close)
    """)
    assert (done.stdout, done.returncode) == ("closed\n", 0)


@pytest.mark.process
def test_forked_process_does_not_close_the_context_of_its_parent():
    done = run("""
        import os
        close_at_end(lambda: print(os.getpid() == parent, flush=True))
        parent = os.getpid()
        child = os.fork()
        if child:
            os.waitpid(child, 0)
    """)
    assert done.stdout == "True\n"


@pytest.mark.process
@pytest.mark.parametrize("place", ["thread", "pool", "daemon"])
def test_training_in_another_thread_is_waited_for(place):
    # A pool's thread never ends by itself, and Python does not wait for a daemon.
    done = run(f"""
        place, busy = {place!r}, threading.Event()

        def train():
            global thread
            thread = threading.current_thread()
            busy.set()
            time.sleep(0.5)
            print("trained", flush=True)
            busy.clear()

        if place == "pool":
            pool = concurrent.futures.ThreadPoolExecutor(1)
            pool.submit(train)
        else:
            threading.Thread(target=train, daemon=place == "daemon").start()
        busy.wait()

        def close():
            wait_for_thread(thread, busy.is_set)
            print("closed", flush=True)

        close_at_end(close)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == (["closed"] if place == "daemon" else ["trained", "closed"])


@pytest.mark.parametrize("error", [None, SystemExit(0)])
def test_error_of_closing_is_raised_where_the_script_has_none(error):
    def close():
        raise MasterUnavailableError("gone")

    with pytest.raises(MasterUnavailableError):
        close_after(error, close)


def test_error_of_the_script_stays_its_own(caplog):
    def close():
        raise MasterUnavailableError("gone")

    close_after(ValueError("mine"), close)
    assert "gone" in caplog.text
