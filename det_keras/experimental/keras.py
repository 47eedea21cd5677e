"""`det.experimental.keras`, see `det_keras.keras.experimental`."""

from det_keras.keras.experimental import init

__all__ = ["init"]
