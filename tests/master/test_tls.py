"""Where a master listens: on loopback, or elsewhere with a certificate that its own clients take."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from det_keras import client
from det_keras.connection.masters import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError, MasterUnavailableError
from det_keras.home import Home
from det_keras.master import process
from det_keras.master.process import MasterOptions
from det_keras.master.server.address import choose_address
from master.certificates import make_certificate
from master.fakes import Client, eventually

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs openssl to make certificates"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    names = ("IP:127.0.0.1", f"DNS:{socket.gethostname()}")
    return make_certificate(tmp_path_factory.mktemp("tls"), "right", *names)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_other_addresses_are_refused_in_the_clear_with_the_line_to_use(host):
    with pytest.raises(DetError) as caught:
        choose_address(host, None, None, None)
    line = f"det deploy local cluster-up --host {host} --tls-cert CERT.pem --tls-key KEY.pem"
    assert line in str(caught.value)


@pytest.mark.parametrize("host", [None, "127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_no_certificate(host):
    assert choose_address(host, None, None, None).url(1).startswith("http://")


@needs_openssl
def test_certificate_that_names_another_machine_is_refused_at_once(tmp_path):
    cert, key = make_certificate(tmp_path, "other", "DNS:elsewhere")
    with pytest.raises(DetError, match=r"must name '127\.0\.0\.1'"):
        choose_address(None, cert, key, None)


@needs_openssl
def test_key_of_another_certificate_is_refused_at_once(tmp_path, certificate):
    _, key = make_certificate(tmp_path, "other", "IP:127.0.0.1")
    with pytest.raises(DetError, match="match the key"):
        choose_address(None, certificate[0], key, None)


def test_certificate_that_is_not_there_is_refused_by_name():
    with pytest.raises(DetError, match=r"nowhere\.pem"):
        choose_address(None, "nowhere.pem", None, None)


CONFIG = """
name: safe
entrypoint: [{python}, trial.py]
searcher: {{name: single, metric: loss}}
"""
TRIAL = """
import det_keras as det
with det.core.init() as core:
    core.train.report_validation_metrics(1, {"loss": 1.0})
"""


@needs_openssl
@pytest.mark.process
def test_master_with_a_certificate_serves_its_clients_and_trials(home: Home, certificate, monkeypatch):
    cert, key = certificate
    running = process.start(home, slots=1, options=MasterOptions(host="0.0.0.0", tls_cert=cert, tls_key=key))
    try:
        assert running.url.startswith(f"https://{socket.gethostname()}:")
        assert json.loads(home.master_file.read_text())["cert_file"] == cert
        assert process.find(home) == running
        _run_a_trial(home)
        with (
            pytest.raises(MasterUnavailableError, match=r"(?i)certificate"),
            client.Session(running.url) as blind,
        ):
            blind.get("/info", patience_s=0)
    finally:
        process.stop(home, kill_tasks=True)


@needs_openssl
@pytest.mark.process
def test_master_that_crashed_comes_back_with_its_certificate_until_it_is_taken_down(
    home: Home, certificate, tmp_path, monkeypatch
):
    cert, key = certificate
    # As on a command line: files are named from where one is.
    monkeypatch.chdir(Path(cert).parent)
    options = MasterOptions(tls_cert=Path(cert).name, tls_key=Path(key).name)
    first = process.start(home, slots=1, options=options)
    try:
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: process.find(home) is None)
        monkeypatch.chdir(tmp_path)
        again = process.start(home, slots=1)
        assert (again.cert_file, again.url.partition(":")[0]) == (cert, "https")
        process.stop(home)
        process.forget(home)
        assert process.start(home, slots=1).url.startswith("http://127.0.0.1:")
    finally:
        process.stop(home, kill_tasks=True)


def _run_a_trial(home: Home) -> None:
    import base64

    code = base64.b64encode(TRIAL.encode()).decode()
    files = [{"path": "trial.py", "type": 48, "content": code, "mode": 33188, "mtime": "1"}]
    body = {"config": CONFIG.format(python=sys.executable), "modelDefinition": files}
    with open_session(Settings(home)) as session:
        number = session.post("/api/v1/experiments", body)["experiment"]["id"]
        caller = Client(None, "")
        caller.get = lambda path, **_: session.get(path)
        caller.wait_for_state(number, "COMPLETED", 40)


@pytest.mark.process
def test_port_that_is_taken_leaves_nothing_behind(home: Home):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(DetError, match=f"Port {port} of 127.0.0.1 is taken"):
            process.start(home, port=port)
    assert not home.database.exists()
