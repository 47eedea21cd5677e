"""`det completion`: shell scripts that complete the words of `det`, generated from the parser.

The scripts are static: they contain all commands and options, so that completion does not start Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from det_keras.cli.command_tree import Command, Option, command_tree
from det_keras.connection.settings import Settings

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns

__all__ = ["add_parsers", "bash_script", "fish_script", "zsh_script"]

_HELP = Option(("-h", "--help"), "show this help message and exit", takes_value=False, choices=())


def add_parsers(nouns: Nouns, root: argparse.ArgumentParser) -> None:
    """Add the command to the command line with the parser `root`."""
    parser = nouns.add_parser("completion", help="print a script that completes commands in a shell")
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="the shell to write it for")
    parser.set_defaults(run=_print_script, root=root)


def _print_script(args: argparse.Namespace, settings: Settings) -> int:
    print(_SCRIPTS[args.shell](command_tree(args.root)), end="")
    return 0


def bash_script(root: Command) -> str:
    """Return the script for bash 3.2 or newer."""
    return _BASH.format(
        moves=_moves(root, "                {patterns}) node={path};;"),
        values=_values(root, "            {patterns}) continue;;"),
        words="\n".join(
            f"        {_quoted(command.path)}) words={_quoted(' '.join(_first_words(command)))}"
            f" options={_quoted(' '.join(_option_names(command)))};;"
            for command in root.walk()
        ),
        choices=_choice_cases(root, "        {patterns}) words={words} options=;;"),
    )


def zsh_script(root: Command) -> str:
    """Return the script for zsh; it also works as the file ``_det`` in a directory of ``fpath``."""
    cases = []
    for command in root.walk():
        words = _zsh_items(_described_words(command))
        options = _zsh_items((name, option.help) for option in _options(command) for name in option.names)
        cases.append(f"        ({_quoted(command.path)}) names=({words}) flags=({options});;")
    return _ZSH.format(
        moves=_moves(root, "                ({patterns}) node={path};;"),
        values=_values(root, "            ({patterns}) continue;;"),
        words="\n".join(cases),
        choices=_choice_cases(root, "        ({patterns}) names=({words}) flags=();;", join=_zsh_words),
    )


def fish_script(root: Command) -> str:
    """Return the script for fish 3 or newer."""
    lines = []
    for command in root.walk():
        at = f"complete -c det -n '__det_at \"{command.path}\"'"
        for word, text in _described_words(command):
            lines.append(f"{at} -f -a {_quoted(word)} -d {_fish_quoted(text)}")
        for option in _options(command):
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
            )
            value = ""
            if option.takes_value:
                value = f" -x -a {_quoted(' '.join(option.choices))}" if option.choices else " -r"
            lines.append(f"{at} {names}{value} -d {_fish_quoted(option.help)}")
    return _FISH.format(
        moves=_moves(root, "            case {patterns}\n                set node {path}", separator=" "),
        values=_values(root, "            case {patterns}\n                continue", separator=" "),
        completions="\n".join(lines),
    )


_SCRIPTS: dict[str, Callable[[Command], str]] = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}

_BASH = """\
# Completes the words of `det` in bash, written by `det completion bash`.
_det() {{
    local node=det current="${{COMP_WORDS[COMP_CWORD]}}" words options
    local -i index
    for (( index = 1; index < COMP_CWORD; index++ )); do
        # The value of an option is no command.
        case "$node ${{COMP_WORDS[index - 1]}}" in
{values}
        esac
        case "$node ${{COMP_WORDS[index]}}" in
{moves}
        esac
    done
    case "$node" in
{words}
    esac
    case "$node ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{choices}
    esac
    [[ "$current" == -* ]] && words="$options"
    COMPREPLY=( $(compgen -W "$words" -- "$current") )
}}
# Where no word fits, the shell completes the names of files.
complete -o default -F _det det
"""

_ZSH = """\
#compdef det
# Completes the words of `det` in zsh, written by `det completion zsh`.
_det() {{
    local node=det
    local -a names flags
    local -i index
    for (( index = 2; index < CURRENT; index++ )); do
        # The value of an option is no command.
        case "$node ${{words[index - 1]}}" in
{values}
        esac
        case "$node ${{words[index]}}" in
{moves}
        esac
    done
    case "$node" in
{words}
    esac
    case "$node ${{words[CURRENT - 1]}}" in
{choices}
    esac
    if [[ "$PREFIX" == -* ]]; then
        _describe -o option flags
    elif (( ${{#names}} )); then
        _describe command names
    else
        _files
    fi
}}
if [[ "${{funcstack[1]}}" == _det ]]; then
    _det "$@"
else
    compdef _det det
fi
"""

_FISH = """\
# Completes the words of `det` in fish, written by `det completion fish`.
function __det_at
    set -l node det
    set -l previous ''
    for word in (commandline -opc)[2..-1]
        set -l before "$node $previous"
        set previous $word
        # The value of an option is no command.
        switch $before
{values}
        end
        switch "$node $word"
{moves}
        end
    end
    test $node = $argv[1]
end
{completions}
"""


def _options(command: Command) -> Iterator[Option]:
    yield _HELP
    yield from command.options


def _option_names(command: Command) -> list[str]:
    return [name for option in _options(command) for name in option.names]


def _first_words(command: Command) -> list[str]:
    """Return the possible words after a command: its subcommands without aliases, or choices."""
    return [word for word, _ in _described_words(command)]


def _described_words(command: Command) -> list[tuple[str, str]]:
    below = [(child.names[0], child.help) for child in command.commands]
    return below or [(choice, "") for choice in command.choices]


def _moves(root: Command, line: str, separator: str = "|") -> str:
    """Return the cases that lead from a command and a word to the subcommand."""
    return "\n".join(
        line.format(
            patterns=separator.join(_quoted(f"{command.path} {name}") for name in child.names),
            path=_quoted(child.path),
        )
        for command in root.walk()
        for child in command.commands
    )


def _values(root: Command, line: str, separator: str = "|") -> str:
    """Return the case of all options with a value."""
    patterns = [
        _quoted(f"{command.path} {name}")
        for command in root.walk()
        for option in command.options
        if option.takes_value
        for name in option.names
    ]
    return line.format(patterns=separator.join(patterns))


def _choice_cases(root: Command, line: str, join: Callable[[Iterable[str]], str] | None = None) -> str:
    """Return the cases of options whose values are a choice."""
    return "\n".join(
        line.format(
            patterns="|".join(_quoted(f"{command.path} {name}") for name in option.names),
            words=join(option.choices) if join else _quoted(" ".join(option.choices)),
        )
        for command in root.walk()
        for option in command.options
        if option.choices
    )


def _zsh_items(described: Iterable[tuple[str, str]]) -> str:
    # A colon separates the word from its description.
    return " ".join(_quoted(f"{word}:{text}" if text else word) for word, text in described)


def _zsh_words(words: Iterable[str]) -> str:
    return " ".join(map(_quoted, words))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
