"""Arguments of callbacks that Keras 2 took and Keras 3 refuses: scripts of Determined still pass them."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

# Keras 2 ignored them too.
_IGNORED = ("batch_size", "embeddings_data", "embeddings_layer_names", "write_grads")
_RENAMED = {"epsilon": "min_delta"}


def current_arguments(callback: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that Keras 3 takes; a notice names what was ignored or has another name now.

    Args:
        callback: name of the callback's class.
        arguments: as the script passes them, by name.
    """
    for name in sorted(arguments.keys() & set(_IGNORED)):
        logger.warning("`%s` of %s has no effect, as in Keras 2.", name, callback)
    for old, new in _RENAMED.items():
        if old in arguments:
            logger.warning("`%s` of %s is `%s` now.", old, callback, new)
    return {_RENAMED.get(name, name): value for name, value in arguments.items() if name not in _IGNORED}
