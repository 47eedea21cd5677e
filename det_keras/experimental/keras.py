"""`det.experimental.keras`, see `det_keras.keras.generations.experimental`."""

from det_keras.keras.generations.experimental import init

__all__ = ["init"]
