"""Every code block of the documents is run, read, parsed, or marked as output.

| Language | What happens |
| --- | --- |
| `python` | run, with the others of its page, in order, in one namespace and a fresh directory |
| `yaml` | read by the loader of experiment configs, or of job configs |
| `sh` | each command is parsed: `det` by its own parser, other programs by `docs.commands` |
| `console`, `diff`, `text` | nothing: output, changes, or a drawing |

A block with `title="NAME"` is a file. On a page with such blocks the files are written into a fresh directory, and the
commands of its `sh` blocks are executed there in order; `pip` is not.
"""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest

import det_keras as det
from det_keras.config import load_experiment_config, load_job_config
from det_keras.errors import ConfigError
from det_keras.home import Home
from det_keras.master import process
from docs.commands import check, commands_of
from docs.pages import PAGE_NAMES, Block, blocks_of

BLOCKS = [block for page in PAGE_NAMES for block in blocks_of(page)]
OUTPUT = {"console", "diff", "text"}
#: Pages that show files and what to do with them.
WALKED = [page for page in PAGE_NAMES if any(block.title for block in blocks_of(page))]


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block_names_its_language(block):
    assert block.language in OUTPUT | {"python", "sh", "yaml"}


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_config_is_right_and_needs_no_notice(block):
    try:
        loaded = load_experiment_config(block.text, alone=True)
    except ConfigError:
        loaded = load_job_config(block.text)
    assert [notice for notice in loaded.notices if "no effect" in notice] == []


@pytest.mark.parametrize("block", of("sh"), ids=str)
def test_command_is_understood(block):
    files = {other.title for other in blocks_of(block.page) if other.title}
    commands = list(commands_of(block.text))
    assert commands
    for words in commands:
        check(words, files)


@pytest.mark.parametrize("page", sorted({block.page for block in of("python") if block.page not in WALKED}))
def test_script_runs(page, reported_experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.language == "python":
            # Empty lines before it, so that a traceback names the line of the page.
            exec(compile("\n" * block.line + block.text, page, "exec"), namespace)
    close_context(namespace)


@pytest.mark.process
@pytest.mark.parametrize("page", WALKED)
def test_walk_through_works(page, own_home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DET_KERAS_SLOTS", "2")
    try:
        for block in blocks_of(page):
            if block.title is not None:
                (tmp_path / block.title).write_text(block.text, encoding="utf-8")
            for words in commands_of(block.text) if block.language == "sh" else ():
                if words[0] != "pip":
                    run(words)
    finally:
        process.stop(Home(own_home), kill_tasks=True)


def run(words):
    if words[0] == "python":
        # In this process, which has imported TensorFlow already.
        close_context(runpy.run_path(words[1], run_name="__main__"))
        return
    assert words[0] == "det"
    command = [sys.executable, "-m", "det_keras", *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}\n{done.stderr}"


def close_context(namespace):
    """Close what a script leaves open until its process ends."""
    context = namespace.get("context")
    if isinstance(context, det.keras.KerasContext):
        context.close()
