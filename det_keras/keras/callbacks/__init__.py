"""Callbacks for scripts."""

from __future__ import annotations

from det_keras.keras.callbacks.callback import Callback
from det_keras.keras.callbacks.stateful import EarlyStopping, ReduceLROnPlateau
from det_keras.keras.callbacks.tensorboard import TensorBoard

__all__ = ["Callback", "EarlyStopping", "ReduceLROnPlateau", "TensorBoard"]
