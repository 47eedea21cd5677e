from __future__ import annotations

import json

import pytest

from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.connection.token_cache import TokenCache, canonical_address
from det_keras.errors import DetError
from det_keras.home import Home


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").create()


def presented(stub, settings):
    """Return the Authorization header that a command would send."""
    with open_session(settings) as session:
        session.get("/api/v1/me")
    return stub.calls[-1][2].removeprefix("Bearer ")


def test_the_environments_token_comes_first(stub, home):
    TokenCache(home).store(stub.url, "ann", "cached")
    settings = Settings(home, master=stub.url, token="given", password="secret")

    assert presented(stub, settings) == "given"


def test_user_and_password_log_in(stub, home):
    stub.answers["/api/v1/auth/login"] = {"token": "fresh", "user": {}}
    settings = Settings(home, master=stub.url, user="ann", environment_user="ann", password="secret")

    assert presented(stub, settings) == "fresh"
    assert stub.calls[0][:2] == ("POST", "/api/v1/auth/login")


def test_another_user_than_the_environments_does_not_get_its_token(stub, home):
    TokenCache(home).store(stub.url, "bob", "bobs")
    settings = Settings(
        home, master=stub.url, user="bob", environment_user="ann", token="anns", password="secret"
    )

    assert presented(stub, settings) == "bobs"


def test_a_login_is_remembered_per_master_and_user(stub, home):
    cache = TokenCache(home)
    cache.store(stub.url, "ann", "anns")
    cache.store(stub.url, "bob", "bobs")
    cache.store("http://elsewhere:8080", "bob", "other")

    assert presented(stub, Settings(home, master=stub.url)) == "bobs"
    assert presented(stub, Settings(home, master=stub.url, user="ann")) == "anns"


def test_the_embedded_masters_token_goes_to_that_master_alone(stub, home):
    home.token_file.write_text("embedded\n", encoding="utf-8")
    home.master_file.write_text(json.dumps({"url": stub.url, "pid": 1}), encoding="utf-8")

    assert presented(stub, Settings(home, master=stub.url)) == "embedded"
    assert presented(stub, Settings(home, master=stub.url.replace("127.0.0.1", "localhost"))) == "embedded"

    home.master_file.write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": 1}), encoding="utf-8")
    with pytest.raises(DetError, match=r"no token for the master at .*user login"):
        open_session(Settings(home, master=stub.url))


def test_a_bare_host_means_the_usual_port(home):
    TokenCache(home).store("http://gpu-box:8080", "ann", "x")

    assert open_session(Settings(home, master="gpu-box")).url == "http://gpu-box:8080"


@pytest.mark.parametrize(
    "other", ["https://GPU-Box/", "https://gpu-box:443", "https://gpu-box:443/"], ids=str
)
def test_login_is_that_of_the_master_however_its_address_is_written(home, other):
    TokenCache(home).store("https://gpu-box", "ann", "x")
    assert TokenCache(home).find(other, None) == ("ann", "x")
    assert TokenCache(home).find("https://gpu-box:8443", None) is None
    assert TokenCache(home).find("http://gpu-box", None) is None


@pytest.mark.parametrize(
    "url", ["http://[::1]:8080", "HTTP://Host", "https://host/path/", "http://localhost:80"]
)
def test_an_address_in_its_form_stays_as_it_is(home, url):
    assert canonical_address(canonical_address(url)) == canonical_address(url)
    TokenCache(home).store(url, "me", "token")
    assert TokenCache(home).find(url, "me") == ("me", "token")
    assert TokenCache(home).find("http://elsewhere:1", None) is None


def test_tokens_are_readable_by_their_owner_only(home):
    TokenCache(home).store("http://m:1", "ann", "x")

    (path,) = home.root.glob("logins.json")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_forgotten_login_leaves_the_others(home):
    cache = TokenCache(home)
    cache.store("http://m:1", "ann", "x")
    cache.store("http://m:1", "bob", "y")

    cache.forget("http://m:1", "bob")

    assert cache.find("http://m:1", None) == ("ann", "x")
    assert cache.find("http://m:1", "bob") is None


def test_a_broken_login_file_means_no_logins(home):
    (home.root / "logins.json").write_text("{", encoding="utf-8")

    assert TokenCache(home).find("http://m:1", None) is None


@pytest.mark.parametrize("slots", ["0", "many", "-1"])
def test_a_number_of_slots_that_is_none_is_an_error(slots):
    import argparse

    with pytest.raises(DetError, match=f"DET_KERAS_SLOTS.*{slots!r}"):
        Settings.gather(argparse.Namespace(master=None, user=None), {"DET_KERAS_SLOTS": slots})
