"""What CONTRIBUTING.md and the configs of the tools say of each other."""

from __future__ import annotations

import configparser
import re

from docs.pages import ROOT


def tox_config():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    return config


def test_hooks_run_the_tools_of_tox_in_the_locked_versions():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"entry: (.*)", hooks)
    config = tox_config()
    wanted = [*config["testenv:lint"]["commands"].split("\n"), config["testenv:types"]["commands"]]
    # A hook gets the files to check as arguments, and corrects them.
    tools = [command.removesuffix(".").replace("--check", "").strip() for command in wanted if command]
    assert len(entries) == len(tools) == 4
    for entry, tool in zip(entries, tools, strict=True):
        assert entry.startswith("uv run --isolated --locked ")
        assert tool in entry


def test_each_environment_is_described():
    config = tox_config()
    named = ",".join([config["tox"]["env_list"], *config["tox"]["labels"].replace("=", ",").split()])
    environments = set(re.findall(r"\w+", named)) - {"quick", "more", "versions"}
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.split("| Environment |")[1].split("\n\n")[0]
    names = " ".join(row.split("|")[1] for row in table.splitlines()[2:])
    # Those that neither `tox` nor a label starts.
    by_request = {name.removeprefix("testenv:") for name in config.sections()} & {
        "full",
        "horovod",
        "long",
        "mutation",
    }
    assert set(re.findall(r"`(\w+)`", names)) == environments | by_request
