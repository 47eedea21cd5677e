"""Masks the secrets of a config, which only the task itself may read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from det_keras.config.yaml_text import dump_yaml, load_yaml

# Does not match `PWD` and `OLDPWD`, which shells set to directories.
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASS|CREDENTIAL|(?:API|ACCESS|PRIVATE|AUTH)_?KEY|(?:^|_)KEY\s*$|(?<!^OLD)(?<!^)PWD",
    re.IGNORECASE,
)
# Matches up to the last `@`: passwords may contain others.
_PASSWORD_IN_URL = re.compile(r"(://[^\s/?#:@]*:)[^\s/]+(?=@)")
# A token may stand in the place of the user.
_USER_IN_URL = re.compile(r"(://)[^\s/]+(?=@)")
# `name=value`, `name: value` and `"name": "value"`, anywhere in an argument. Only where a name begins: tried at each
# character of a long argument without a blank, it would take minutes.
_ASSIGNMENT = re.compile(r"""(?<![\w.-])([\w.-]+)(["']?\s*[=:]\s*)("[^"]*"|'[^']*'|(?!//)[^\s,;&?}\]'"]+)""")
_WHOLE_ASSIGNMENT = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)
_AUTHORIZATION = re.compile(r"\b((?:Bearer|Basic)\s+)\S+", re.IGNORECASE)
# The option of a command that an argument contains, with its value.
_OPTION = re.compile(r"""((?<!\S)--?[\w-]+)(\s+)("[^"]*"|'[^']*'|(?!--)\S+)""")

#: Replaces a secret of any type in views.
MASK = "********"

_CREDENTIALS = frozenset({"access_key", "secret_key", "connection_string", "credential", "password"})
# `tensorboard_storage` and `data_layer` have no effect, but old configs have keys of buckets in them.
_WITH_CREDENTIALS = ("checkpoint_storage", "environment", "tensorboard_storage", "data_layer", "integrations")


def masked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `config` in which every secret is replaced by `MASK`.

    Secrets are the entries of `data.secrets` and the credentials of storages and registries.
    """
    result = dict(config)
    data = result.get("data")
    if isinstance(data, Mapping) and data.get("secrets") is not None:
        result["data"] = {**data, "secrets": _without_values(data["secrets"])}
    for section in _WITH_CREDENTIALS:
        if section in result:
            result[section] = _without_credentials(result[section])
    return result


def without_masked(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `checkpoint_storage` section without the values that a master hides.

    An object store then takes the credentials that its own tools find on this machine.
    """
    return {name: value for name, value in section.items() if value != MASK}


def without_secret_variables(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `config` for display, without the secrets in its variables.

    These are the values of variables with names like `TOKEN`, and passwords in URLs.
    Configs for programs keep these values: a config that is submitted again needs them.
    """
    environment = config.get("environment")
    if not isinstance(environment, Mapping):
        return dict(config)
    variables = _without_secret_values(environment.get("environment_variables"))
    return {**config, "environment": {**environment, "environment_variables": variables}}


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `config` without the secrets of `masked` and of `without_secret_variables`."""
    return without_secret_variables(masked(config))


def secret_values(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the texts that `without_secrets` hides; numbers as text."""
    return frozenset(value for value in _replaced(config, without_secrets(config)) if value != MASK)


def hide_secrets(original_text: str) -> str:
    """Return the YAML text of a config with its secrets masked; unchanged if it has none.

    Raises:
        ConfigError: the text is not a config, so its secrets cannot be found.
    """
    config = load_yaml(original_text)
    hidden = masked(config)
    return original_text if hidden == config else dump_yaml(hidden)


def hide_arguments(argv: Iterable[str]) -> list[str]:
    """Return a command line with its secrets masked.

    These are the values of options and assignments with names like `token` (``--password x``, ``--password=x``,
    ``token=x``, also inside of an argument), users and passwords in URLs, and headers such as ``Bearer x``.

    Args:
        argv: the arguments.
    """
    hidden, is_value = [], False
    for argument in argv:
        is_option = argument.startswith("-")
        if is_value and not argument.startswith("--"):
            hidden.append(MASK)
            is_value = False
            continue
        is_value = is_option and "=" not in argument and _sounds_secret(_variable(argument))
        hidden.append(_hide_in(argument))
    return hidden


def _hide_in(argument: str) -> str:
    def hide(found: re.Match[str]) -> str:
        name, between, value = found.groups()
        return f"{name}{between}{MASK if _sounds_secret(_variable(name)) else value}"

    whole = _WHOLE_ASSIGNMENT.fullmatch(argument)
    if whole is not None and _sounds_secret(_variable(whole[1])):
        return f"{whole[1]}={MASK}"
    hidden = _AUTHORIZATION.sub(rf"\g<1>{MASK}", _USER_IN_URL.sub(rf"\g<1>{MASK}", argument))
    return _OPTION.sub(hide, _ASSIGNMENT.sub(hide, hidden))


def _variable(option: str) -> str:
    """Return the name of an option as that of a variable."""
    return option.strip("-").replace("-", "_").replace(".", "_")


def _without_secret_values(variables: Any) -> Any:
    if isinstance(variables, Mapping):
        return {
            key: MASK if item is not None and _sounds_secret(str(key)) else _without_secret_values(item)
            for key, item in variables.items()
        }
    if isinstance(variables, list):
        return [_without_secret_values(item) for item in variables]
    if not isinstance(variables, str):
        return variables
    name, equals, _ = variables.partition("=")
    if equals and _sounds_secret(name):
        return f"{name}={MASK}"
    return _PASSWORD_IN_URL.sub(rf"\g<1>{MASK}", variables)


def _replaced(value: Any, hidden: Any) -> Iterator[str]:
    """Yield the parts of `value` in whose place `hidden` has the mask."""
    if hidden == MASK:
        yield from _texts(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _replaced(item, hidden[key])
    elif isinstance(value, list):
        for item, its in zip(value, hidden, strict=True):
            yield from _replaced(item, its)
    elif isinstance(value, str) and value != hidden:
        pattern = "(.*)".join(re.escape(part) for part in hidden.split(MASK))
        found = re.fullmatch(pattern, value, re.DOTALL)
        yield from found.groups() if found is not None else ()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value not in (None, "") and not isinstance(value, bool):
        yield str(value)


def _sounds_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _without_values(secrets: Any) -> Any:
    return dict.fromkeys(secrets, MASK) if isinstance(secrets, Mapping) else MASK


def _without_credentials(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: MASK if key in _CREDENTIALS and item is not None else _without_credentials(item)
            for key, item in value.items()
        }
    return [_without_credentials(item) for item in value] if isinstance(value, list) else value
