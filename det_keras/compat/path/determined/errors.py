"""`determined.errors`, provided by det_keras."""

from det_keras.errors import *  # noqa: F403 - the same names
