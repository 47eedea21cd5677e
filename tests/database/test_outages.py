"""A server that goes away and returns while the master runs."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from master.conftest import RealMaster
from master.fakes import eventually
from master.test_survival import submit, texts

from database.server import PostgresServer, assign
from det_keras.home import Home
from det_keras.master.database.engines import open_database
from det_keras.master.database.models import SettingRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store
from det_keras.master.errors import UnavailableError

pytestmark = [pytest.mark.process, pytest.mark.kill]

# Prints and reports without a pause, and says how far it is.
SCRIPT = """
root = pathlib.Path(os.environ["DET_KERAS_HOME"])
for i in range(400):
    print("line", i, flush=True)
    report("training", i + 1, loss=float(i))
    (root / "step").write_text(str(i))
    time.sleep(0.01)
report("validation", 400, loss=0.5)
"""


@pytest.fixture
def real(url, own_home) -> Iterator[RealMaster]:
    home = Home(own_home)
    assign(home, url)
    master = RealMaster(home)
    yield master
    master.close()


def step_of(real: RealMaster) -> int:
    file = real.home.root / "step"
    return int(file.read_text() or 0) if file.exists() else 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["restart", "crash"])
def test_trial_goes_on_over_a_restart_of_the_server_and_nothing_is_lost(real, postgresql, how):
    experiment_id, trial = submit(real, SCRIPT)
    eventually(lambda: step_of(real) > 50, 30)
    postgresql.stop(how)
    try:
        refused = eventually(lambda: refusal(real), 10)
    finally:
        postgresql.start()
    assert "The database postgresql://postgres@" in refused
    assert "cannot be used" in refused
    eventually(lambda: refusal(real) is None, 10)
    real.client.wait_for_state(experiment_id, "COMPLETED", 60)
    assert texts(real, trial) == [f"line {i}" for i in range(400)]
    text = real.http.get(
        f"/api/v1/trials/metrics/trial_metrics?group=training&trialIds={trial['id']}",
        headers={"Authorization": f"Bearer {real.client.token}"},
    ).text
    reports = [report for line in text.splitlines() for report in json.loads(line)["result"]["metrics"]]
    assert [report["totalBatches"] for report in reports] == list(range(1, 401))
    assert real.client.trial(trial["id"])["restarts"] == 0
    log = real.home.master_log.read_text()
    assert "Traceback" not in log, log
    assert "answers again" in log


def refusal(real: RealMaster) -> str | None:
    answer = real.http.get("/api/v1/experiments", headers={"Authorization": f"Bearer {real.client.token}"})
    return answer.json()["error"]["error"] if answer.status_code == 503 else None


def test_idle_connections_are_replaced_without_a_failed_call(real, postgresql, url):
    real.client.get("/api/v1/experiments")
    postgresql.end_sessions(url)
    real.client.create(activate=False)
    real.client.get("/api/v1/experiments")


class Proxy:
    """A proxy on loopback that breaks connections at a commit."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        #: What happens at the next commit: "before" or "after" the server has it; None for nothing.
        self.cut: str | None = None
        self._answered = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                for pair in ((client, server, self._watch), (server, client, self._note_answer)):
                    threading.Thread(target=_pump, args=pair, daemon=True).start()

    def _watch(self, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        cut = self.cut if b"COMMIT" in data else None
        if cut is None:
            return True
        self.cut = None
        if cut == "after":
            # The answer to the client is lost. The server has committed when it has answered: closed before, the
            # connection could be reset with the commit unread.
            client.shutdown(socket.SHUT_RDWR)
            self._answered.clear()
            server.sendall(data)
            self._answered.wait(30)
        return False

    def _note_answer(self, *_: object) -> bool:
        self._answered.set()
        return True


def _pump(source: socket.socket, target: socket.socket, watch: Callable[..., bool]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            if not watch(data, source, target):
                break
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxied(postgresql: PostgresServer, url, tmp_path):
    proxy = Proxy(postgresql.port)
    name = postgresql.name_of(url)
    store = Store(open_database(postgresql.tcp_url(name, port=proxy.port), tmp_path / "none"), Notifier())
    store.migrate()
    store.claim()
    yield store, proxy
    store.close()
    proxy.close()


def stored(postgresql: PostgresServer, url: str) -> list[str]:
    rows = postgresql.sql("SELECT name FROM settings WHERE value = 'once'", postgresql.name_of(url))
    return [row[0] for row in rows]


def test_commit_whose_answer_is_lost_is_neither_reported_as_failed_nor_repeated(proxied, postgresql, url):
    store, proxy = proxied
    happened = []
    proxy.cut = "after"
    with store.writing() as tx:
        tx.add(SettingRow(name="a", value="once"))
        tx.after_commit(lambda: happened.append("consequence"))
    assert proxy.cut is None
    assert stored(postgresql, url) == ["a"]
    assert happened == ["consequence"]


def test_commit_that_did_not_arrive_is_reported_as_failed(proxied, postgresql, url):
    store, proxy = proxied
    happened = []

    def fail() -> None:
        with store.writing() as tx:
            tx.add(SettingRow(name="a", value="once"))
            tx.after_commit(lambda: happened.append("consequence"))

    proxy.cut = "before"
    with pytest.raises(UnavailableError):
        fail()
    assert proxy.cut is None
    assert stored(postgresql, url) == []
    assert happened == []
    fail()
    assert stored(postgresql, url) == ["a"]


def test_commit_that_a_crash_of_the_server_forgot_is_reported_as_failed(
    proxied, postgresql, url, monkeypatch
):
    store, proxy = proxied
    settle = store.database.settle

    def crash_and_settle(transaction_id: str) -> bool:
        # What was not written to disk before is gone, mostly with the number of the transaction.
        postgresql.stop(signal.SIGQUIT)
        postgresql.start()
        return settle(transaction_id)

    monkeypatch.setattr(store.database, "settle", crash_and_settle)
    proxy.cut = "before"
    with pytest.raises(UnavailableError), store.writing() as tx:
        tx.add(SettingRow(name="a", value="once"))
    assert stored(postgresql, url) == []
