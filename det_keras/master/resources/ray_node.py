"""The actor that runs a task on one node of a Ray cluster.

It is a pool of this machine's processes for one task (`LocalPool`), whose supervisor ends with the actor: when Ray
takes the actor away, nothing of the task continues. The task's files come from the master's REST API, and its log
returns the same way: each part is sent with its position in the log, and the master stores a part only where its own
copy ends. So a lost answer, a master that is killed, and an actor that another master finds again leave neither a gap
nor a double.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from det_keras.client import Session
from det_keras.errors import MasterError, MasterUnavailableError
from det_keras.home import Home, private_temporary_folder
from det_keras.launch.environments.cache import default_cache_folder
from det_keras.launch.environments.request import EnvironmentRequest
from det_keras.master.lifecycle import Ending, Exit
from det_keras.master.resources.base import Launch, LogEntry, Share, Slot, State
from det_keras.master.resources.local import LocalPool

_LOOK_S = 0.02
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 5.0
# The statuses of a call for an attempt that has ended: its token is invalid, or it is not there.
_OVER = frozenset({401, 403, 404})
_DISOWN_S = 3.0
_MALFORMED = frozenset({400, 413})
_KILL_AGAIN_S = 1.0
# How long files of a task may stay whose actor was killed.
_REMAINS_S = 24 * 3600.0


@dataclass(frozen=True)
class Assignment:
    """What one node has to do for a task. It travels as an argument: it holds the task's secrets.

    Attributes:
        cluster_id: the id of the master's data root.
        node: id of the node.
        ray_node: the id that Ray has for it.
        slots: all slots of the node.
        index: place of the node in the task's shares.
        shares: the task's slots, by node.
        allocation_id: the id of the attempt.
        argv: the program and its arguments.
        variables: the task's environment variables.
        has_files: whether there are files to get from the master.
        python_environment: what its config asks of its Python environment.
        certificate: content of the PEM file with which the master's certificate is checked; None for none.
    """

    cluster_id: str
    node: str
    ray_node: str
    slots: tuple[Slot, ...]
    index: int
    shares: tuple[Share, ...]
    allocation_id: str
    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(repr=False)
    has_files: bool
    python_environment: EnvironmentRequest = field(default_factory=EnvironmentRequest)
    certificate: str | None = None


class NodeActor:
    """Runs one task on one node; a named, detached actor of Ray.

    Its methods are asynchronous, so that any number of masters, one after the other, can wait for the same end.
    """

    def __init__(self) -> None:
        self._task: _Task | None = None
        self._is_refused = False
        self._ended = asyncio.Event()

    async def start(self, assignment: Assignment) -> None:
        """Start the task; its end is what `wait` returns."""
        if _ray_node() != assignment.ray_node:
            # Ray moves a bundle whose machine dies before the actor is on it; the addresses are of the former machine.
            self._is_refused = True
        if self._is_refused:
            return
        loop = asyncio.get_running_loop()
        self._task = _Task(assignment, _gpus(), lambda: loop.call_soon_threadsafe(self._ended.set))

    async def wait(self) -> dict[str, Any]:
        """Return how the task ended, once the master has its whole log; at once if it was never started."""
        if self._task is None:
            # The master may have died before it could start the task, which is lost then. Its call may still arrive.
            self._is_refused = True
            return {
                "ending": Ending.LOST.value,
                "detail": "it was not started on the machine that Ray had chosen",
            }
        await self._ended.wait()
        exit_ = self._task.exit
        return {"ending": exit_.ending.value, "code": exit_.code, "detail": exit_.detail}

    async def kill(self, *, force: bool) -> None:
        """Kill the task, also one whose start is still on its way."""
        if self._task is None:
            self._is_refused = True
        else:
            await asyncio.to_thread(self._task.kill, force=force)

    async def close(self) -> None:
        """Delete the task's files."""
        if self._task is not None:
            await asyncio.to_thread(self._task.remove)


