"""`determined.keras.callbacks`, provided by det_keras."""

from det_keras.keras.callbacks import *  # noqa: F403 - the same names
