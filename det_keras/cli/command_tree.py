"""The tree of commands of a parser, for help texts and shell completion.

argparse has no public API for this, so this module uses its private attributes. No other module does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        names: such as ``("-f", "--follow")``.
        help: one line of help.
        takes_value: whether a value follows it.
        choices: the valid values; empty for any.
    """

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """One command, or a group of commands.

    Attributes:
        path: its words, such as ``det experiment list``.
        names: its last word and the aliases of that.
        help: one line of help; empty for the root.
        parser: parses its arguments.
        options: all options except ``--help``.
        choices: the valid values of its first argument; empty for any.
        has_arguments: whether it has positional arguments.
        commands: its subcommands.
    """

    path: str
    names: tuple[str, ...]
    help: str
    parser: argparse.ArgumentParser
    options: tuple[Option, ...]
    choices: tuple[str, ...]
    has_arguments: bool
    commands: tuple[Command, ...]

    def walk(self) -> Iterator[Command]:
        """Yield this command and all its subcommands, parents first."""
        yield self
        for command in self.commands:
            yield from command.walk()


def command_tree(parser: argparse.ArgumentParser) -> Command:
    """Return the command of a parser, with all its subcommands."""
    return _command(parser, (parser.prog,), parser.prog, "")


def _command(parser: argparse.ArgumentParser, names: tuple[str, ...], path: str, text: str) -> Command:
    options, commands, arguments = [], [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands += [
                _command(child, names, f"{path} {names[0]}", text) for child, names, text in _children(action)
            ]
        elif not action.option_strings:
            arguments.append(action)
        elif not isinstance(action, argparse._HelpAction):
            options.append(_option(parser, action))
    choices = tuple(arguments[0].choices or ()) if arguments else ()
    return Command(path, names, text, parser, tuple(options), choices, bool(arguments), tuple(commands))


def _children(
    action: argparse._SubParsersAction[argparse.ArgumentParser],
) -> Iterator[tuple[argparse.ArgumentParser, tuple[str, ...], str]]:
    names: dict[int, list[str]] = {}
    for name, parser in action.choices.items():
        names.setdefault(id(parser), []).append(name)
    for entry in action._choices_actions:
        parser = action.choices[entry.dest]
        yield parser, tuple(names[id(parser)]), entry.help or ""


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> Option:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    choices = tuple(map(str, action.choices or ()))
    return Option(tuple(action.option_strings), text, action.nargs != 0, choices)
