from __future__ import annotations

import contextlib
import io
import shlex
import shutil
import subprocess

import pytest

from det_keras.cli.main import command_parser, main

TABS = {
    # What is typed, its last word being completed: what must be offered, and what must not.
    "experiment ": ({"create", "list", "describe"}, {"whoami", "--json"}),
    "experiment cr": ({"create"}, {"list"}),
    "e cr": ({"create"}, {"list"}),
    "expe": ({"experiment"}, {"create"}),
    "-m master:8080 tri": ({"trial"}, {"create"}),
    "experiment create --f": ({"--follow"}, {"--json"}),
    "experiment list-trials 7 --sort-by ": ({"metric", "id"}, {"--json"}),
    "checkpoint download x --mode ": ({"auto", "master"}, {"--mode"}),
    "deploy local cluster-": ({"cluster-up", "cluster-down"}, {"logs"}),
    "completion ": ({"bash", "zsh", "fish"}, {"--help"}),
    "--ver": ({"--version"}, {"--debug"}),
}
PROGRAMS = {
    "bash": 'COMP_WORDS=(det "$@"); COMP_CWORD=$#; _shtab_det; printf "%s\\n" "${COMPREPLY[@]}"',
    "fish": 'complete -C "det $typed"',
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The script for each shell, as a file."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert main(["completion", shell]) == 0
        (folder / shell).write_text(printed.getvalue())
    return folder


@pytest.mark.parametrize("typed", TABS)
@pytest.mark.parametrize("shell", PROGRAMS)
def test_tab_offers_what_fits_without_starting_python(scripts, shell, typed):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    code = f"source {shlex.quote(str(scripts / shell))}\n{PROGRAMS[shell]}"
    words = () if shell == "fish" else (shell, *typed.split(" "))
    # An empty search path: the shell finds no other program.
    environ = {"PATH": "/nowhere", "typed": typed}
    done = subprocess.run(
        [program, "-c", code, *words], capture_output=True, text=True, env=environ, check=False
    )
    offered = {line.partition("\t")[0] for line in done.stdout.splitlines()}
    wanted, unwanted = TABS[typed]
    assert not done.stderr
    assert wanted <= offered
    assert not unwanted & offered


def test_zsh_reads_its_script(scripts):
    program = shutil.which("zsh")
    if program is None:
        pytest.skip("zsh is not installed")
    assert not subprocess.run([program, "-n", scripts / "zsh"], capture_output=True, check=True).stderr


def test_an_unknown_shell_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        command_parser().parse_args(["completion", "tcsh"])
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
