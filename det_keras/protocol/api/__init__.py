"""The calls of a master's REST API that the product makes: every path and every body is written here, once."""

from det_keras.protocol.api.api import Api

__all__ = ["Api"]
