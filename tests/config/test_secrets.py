from __future__ import annotations

from typing import Any

import pytest

from det_keras.config import JobConfig, hide_secrets, load_experiment_config, load_job_config, load_yaml
from det_keras.config.secrets import hide_arguments, without_secret_variables
from det_keras.errors import ConfigError

MASK = "********"

TEXT = """\
# how to reach the data
entrypoint: python3 train.py
data:
  bucket: public
  secrets:
    token: hunter2-token
    number: 123454321
    nested: {deep: hunter2-deep}
    nothing: null
    copy: &shared hunter2-shared
checkpoint_storage: {type: s3, bucket: b, access_key: hunter2-access, secret_key: hunter2-secret}
environment: {registry_auth: {username: me, password: hunter2-password}}
"""


def test_script_sees_the_real_values() -> None:
    config = load_experiment_config(TEXT).config

    assert config.data["secrets"]["token"] == config.to_dict()["data"]["secrets"]["token"] == "hunter2-token"
    assert config.to_dict()["checkpoint_storage"]["secret_key"] == "hunter2-secret"


def test_views_show_stars_for_each_top_level_secret() -> None:
    hidden = load_experiment_config(TEXT).config.hidden()

    assert hidden["data"] == {
        "bucket": "public",
        "secrets": dict.fromkeys(["token", "number", "nested", "nothing", "copy"], MASK),
    }
    assert (hidden["checkpoint_storage"]["access_key"], hidden["checkpoint_storage"]["secret_key"]) == (
        MASK,
        MASK,
    )
    assert hidden["environment"]["registry_auth"] == {
        "username": "me",
        "password": MASK,
        "serveraddress": None,
        "email": None,
    }


def test_original_text_is_written_anew_with_stars() -> None:
    hidden = hide_secrets(TEXT)

    assert "hunter2" not in hidden
    assert "123454321" not in hidden
    assert load_yaml(hidden)["data"]["bucket"] == "public"
    assert load_yaml(hidden)["checkpoint_storage"]["secret_key"] == MASK


def test_text_without_secrets_keeps_its_comments() -> None:
    text = "entrypoint: x  # the script\ndata: {secret: no secret}\n"

    assert hide_secrets(text) == text


def test_hiding_leaves_the_config_untouched() -> None:
    config = load_experiment_config(TEXT).config
    config.hidden()

    assert config.data["secrets"]["token"] == "hunter2-token"


@pytest.mark.parametrize("secrets", ["hunter2", ["hunter2"], 22])
def test_secrets_that_are_no_mapping_are_hidden_whole(secrets: Any) -> None:
    config = load_experiment_config({"entrypoint": "x", "data": {"secrets": secrets}}).config

    assert config.hidden()["data"] == {"secrets": MASK}


@pytest.mark.parametrize(
    "storage",
    [
        {"type": "azure", "container": "c", "connection_string": "hunter2"},
        {"type": "azure", "container": "c", "account_url": "u", "credential": "hunter2"},
    ],
    ids=["connection string", "credential"],
)
def test_credentials_of_azure_are_hidden(storage: dict[str, Any]) -> None:
    config = load_experiment_config({"entrypoint": "x", "checkpoint_storage": storage}).config

    assert "hunter2" in str(config.to_dict())
    assert "hunter2" not in str(config.hidden())


@pytest.mark.parametrize("field", ["tensorboard_storage", "data_layer"])
def test_credentials_in_dead_fields_are_hidden(field: str) -> None:
    raw = {"entrypoint": "x", field: {"type": "s3", "nested": [{"secret_key": "hunter2"}]}}

    assert "hunter2" not in str(load_experiment_config(raw).config.hidden())


def test_secrets_of_a_job_are_hidden() -> None:
    config: JobConfig = load_job_config({"entrypoint": "x", "data": {"secrets": {"a": "hunter2"}}}).config

    assert config.hidden()["data"] == {"secrets": {"a": MASK}}


def test_text_that_is_no_config_is_never_shown() -> None:
    with pytest.raises(ConfigError):
        hide_secrets("data: {secrets: [")


def test_secrets_given_by_an_override_are_hidden_in_the_original() -> None:
    loaded = load_experiment_config("entrypoint: x", overrides=["data.secrets.token=hunter2"])

    assert "hunter2" in loaded.original
    assert "hunter2" not in hide_secrets(loaded.original)


def shown(variables: Any) -> Any:
    """Return what people see of `environment_variables`."""
    config = without_secret_variables({"environment": {"environment_variables": variables}})
    return config["environment"]["environment_variables"]


