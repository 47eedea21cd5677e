"""Copies of configs among the files of a context directory: ``det experiment create const.yaml .`` sends one.

The script receives its config from the master, with the secrets. In the copy they would be readable wherever the code
is: in the API, on pages and in each checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from det_keras.config.secrets import secret_values, without_secrets
from det_keras.config.yaml_text import dump_yaml, load_yaml
from det_keras.errors import ConfigError

#: Larger files are no configs: with all defaults, a config may have 128 KiB.
MOST_BYTES = 128 << 10

_ENTRYPOINT = "entrypoint"


def is_candidate(content: bytes, secrets: Collection[str]) -> bool:
    """Return whether a file may be a config with secrets; quick, while `conceal` parses it."""
    if len(content) > MOST_BYTES:
        return False
    return _ENTRYPOINT.encode() in content or any(secret.encode() in content for secret in secrets)


def conceal(content: bytes, secrets: Collection[str]) -> bytes:
    """Return the content of a file, with masked secrets if it is a config.

    A file is a config if it has an entrypoint, or one of `secrets` where a config has its secrets. So the other configs
    of the directory are masked too, and the submitted one also if the command line replaced its secrets.

    Args:
        content: of the file.
        secrets: those of the submitted config.
    """
    if not is_candidate(content, secrets):
        return content
    try:
        text = content.decode()
        config = load_yaml(text)
    except (UnicodeDecodeError, ConfigError):
        return content
    own = secret_values(config)
    if not own or not (_ENTRYPOINT in config or own.intersection(secrets)):
        return content
    # Written anew: comments could hold the secrets too. A script may read its config as JSON, and JSON is YAML.
    hidden = without_secrets(config)
    is_json = text.lstrip().startswith("{")
    return (json.dumps(hidden, indent=2) if is_json else dump_yaml(hidden)).encode()
