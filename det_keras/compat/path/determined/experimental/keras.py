"""`determined.experimental.keras`, answered by det_keras."""

from det_keras.experimental.keras import init

__all__ = ["init"]
