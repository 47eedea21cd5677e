from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from det_keras import __version__
from det_keras.cli.command_tree import command_tree
from det_keras.cli.help_texts import HELP_TEXTS
from det_keras.cli.main import command_parser, main

COMMANDS = {command.path: command for command in command_tree(command_parser()).walk()}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_a_description_and_an_example(path):
    printed = COMMANDS[path].parser.format_help()
    assert HELP_TEXTS[path].description in printed
    assert "\nexample" in printed
    for example in HELP_TEXTS[path].examples:
        assert f"\n  {example}\n" in printed


@pytest.mark.parametrize(
    ("path", "example"), [(path, example) for path, text in HELP_TEXTS.items() for example in text.examples]
)
def test_examples_are_understood_and_belong_to_their_command(path, example):
    words = shlex.split(example.removeprefix('eval "$(').removesuffix(')"'))
    assert " ".join(words).startswith(path)
    args = command_parser().parse_args(words[1:])
    assert callable(args.run)


def test_no_help_text_is_left_of_a_command_that_is_gone():
    assert not set(HELP_TEXTS) - set(COMMANDS)


def test_det_alone_prints_its_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out == command_parser().format_help()


def test_module_is_the_command_and_tells_its_version():
    done = subprocess.run(
        [sys.executable, "-m", "det_keras", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"det_keras {__version__}\n"