class _Task:
    """One task on this node: a thread starts it, sends its log, and waits for its end.

    Args:
        assignment: the task.
        gpus: the GPUs that Ray gave to this actor.
        when_ended: called once `exit` is set and the master has the log.
    """

    def __init__(self, assignment: Assignment, gpus: list[str], when_ended: Any) -> None:
        self.exit = Exit(Ending.LOST)
        self._assignment = assignment
        self._id = assignment.allocation_id
        self._when_ended = when_ended
        # Several nodes may be processes of one machine, and so may several masters.
        root = private_temporary_folder(assignment.cluster_id, assignment.node)
        self._home = Home(root)
        self._archive = root / f"{self._id}.tgz"
        self._certificate = root / f"{self._id}.pem"
        _remove_remains(self._home)
        share = assignment.shares[assignment.index]
        # Ray chooses the GPUs of a node by itself.
        given = dict(zip(share.slot_ids, gpus, strict=False))
        slots = [replace(slot, uuid=given.get(slot.id, slot.uuid)) for slot in assignment.slots]
        self._pool = LocalPool(
            self._home,
            slots,
            _without_ray(os.environ),
            name=assignment.node,
            share_index=assignment.index,
            dies_with_master=True,
            environments=default_cache_folder(os.environ),
        )
        self._is_killed = self._is_launched = False
        self._sent = 0
        self._refused_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="task", daemon=True)
        self._thread.start()

    def kill(self, *, force: bool) -> None:
        """Kill the processes."""
        self._is_killed = True
        self._pool.kill(self._id, force=force)

    def remove(self) -> None:
        """Delete the files."""
        self._pool.remove(self._id)
        self._archive.unlink(missing_ok=True)
        self._certificate.unlink(missing_ok=True)

    def _run(self) -> None:
        try:
            self.exit = self._work()
        except Exception as error:
            # What could not be started cannot be started by another try either.
            ending = Ending.LOST if self._is_launched else Ending.NOT_LAUNCHED
            self.exit = Exit(ending, detail=f"it cannot run on {self._assignment.node}: {error}")
            with contextlib.suppress(OSError):
                self._pool.kill(self._id, force=True)
        finally:
            self._when_ended()

    def _work(self) -> Exit:
        if self._assignment.certificate is not None:
            self._certificate.write_text(self._assignment.certificate, encoding="utf-8")
        with contextlib.closing(self._connect()) as session:
            try:
                context = self._get_files(session)
                if self._is_killed:
                    return Exit(Ending.LOST, detail="it was killed before it had started")
                self._is_launched = True
                self._pool.launch(
                    Launch(
                        self._id,
                        self._assignment.argv,
                        self._variables(),
                        context,
                        self._assignment.shares,
                        self._assignment.python_environment,
                    )
                )
                return self._follow(session)
            except _DisownedError as error:
                # The master has ended this attempt. A run of it that went on could only disturb the next one.
                self._pool.kill(self._id, force=True)
                return Exit(Ending.LOST, detail=f"the master does not know it any more: {error}")

    def _connect(self) -> Session:
        variables = self._assignment.variables
        return Session(
            variables["DET_MASTER"],
            variables["DET_SESSION_TOKEN"],
            is_task=True,
            patience_s=0.0,
            cert_file=self._variables().get("DET_MASTER_CERT_FILE"),
        )

    def _variables(self) -> dict[str, str]:
        """Return the task's variables; the master's certificate is a file of this node."""
        variables = dict(self._assignment.variables)
        if self._assignment.certificate is not None:
            variables["DET_MASTER_CERT_FILE"] = str(self._certificate)
        return variables

    def _get_files(self, session: Session) -> Path | None:
        if not self._assignment.has_files:
            return None
        task_id = self._assignment.variables["DET_TASK_ID"]
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                with self._judging_refusals():
                    archive = session.api.tasks.context_directory(task_id)
                break
            except MasterUnavailableError:
                if self._is_killed:
                    return None
                time.sleep(delay_s)
                delay_s = min(2 * delay_s, _LAST_RETRY_S)
        self._archive.write_bytes(archive)
        return self._archive

    def _follow(self, session: Session) -> Exit:
        """Send the log until the task has ended and the master has all of it."""
        delay_s, not_before, kill_at = _FIRST_RETRY_S, 0.0, 0.0
        while True:
            # The state is read before the log: if the task has ended, the log is complete.
            state = self._pool.look(self._id)
            if self._is_killed and state.state is State.RUNNING and time.monotonic() >= kill_at:
                # A kill that came while the supervisor was being started has found nothing.
                self._pool.kill(self._id, force=kill_at > 0.0)
                kill_at = time.monotonic() + _KILL_AGAIN_S
            if time.monotonic() < not_before:
                time.sleep(_LOOK_S)
                continue
            entries, offset = self._pool.read_log(self._id, self._sent)
            if offset == self._sent:
                if state.state is State.ENDED:
                    assert state.exit is not None
                    return state.exit
                time.sleep(_LOOK_S)
                continue
            try:
                with self._judging_refusals():
                    self._sent = self._send(session, entries, offset)
                delay_s = _FIRST_RETRY_S
            except MasterUnavailableError:
                not_before = time.monotonic() + delay_s
                delay_s = min(2 * delay_s, _LAST_RETRY_S)

    def _send(self, session: Session, entries: list[LogEntry], offset: int) -> int:
        """Send a part of the log; return the position up to which the master has it."""
        place = {"node": self._assignment.index, "offset": self._sent, "next_offset": offset}
        lines = [{**asdict(entry), "time": entry.time.timestamp()} for entry in entries]
        try:
            return session.api.tasks.report_output(self._id, lines=lines, **place)
        except MasterError as error:
            if error.status not in _MALFORMED:
                raise
            # It would be refused forever, and the end of the task would never be told.
            text = f"{len(lines)} lines of the log were refused by the master: {error}\n"
            note = {"time": time.time(), "text": text, "stdtype": "stderr", "level": "WARNING"}
            return session.api.tasks.report_output(self._id, lines=[note], **place)

    @contextlib.contextmanager
    def _judging_refusals(self) -> Iterator[None]:
        """Raise `MasterUnavailableError` for all that may be over later, such as a master that is stopping.

        What says that the attempt is over may come from something else at the master's address, such as a proxy while
        the master is away. So it counts only if it is said again for a while.
        """
        try:
            yield
            self._refused_since = None
        except MasterError as error:
            if error.status in _OVER:
                since = self._refused_since = self._refused_since or time.monotonic()
                if time.monotonic() - since >= _DISOWN_S:
                    raise _DisownedError(str(error)) from error
            raise MasterUnavailableError(str(error)) from error


class _DisownedError(Exception):
    """The master says that this attempt is over."""


def _gpus() -> list[str]:
    import ray

    return [str(gpu) for gpu in ray.get_gpu_ids()]


def _without_ray(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the node: without what Ray sets for the actor itself."""
    of_ray = ("RAY_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONBREAKPOINT")
    return {name: value for name, value in environ.items() if not name.startswith(of_ray)}


def _ray_node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _remove_remains(home: Home) -> None:
    """Delete the files of tasks whose actors were killed."""
    for directory in home.logs.glob("*"):
        with contextlib.suppress(OSError):
            if time.time() - directory.stat().st_mtime < _REMAINS_S:
                continue
            with (directory / "supervisor.lock").open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home.root / "work" / directory.name, ignore_errors=True)
                shutil.rmtree(directory, ignore_errors=True)
                for kind in ("tgz", "pem"):
                    (home.root / f"{directory.name}.{kind}").unlink(missing_ok=True)
