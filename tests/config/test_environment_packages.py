"""What a config may ask of the Python environment of its tasks."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import expconf

from det_keras.config import Environment, ExperimentConfig, load_experiment_config, load_job_config
from det_keras.errors import ConfigError

GIVEN = {"python": "/opt/py/bin/python", "pip": ["pandas<3", "x @ file:///x"], "requirements": "1.0"}


def environment(**fields: Any) -> Environment:
    return load_experiment_config({"entrypoint": "x", "environment": fields}).config.environment


def problems(**fields: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        environment(**fields)
    return [str(problem) for problem in caught.value.problems]


def test_fields_are_read_by_experiments_and_jobs() -> None:
    job = load_job_config({"entrypoint": "x", "environment": GIVEN}).config.environment
    for found in (environment(**GIVEN), job):
        assert (found.python, found.requirements) == ("/opt/py/bin/python", "1.0")
        assert found.pip == ("pandas<3", "x @ file:///x")
    assert (environment().python, environment().pip, environment().requirements) == (None, (), None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"python": "python3.12"}, "must be the absolute path of a Python interpreter"),
        ({"python": ""}, "must not be empty"),
        ({"pip": "pandas"}, "Write `[pandas]`"),
        ({"pip": "requirements.txt"}, "`requirements: requirements.txt`"),
        ({"pip": ["a\nb"]}, "must be one line of text"),
        ({"pip": ["-r more.txt"]}, "`environment.requirements`"),
        ({"pip": ["-e ."]}, "`environment.requirements`"),
        ({"pip": ["--constraint=c.txt"]}, "`environment.requirements`"),
        ({"pip": [3]}, "must be text"),
        ({"requirements": ["pandas"]}, "as `environment.pip`"),
        ({"requirements": "/etc/requirements.txt"}, "must be a path in the context directory"),
        ({"requirements": "../requirements.txt"}, "must be a path in the context directory"),
        ({"requirement": "requirements.txt"}, "Did you mean `requirements`?"),
        ({"pips": []}, "Did you mean `pip`?"),
    ],
)
def test_mistakes_are_named(fields: dict[str, Any], expected: str) -> None:
    (problem,) = problems(**fields)
    assert expected in problem


def test_all_mistakes_are_reported_at_once() -> None:
    assert len(problems(python="x", pip=["a", "", "-r b"], requirements="/c")) == 4


@pytest.mark.parametrize(
    "line", ["--find-links ./wheels", "--extra-index-url https://x", "./package", "-f wheels"]
)
def test_options_of_the_index_and_paths_are_accepted(line: str) -> None:
    assert environment(pip=[line]).pip == (line,)


def test_path_of_the_requirements_is_normal() -> None:
    assert environment(requirements="./a/r.txt").requirements == "a/r.txt"


def test_complete_config_has_them_as_variables_and_reads_them_back() -> None:
    config = load_experiment_config(
        {"entrypoint": "x", "environment": {**GIVEN, "environment_variables": ["A=1"]}}
    ).config
    complete = config.to_dict()["environment"]
    assert not {"python", "pip", "requirements"} & set(complete)
    assert [entry.partition("=")[0] for entry in complete["environment_variables"]] == [
        "A",
        "DET_KERAS_ENVIRONMENT_PYTHON",
        "DET_KERAS_ENVIRONMENT_PIP",
        "DET_KERAS_ENVIRONMENT_REQUIREMENTS",
    ]
    assert ExperimentConfig.from_dict(config.to_dict()) == config
    # They are no variables of the task.
    assert config.environment.environment_variables_for("cpu") == {"A": "1"}


def test_wrong_value_of_a_variable_is_named_by_its_field() -> None:
    (problem,) = problems(environment_variables=["DET_KERAS_ENVIRONMENT_PIP=pandas"])
    assert problem.startswith("<config>.environment.pip")


def test_generic_task_of_a_determined_master_has_no_unknown_key() -> None:
    loaded = load_job_config({"entrypoint": "x", "environment": {**GIVEN, "image": "i"}})
    assert set(loaded.portable["environment"]) == {"image", "environment_variables"}


@expconf.needs_schemas
def test_determined_accepts_the_complete_config() -> None:
    raw = {"name": "n", "entrypoint": "x", "environment": {**GIVEN, "image": "i"}, "hyperparameters": {}}
    storage = {"type": "shared_fs", "host_path": "/checkpoints"}
    complete = load_experiment_config(raw, default_storage=storage).config.to_dict()
    assert not expconf.problems(complete)
