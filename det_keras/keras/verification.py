"""`init(verify_resume=True)`: a copy of a local run resumes in the background and is compared with the run.

The copy is the same command in a process of its own. It resumes from the first checkpoint that the run has saved,
trains to the second, and compares its state there. `det_keras.core.backend.copy` says what it does differently.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from det_keras.cluster_info import CopyInfo
from det_keras.core.backend.base import ENGINE_FORMAT, CheckpointRecord
from det_keras.core.backend.local import LocalBackend
from det_keras.protocol.verification import HINT, failure_of, verified_text

logger = logging.getLogger(__name__)

# Of the working directory; a copy of a directory with more files would take longer than the training.
_MOST_ENTRIES = 20_000
# Also while TensorFlow is imported, before `open_copy` does the same.
_NICE = ("nice", "-n", "19")


class LocalVerification:
    """Starts the copy of a run once the run has two checkpoints, and logs the result.

    Args:
        backend: of the run.
        seed: of the run.
    """

    def __init__(self, backend: LocalBackend, seed: int) -> None:
        self._backend = backend
        self._seed = seed
        self._first: CheckpointRecord | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._is_abandoned = False
        self._folder = backend.run.path / "verification"
        # At the start of the run: scripts may change both.
        self._command, self._directory, self._started = list(sys.orig_argv), Path.cwd(), time.time()
        backend.on_checkpoint = self._reported

    def finish(self, *, is_wanted: bool) -> None:
        """Wait for the copy.

        Args:
            is_wanted: the result is of interest; otherwise the copy is killed.
        """
        if self._thread is None:
            if is_wanted and self._is_open:
                logger.info("The resume was not verified: the run saved fewer than two checkpoints.")
            return
        if self._thread.is_alive() and is_wanted:
            logger.info("Waiting for the copy of this run that verifies the resume. Ctrl-C ends it.")
        try:
            while is_wanted and self._thread.is_alive():
                self._thread.join(0.5)
        finally:
            self._kill()
            self._thread.join()

    @property
    def _is_open(self) -> bool:
        return self._backend.on_checkpoint == self._reported

    def _reported(self, record: CheckpointRecord) -> None:
        """Note a checkpoint; called before others are deleted, in the thread that writes them."""
        if record.metadata.get("format") != ENGINE_FORMAT:
            return
        if self._first is None:
            self._first = record
            self._backend.held = frozenset({record.uuid})
        elif record.steps_completed > self._first.steps_completed:
            self._backend.on_checkpoint = lambda record: None
            first = self._first
            known = [
                each for each in self._backend.checkpoints() if each.metadata.get("format") == ENGINE_FORMAT
            ]
            before = {
                each.metadata.get("phase"): each.uuid
                for each in reversed(known)
                if each.steps_completed <= first.steps_completed and each.uuid != first.uuid
            }
            needed = (*before.values(), first.uuid)
            self._backend.held = frozenset({*needed, record.uuid})
            self._thread = threading.Thread(target=self._verify, args=(needed, first, record), daemon=True)
            self._thread.start()

    def _verify(self, needed: Sequence[str], first: CheckpointRecord, second: CheckpointRecord) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        try:
            result = self._run_copy(needed, second.uuid)
        except OSError as error:
            result = {"failure": f"the copy cannot be started: {error}"}
        finally:
            self._backend.held = frozenset()
        if not self._is_abandoned:
            _log(result, first.steps_completed, second.steps_completed)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run_copy(self, needed: Sequence[str], expected: str) -> Mapping[str, Any]:
        work, output, result = (self._folder / name for name in ("work", "output.log", "result.json"))
        work.mkdir(parents=True)
        if not _mirror(self._directory, work, self._started, without=self._backend.run.path):
            return {"failure": f"the working directory has more than {_MOST_ENTRIES} files"}
        copy = CopyInfo(
            storage={"type": "directory", "container_path": str(self._backend.run.checkpoints)},
            checkpoints=tuple(needed),
            expected=expected,
            folder=str(self._folder),
            result=str(result),
            seed=self._seed,
        )
        with output.open("wb") as log:
            self._process = subprocess.Popen(
                [*_NICE, *(_moved(word, self._directory, work) for word in self._command)],
                cwd=work,
                env={**os.environ, **copy.to_environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the run, which ends the copy.
                start_new_session=True,
            )
            if self._is_abandoned:
                self._kill()
            code = self._process.wait()
        if result.exists():
            found: Mapping[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            return found
        return {"failure": failure_of(code, output.read_text(encoding="utf-8", errors="replace"))}

    def _kill(self) -> None:
        self._is_abandoned = self._thread is not None and self._thread.is_alive()
        if self._is_abandoned and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)


def _log(result: Mapping[str, Any], first: int, second: int) -> None:
    if "failure" in result:
        logger.warning("The resume could not be verified: %s", result["failure"])
        return
    text = verified_text(result["differences"], first, second)
    if result["differences"]:
        logger.warning("The script %s %s", text, HINT)
    else:
        logger.info("The script %s.", text)


def _moved(word: str, directory: Path, work: Path) -> str:
    """Return an argument with a path in the working directory changed to the copy of that directory."""
    path = Path(word)
    if path.is_absolute() and path.is_relative_to(directory) and path.exists():
        return str(work / path.relative_to(directory))
    return word


def _mirror(source: Path, target: Path, since: float, *, without: Path) -> bool:
    """Fill `target` with what `source` has; return False if that is too much.

    What the run has written until now is copied, and other files are links: up to its end a copy writes no other files
    than the run has written before.

    Args:
        source: a directory.
        target: an empty one.
        since: when the run began; later changes count as its own.
        without: a directory that is left out.
    """
    count = 0
    for folder, folders, files in os.walk(source):
        here = Path(folder)
        folders[:] = [name for name in folders if here / name != without and not (here / name).is_symlink()]
        count += len(folders) + len(files)
        if count > _MOST_ENTRIES:
            return False
        there = target / here.relative_to(source)
        there.mkdir(exist_ok=True)
        for name in files:
            path = here / name
            with contextlib.suppress(OSError):
                if path.stat().st_mtime >= since:
                    shutil.copy2(path, there / name)
                else:
                    (there / name).symlink_to(path)
    return True