@pytest.mark.parametrize(
    "name",
    [
        *("DB_PWD", "MYSQL_PWD", "PGPWD", "db_pwd", "PASSWORD"),
        *("OPENAI_KEY", "SSH_KEY", "ENCRYPTION_KEY", "KEY", "key", "AWS_SECRET_ACCESS_KEY", "MY_TOKEN"),
    ],
)
def test_variable_that_sounds_secret_shows_no_value(name: str) -> None:
    expected = f"{name}={MASK}"
    assert shown([f"{name}=hunter2"]) == [expected]
    assert shown({"cpu": [f"{name}=hunter2"], "cuda": [], "rocm": None}) == {
        "cpu": [expected],
        "cuda": [],
        "rocm": None,
    }
    assert shown({name: "hunter2", "LEVEL": "info"}) == {name: MASK, "LEVEL": "info"}
    assert shown([{name: 22}]) == [{name: MASK}]


@pytest.mark.parametrize(
    "variable", ["PWD=/work", "OLDPWD=/", "KEYBOARD=us", "MONKEY=1", "KEY_COUNT=3", "LEVEL=info", "DB_PWD"]
)
def test_other_variables_are_shown(variable: str) -> None:
    assert shown([variable]) == [variable]
    assert shown({"cuda": [variable]}) == {"cuda": [variable]}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgres://me:hunter2@db:5432/x", f"postgres://me:{MASK}@db:5432/x"),
        ("redis://:hunter2@cache", f"redis://:{MASK}@cache"),
        ("http://me:hun@ter2@proxy:80/a?b=c@d", f"http://me:{MASK}@proxy:80/a?b=c@d"),
        ("amqp://a:hunter2@b,amqp://c:hunter2@d", f"amqp://a:{MASK}@b,amqp://c:{MASK}@d"),
        ("http://proxy:80/a@b", "http://proxy:80/a@b"),
        ("http://me@proxy:80", "http://me@proxy:80"),
    ],
)
def test_passwords_in_urls_are_hidden(url: str, expected: str) -> None:
    assert shown([f"URL={url}"]) == [f"URL={expected}"]
    assert shown({"cpu": [f"URL={url}"]}) == {"cpu": [f"URL={expected}"]}
    assert shown({"URL": url}) == {"URL": expected}


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--password", "hunter2", "--lr", "3"], ["--password", MASK, "--lr", "3"]),
        (["--api-key", "-hunter2"], ["--api-key", MASK]),
        (["--password=hunter2 and more"], [f"--password={MASK}"]),
        (["--config", "data.token=hunter2"], ["--config", f"data.token={MASK}"]),
        (["TOKEN=hunter2", "python3", "a.py"], [f"TOKEN={MASK}", "python3", "a.py"]),
        (["sh", "-c", "a --secret 'hunter2 x' --lr 3"], ["sh", "-c", f"a --secret {MASK} --lr 3"]),
        (["sh", "-c", "env TOKEN=hunter2 a"], ["sh", "-c", f"env TOKEN={MASK} a"]),
        (['{"password": "hunter2", "lr": 3}'], ['{"password": %s, "lr": 3}' % MASK]),  # noqa: UP031 - braces
        (["https://me:hunter2@h/x"], [f"https://{MASK}@h/x"]),
        (["https://hunter2@h/x?a=1"], [f"https://{MASK}@h/x?a=1"]),
        (["https://h/x?a=1&token=hunter2&b=2"], [f"https://h/x?a=1&token={MASK}&b=2"]),
        (["-H", "Authorization: Bearer hunter2"], ["-H", f"Authorization: Bearer {MASK}"]),
        (["--with-token", "--lr", "3"], ["--with-token", "--lr", "3"]),
        (["train.py", "--lr=0.1", "a=b", "c:d", "/x@y"], ["train.py", "--lr=0.1", "a=b", "c:d", "/x@y"]),
    ],
)
def test_command_line_has_no_secrets(argv: list[str], shown: list[str]) -> None:
    assert hide_arguments(argv) == shown
    assert "hunter2" not in " ".join(hide_arguments(argv))


@pytest.mark.parametrize("character", ["a", "-", "=", ":", "/", "@", "'", " "])
def test_argument_of_a_megabyte_is_searched_in_linear_time(character: str) -> None:
    # An engine that begins anew at each character would take hours.
    (shown,) = hide_arguments([f"run {character * 1_000_000} --token=hunter2"])
    assert "hunter2" not in shown
