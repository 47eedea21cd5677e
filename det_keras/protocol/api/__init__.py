"""The calls of a master's REST API that the product makes; every path and body is defined only here."""

from det_keras.protocol.api.api import Api

__all__ = ["Api"]
