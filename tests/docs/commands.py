"""The command lines in documents: which programs they may name, and what has to exist for each."""

from __future__ import annotations

import argparse
import configparser
import importlib.util
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from det_keras.cli.main import command_parser
from docs.pages import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the words of each command, without the variables that are set for it."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&;|")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("&;|"):
                if words:
                    yield words
                words = []
            elif words or not re.match(r"\w+=", word):
                words.append(word)


def check(words: list[str], files: set[str]) -> None:
    """Fail if a command cannot work.

    Args:
        words: of the command.
        files: names that the page has written.
    """
    program, *arguments = words
    assert program in PROGRAMS, f"no check is known for {program!r}"
    PROGRAMS[program](arguments, files)


def _det(arguments: list[str], files: set[str]) -> None:
    try:
        args = command_parser().parse_args(arguments)
    except SystemExit as error:
        pytest.fail(f"det {shlex.join(arguments)}: exit {error.code}")
    assert callable(args.run)


def _pip(arguments: list[str], files: set[str]) -> None:
    assert arguments[0] == "install"
    extras = re.findall(r"(?:^|\s)(?:\.|det_keras)\[([\w,-]+)\]", " ".join(arguments))
    for extra in ",".join(extras).split(",") if extras else ():
        assert extra in PROJECT["project"]["optional-dependencies"]


def _uv(arguments: list[str], files: set[str]) -> None:
    verb, *rest = arguments
    assert verb in ("build", "lock", "run", "sync")
    known = {"--group": PROJECT["dependency-groups"], "--extra": PROJECT["project"]["optional-dependencies"]}
    while rest and rest[0].startswith("--"):
        option, name, *rest = rest
        assert name in known[option]
    if verb == "run":
        check(rest, files)


def _tox(arguments: list[str], files: set[str]) -> None:
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    environments = {name.removeprefix("testenv:") for name in config} | {"py310", "py313"}
    parser = argparse.ArgumentParser()
    parser.add_argument("-e", default="lint")
    parser.add_argument(
        "-m", nargs="+", choices=re.findall(r"^(\w+) =", config["tox"]["labels"], re.MULTILINE)
    )
    ours, _, theirs = " ".join(arguments).removeprefix("run-parallel ").partition("-- ")
    args = parser.parse_args(ours.split())
    assert set(args.e.split(",")) <= environments
    if args.e == "mutation":
        _mutants(theirs.split())
    else:
        _pytest(theirs.split(), files)


def _mutants(arguments: list[str]) -> None:
    # Read, not imported: the tool needs packages that only its own environment has.
    program = (ROOT / "tests/mutation/mutants.py").read_text(encoding="utf-8")
    named = re.findall(r'if "(\w+)" in steps', program) + re.findall(r'"(--[\w-]+)"', program)
    for word in arguments:
        if word.startswith("--") or word.isalpha():
            assert word in named, word


def _pytest(arguments: list[str], files: set[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="*")
    parser.add_argument("-m", default="")
    for option in ("-k", "-n", "--dist"):
        parser.add_argument(option)
    parser.add_argument("--no-loadscope-reorder", action="store_true")
    args = parser.parse_args(arguments)
    for path in args.paths:
        assert (ROOT / path.partition("::")[0]).exists(), path
    markers = {marker.partition(":")[0] for marker in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    assert set(re.findall(r"\w+", args.m)) - {"and", "not", "or"} <= markers


def _python(arguments: list[str], files: set[str]) -> None:
    if arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]) is not None
    else:
        assert arguments[0] in files | {"train.py"} or (ROOT / arguments[0]).is_file(), arguments[0]


def _docker(arguments: list[str], files: set[str]) -> None:
    if arguments[0] == "build":
        assert (ROOT / arguments[arguments.index("-f") + 1]).is_file()


def _any(arguments: list[str], files: set[str]) -> None:
    """Accept: the program is not ours."""


PROGRAMS: dict[str, Callable[[list[str], set[str]], None]] = {
    "cd": _any,
    "createdb": _any,
    "createuser": _any,
    "det": _det,
    "docker": _docker,
    "export": _any,
    "git": _any,
    "pg_dump": _any,
    "ray": _any,
    "pg_restore": _any,
    "pip": _pip,
    "pre-commit": _any,
    "pytest": _pytest,
    "python": _python,
    "python3": _python,
    "tests/browser/install.sh": _any,
    "tox": _tox,
    "twine": _any,
    "uv": _uv,
}
