"""`determined.experimental.keras`, provided by det_keras."""

from det_keras.experimental.keras import init

__all__ = ["init"]
