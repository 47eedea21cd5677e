"""Folders of one account."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess

import pytest

from det_keras.errors import DetError
from det_keras.home import Home, private_temporary_folder
from det_keras.master import process


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


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777], ids=oct)
@pytest.mark.parametrize("use", [Home.create, process.find], ids=["create", "find"])
def test_root_into_which_others_can_write_is_refused_with_the_command_that_repairs_it(tmp_path, mode, use):
    root = tmp_path / "the root"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(
        DetError, match=rf"Other accounts.*mode {mode:04o}.*run: (chmod go-w '.*the root')$"
    ) as refused:
        use(Home(root))
    subprocess.run(shlex.split(str(refused.value).rpartition("run: ")[2]), check=True)
    use(Home(root))


def test_root_below_a_folder_like_tmp_is_accepted(tmp_path):
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o1777)
    home = Home(tmp_path / "above" / "root").create()
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700


def test_root_of_another_account_is_refused(tmp_path, monkeypatch):
    home = Home(tmp_path / "root").create()
    monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
    with pytest.raises(DetError, match=r"belongs to another account \(uid \d+, this is \d+\).*chown -R \d+ "):
        home.create()
