from __future__ import annotations

import subprocess
import sys

import pytest

from det_keras.cli.main import main

HEAVY = (
    "tensorflow",
    "keras",
    "numpy",
    "fastapi",
    "sqlalchemy",
    "httpx",
    "rich",
    "pydantic",
    "yaml",
    "psutil",
)

GOOD = """\
    name: good
    entrypoint: python3 train.py
    searcher: {name: single, metric: loss, max_length: {batches: 1}}
    """


@pytest.mark.parametrize("arguments", [["--help"], ["experiment", "create", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(arguments):
    code = f"""
import sys
from det_keras.cli.main import main
try:
    main({arguments!r})
except SystemExit as end:
    assert end.code == 0
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("config", "arguments", "reasons"),
    [
        (
            "sercher: {}\nentrypoint: x\nmax_restarts: -1\n",
            [],
            ["<config>.sercher: unknown key. Did you mean `searcher`?", "<config>.max_restarts: must be"],
        ),
        ("a: [1\nb: 2\n", [], ["<config>: const.yaml, line 2"]),
        (
            "name: n\nsearcher: {name: single, metric: loss}\n",
            [],
            ["<config>.entrypoint: an entrypoint is required"],
        ),
        (GOOD, ["--config", "searcher"], ["<config>: override 'searcher' is invalid"]),
        (GOOD, ["nowhere"], ["The context directory"]),
    ],
    ids=["unknown and wrong fields", "broken YAML", "no entrypoint", "bad override", "no directory"],
)
def test_a_mistake_is_told_line_by_line_before_a_master_is_started(det, config, arguments, reasons):
    det.write("const.yaml", config)

    done = det("experiment", "create", "const.yaml", *arguments)

    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == len(reasons)
    assert all(line.startswith(reason) for line, reason in zip(lines, reasons, strict=True))
    assert not det.home.exists()


def test_a_config_file_that_is_not_there_is_named(det):
    done = det("experiment", "create", "nowhere.yaml")

    assert done.stderr == "The config file 'nowhere.yaml' cannot be read: No such file or directory.\n"
    assert done.returncode == 1


def test_debug_shows_where_an_error_came_from(det):
    assert "Traceback" in det("--debug", "experiment", "create", "nowhere.yaml").stderr


@pytest.mark.parametrize("token", ["ü", "a\nb"])
def test_token_that_no_header_can_have_is_refused_in_one_sentence(det, token):
    done = det.with_variables(DET_USER_TOKEN=token)("-m", "http://127.0.0.1:1", "experiment", "list")
    assert done.returncode == 1
    assert done.stderr == (
        "Unauthenticated: what is in DET_USER_TOKEN is no token. Log in again with `det user login`.\n"
    )


def test_an_unreachable_master_is_one_line(det):
    done = det.with_variables(DET_USER_TOKEN="x")("-m", "http://127.0.0.1:1", "experiment", "list")

    assert done.returncode == 1
    assert done.stderr.startswith("No answer from the master at http://127.0.0.1:1")
    assert done.stderr.count("\n") == 1


def test_a_number_that_is_none_is_refused_by_the_command_line(capsys):
    with pytest.raises(SystemExit) as end:
        main(["experiment", "kill", "zero"])

    assert end.value.code == 2
    assert "must be a positive whole number, received 'zero'" in capsys.readouterr().err


def test_nothing_is_deleted_without_an_answer(det):
    done = det("experiment", "delete", "1")

    assert done.returncode == 1
    assert done.stderr == "Nothing was deleted.\n"
    assert not det.home.exists()


def test_a_closed_pipe_is_silent(det, stub):
    stub.answers["/api/v1/experiments"] = {"experiments": [experiment(number) for number in range(1500)]}
    process = det.with_variables(DET_MASTER=stub.url, DET_USER_TOKEN="x").start("experiment", "list")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()

    process.stdout.close()

    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 141


def experiment(number):
    return {
        "id": number,
        "name": f"name {number}",
        "state": "STATE_COMPLETED",
        "numTrials": 1,
        "startTime": "2026-01-02T03:04:05Z",
        "endTime": "2026-01-02T03:04:06Z",
        "username": "ann",
        "archived": False,
        "progress": 1.0,
    }


def test_list_asks_for_ones_own_and_prints_the_rest_objects_as_json(det, stub):
    stub.answers["/api/v1/experiments"] = {"experiments": [experiment(1)]}
    there = det.with_variables(DET_MASTER=stub.url, DET_USER_TOKEN="x")

    assert there.json("experiment", "list") == [experiment(1)]
    header, row = there.out("exp", "list", "--all").splitlines()
    assert header.split() == [
        "ID",
        "Name",
        "State",
        "Progress",
        "Trials",
        "Started",
        "Took",
        "Owner",
        "Archived",
    ]
    assert row.split()[:5] == ["1", "name", "1", "COMPLETED", "100%"]


def test_a_master_without_a_token_for_it_says_what_to_do(det, stub):
    done = det.with_variables(DET_MASTER=stub.url)("experiment", "list")

    assert done.returncode == 1
    assert done.stderr.startswith("Unauthenticated: there is no token for the master at")


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii"])
def test_text_that_the_output_cannot_show_is_replaced(det, stub, encoding):
    config = {"name": "日本 é"}
    stub.answers["/api/v1/experiments/1"] = {"experiment": {"id": 1, "config": config}, "config": config}
    variables = {"DET_MASTER": stub.url, "DET_USER_TOKEN": "x", "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-m", "det_keras.cli", "experiment", "config", "1"],
        env={**det.environment(), **variables}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding) == ("name: ?? ?\n" if encoding == "ascii" else "name: ?? é\n")


@pytest.mark.parametrize(
    ("redirection", "code", "said"), [(">&-", 0, ""), (">/dev/full", 1, "No space left on device")]
)
def test_output_that_takes_nothing_shows_no_traceback(det, redirection, code, said):
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "det_keras.cli", "version"],
        env=det.environment(), stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr, "Exception" in done.stderr) == (code, False, False)
    assert said in done.stderr
