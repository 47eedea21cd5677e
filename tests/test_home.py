"""Folders of one account."""

from __future__ import annotations

import os
import stat

import pytest

from det_keras.errors import DetError
from det_keras.home import Home, private_temporary_folder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_temporary_folder_is_of_this_account_alone_whatever_the_umask(temporary):
    before = os.umask(0o002)
    try:
        folder = private_temporary_folder("cluster", "node")
        assert private_temporary_folder("cluster", "node") == folder
    finally:
        os.umask(before)
    for one in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(one.stat().st_mode) == 0o700
    assert folder.parent.parent.parent == temporary


@pytest.mark.parametrize("kind", ["link", "open to others"])
def test_temporary_folder_that_another_account_made_is_refused(temporary, kind):
    own = temporary / f"det_keras-{os.getuid()}"
    if kind == "link":
        elsewhere = temporary / "elsewhere"
        elsewhere.mkdir()
        own.symlink_to(elsewhere)
    else:
        own.mkdir()
        own.chmod(0o777)
    with pytest.raises(PermissionError, match="not a folder of this account alone"):
        private_temporary_folder("cluster")
    if kind == "link":
        assert list(elsewhere.iterdir()) == []


def no_home(name="~"):
    raise RuntimeError("could not determine the home directory")


@pytest.mark.parametrize("environ", [{}, {"DET_KERAS_HOME": "~/det"}], ids=["none", "named"])
def test_user_without_a_home_directory_is_told_what_to_set(monkeypatch, environ):
    monkeypatch.setattr("pathlib.Path.expanduser", no_home)
    monkeypatch.setattr("platformdirs.user_data_dir", lambda *_, **__: "~/.local/share/det_keras")
    with pytest.raises(DetError, match=r"no home directory\. Set DET_KERAS_HOME"):
        Home.from_environment(environ)


def test_root_that_cannot_be_created_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DetError, match=r"Not a directory.*file.*Set DET_KERAS_HOME"):
        Home(tmp_path / "file" / "root").create()
