"""`determined.core`, provided by det_keras."""

from det_keras.core import *  # noqa: F403 - the same names
