"""The threads that send events to webhooks, from the queue in the database.

The outcome of an attempt is stored after it: a master that is killed in between sends the event again, with the same
id. So a receiver gets each event at least once, and drops what it has by the id. Of one webhook one event is sent at a
time, so that a receiver that does not answer occupies one thread.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, func, select

from det_keras.files import write_file
from det_keras.home import Home
from det_keras.master.database.models import DeliveryRow, WebhookRow
from det_keras.master.database.notifier import DELIVERIES, Notifier, delivery_topic
from det_keras.master.database.store import Store
from det_keras.master.errors import UnavailableError
from det_keras.master.services.background import Background
from det_keras.master.teams.outgoing import Answer, Networks
from det_keras.master.teams.webhooks import DELIVERED, FAILED, WAITING
from det_keras.protocol.values import now

logger = logging.getLogger(__name__)

#: The header with the id of an event; ours. The others are Determined's.
EVENT_HEADER = "X-Det-Keras-Event-ID"
SIGNATURE_HEADER = "X-Determined-AI-Signature"
TIME_HEADER = "X-Determined-AI-Signature-Timestamp"

_THREADS = 4
_RETRY_S = 5.0
_SHORTEST_SLEEP_S = 0.05
_LONGEST_SLEEP_S = 60.0
_FIRST_WAIT_S = 2.0
_LONGEST_WAIT_S = 3600.0
_OK = range(200, 300)


@dataclass(frozen=True)
class _Event:
    """An event that is due."""

    id: int
    webhook_id: int
    event_id: str
    url: str
    payload: bytes


class WebhookSender(Background):
    """Sends events until they are accepted, with growing waits.

    Args:
        store: the database.
        notifier: the source of events.
        home: the data root, with the key.
        networks: where receivers may be.
    """

    def __init__(self, store: Store, notifier: Notifier, home: Home, networks: Networks) -> None:
        self._store = store
        self._notifier = notifier
        self._home = home
        #: Where receivers may be.
        self.networks = networks
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="webhooks")
        self._lock = threading.Lock()
        # Webhooks to which an event is being sent.
        self._busy: set[int] = set()
        self._key: bytes | None = None
        super().__init__("webhook_sender", notifier, DELIVERIES)

    def stop(self) -> None:
        """End the threads; what is being sent may be sent again by the next master."""
        super().stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def step(self) -> float:
        """Begin to send what is due; return the seconds until more is."""
        while (event := self._next()) is not None:
            with self._lock:
                self._busy.add(event.webhook_id)
            self._threads.submit(self._send, event)
        with self._store.reading() as session:
            # The end of one that is being sent wakes this thread.
            due_at = session.scalar(select(func.min(DeliveryRow.due_at)).where(*self._may_be_sent()))
        left_s = _LONGEST_SLEEP_S if due_at is None else (due_at - now()).total_seconds()
        return min(max(left_s, _SHORTEST_SLEEP_S), _LONGEST_SLEEP_S)

    def _next(self) -> _Event | None:
        """Return the event that is due for the longest time, of a webhook to which none is being sent."""
        query = (
            select(DeliveryRow, WebhookRow.url)
            .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
            .where(*self._may_be_sent(), DeliveryRow.due_at <= now())
            .order_by(DeliveryRow.due_at, DeliveryRow.id)
            .limit(1)
        )
        with self._store.reading() as session:
            found = session.execute(query).first()
        if found is None or self._stopping:
            return None
        row, url = found
        return _Event(row.id, row.webhook_id, row.event_id, url, row.payload.encode())

    def _may_be_sent(self) -> tuple[ColumnElement[bool], ...]:
        with self._lock:
            return DeliveryRow.state == WAITING, DeliveryRow.webhook_id.not_in(list(self._busy))

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            pause_s = _RETRY_S
            try:
                pause_s = self.step()
            except UnavailableError as error:
                logger.warning("Webhooks wait for the database: %s", error)
            except Exception:
                if not self._stopping:
                    logger.exception("Webhooks could not be served; this will be repeated.")
            self._wake.wait(pause_s)

    def _send(self, event: _Event) -> None:
        try:
            answer = self.networks.post(event.url, event.payload, self._headers(event))
            self._store_outcome(event, answer)
        except UnavailableError as error:
            logger.warning(
                "The outcome of event %s is not stored; it is sent again. %s", event.event_id, error
            )
            time.sleep(_RETRY_S)
        except Exception:
            logger.exception("Event %s could not be sent.", event.event_id)
            time.sleep(_RETRY_S)
        finally:
            with self._lock:
                self._busy.discard(event.webhook_id)
            self._notifier.notify(DELIVERIES)

    def _store_outcome(self, event: _Event, answer: Answer) -> None:
        with self._store.writing() as tx:
            row = tx.get(DeliveryRow, event.id)
            # Its webhook may have been deleted.
            if row is None or row.state != WAITING:
                return
            row.attempts += 1
            row.status, row.answer = answer.status, answer.text
            if answer.status in _OK:
                row.state, row.ended_at = DELIVERED, now()
            elif row.attempts >= row.most_attempts:
                row.state, row.ended_at = FAILED, now()
            else:
                row.due_at = now() + timedelta(seconds=wait_s(row.attempts))
            if row.state != WAITING:
                tx.notify(delivery_topic(row.id))

    def _headers(self, event: _Event) -> dict[str, str]:
        moment = str(int(time.time()))
        return {
            "Content-Type": "application/json; charset=UTF-8",
            "User-Agent": "det_keras",
            EVENT_HEADER: event.event_id,
            TIME_HEADER: moment,
            SIGNATURE_HEADER: signature(self._signing_key(), moment, event.payload),
        }

    def _signing_key(self) -> bytes:
        with self._lock:
            if self._key is None:
                file = self._home.webhook_key_file
                if not file.exists():
                    write_file(file, secrets.token_hex(32), mode=0o600, is_durable=True)
                self._key = file.read_text(encoding="utf-8").strip().encode()
            return self._key


def signature(key: bytes, moment: str, body: bytes) -> str:
    """Return the signature of a body, as Determined makes it.

    Args:
        key: shared with the receiver.
        moment: when it is sent, in seconds since 1970.
        body: what is sent.
    """
    return hmac.new(key, moment.encode() + b"," + body, hashlib.sha256).hexdigest()


def wait_s(attempts: int) -> float:
    """Return how long the next attempt waits, in seconds: twice as long each time, up to an hour."""
    return min(_FIRST_WAIT_S * 2.0 ** (attempts - 1), _LONGEST_WAIT_S)
