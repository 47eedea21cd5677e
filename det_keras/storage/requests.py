"""Requests to an object store, repeated where that helps.

A busy store (503, 429, 500) and a broken connection are tried again, after the time that the store asks for or one that
grows. What no repetition helps (no such bucket, no permission, expired credentials) fails at once, with a message for
the user. A failure is a `StorageError`, which names the bucket and the key.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from det_keras.errors import StorageError
from det_keras.storage.object_client import Fault, FaultKind, ObjectClient

logger = logging.getLogger(__name__)

_ATTEMPTS = 8
_FIRST_DELAY_S = 0.25
_LONGEST_DELAY_S = 15.0
# A store that asks for more is asked again after this time.
_LONGEST_RETRY_AFTER_S = 60.0
_LOG_PERIOD_S = 10.0

T = TypeVar("T")


class MissingObjectError(StorageError):
    """There is no object with this key."""


class Requests:
    """Runs the requests of a client.

    Args:
        client: makes the requests.
    """

    def __init__(self, client: ObjectClient) -> None:
        self.client = client
        #: Whether the client's credentials were refused as expired: another client reads them again.
        self.is_expired = False
        self._last_log = float("-inf")

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the client's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.client.loop)

    def call(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """Make a request from another thread than the loop's; as `run`."""
        return self.start(self.run(key, make)).result()

    async def run(
        self, key: str, make: Callable[[], Awaitable[T]], *, progress: Callable[[], int] = lambda: 0
    ) -> T:
        """Make a request, and repeat it where that helps.

        Args:
            key: the object, for messages.
            make: makes the request.
            progress: how far the request has come over all attempts; attempts are counted anew when this grows.

        Raises:
            MissingObjectError: there is no such object.
            StorageError: the request failed.
        """
        attempt, reached = 0, progress()
        while True:
            try:
                return await make()
            except Exception as error:
                fault = self.client.fault(error)
                if fault is None:
                    raise
                attempt = attempt + 1 if progress() == reached else 1
                reached = progress()
                if not fault.is_passing or attempt == _ATTEMPTS:
                    raise self._failure(key, fault) from error
                delay_s = _delay_s(fault, attempt)
                self._log(key, fault, delay_s)
            await asyncio.sleep(delay_s)

    def _failure(self, key: str, fault: Fault) -> StorageError:
        place = f"{self.client.location}/{key}"
        field, bucket = self.client.bucket_field, self.client.location
        if fault.kind is FaultKind.MISSING:
            return MissingObjectError(f"There is no {place}.", can_retry=False)
        if fault.kind is FaultKind.EXPIRED:
            self.is_expired = True
        advice = {
            FaultKind.NO_BUCKET: f"{bucket} does not exist: create it, or correct `checkpoint_storage.{field}`.",
            FaultKind.NO_CREDENTIALS: f"No usable credentials were found. {self.client.credentials_help}",
            FaultKind.DENIED: "These credentials do not permit it: let them list, read, write and delete objects "
            f"there, or use others. {self.client.credentials_help}",
            FaultKind.EXPIRED: f"Renew the credentials; they are read again at the next attempt. "
            f"{self.client.credentials_help}",
            FaultKind.FULL: "Free space, or raise the quota.",
            FaultKind.BUSY: f"It was tried {_ATTEMPTS} times.",
            FaultKind.BROKEN: f"It was tried {_ATTEMPTS} times: check the network and the address of the store.",
        }.get(fault.kind, "")
        message = f"{place}: {fault.reason.rstrip('.')}. {advice}".rstrip()
        # Space may be freed by the deletion of old checkpoints.
        return StorageError(message, can_retry=fault.is_passing or fault.kind is FaultKind.FULL)

    def _log(self, key: str, fault: Fault, delay_s: float) -> None:
        # In a storm every part fails; one line in a while tells as much.
        level = logging.WARNING if time.monotonic() - self._last_log > _LOG_PERIOD_S else logging.DEBUG
        if level == logging.WARNING:
            self._last_log = time.monotonic()
        logger.log(
            level, "%s/%s: %s; trying again in %.1f s.", self.client.location, key, fault.reason, delay_s
        )


def _delay_s(fault: Fault, attempt: int) -> float:
    if fault.retry_after_s is not None:
        # Not all at the same moment.
        return min(fault.retry_after_s, _LONGEST_RETRY_AFTER_S) + random.uniform(0.0, 0.2)
    longest = min(_FIRST_DELAY_S * 2.0 ** (attempt - 1), _LONGEST_DELAY_S)
    return random.uniform(0.5, 1.0) * longest
