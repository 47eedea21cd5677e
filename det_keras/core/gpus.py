"""Reads the load of NVIDIA GPUs through NVML, the library of their driver."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def load_nvml() -> Any | None:
    """Return the module `pynvml` of the package `nvidia-ml-py`; None if it is not installed."""
    try:
        # Imported here: it is optional, and most machines have no GPU.
        import pynvml
    except ImportError:
        return None
    return pynvml


def open_gpus(nvml: Any | None) -> Gpus | None:
    """Return the GPUs of this machine; None without a driver or without GPUs.

    Args:
        nvml: the module `pynvml`, or an object with the same functions; None if there is none.
    """
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.debug("GPUs are not sampled: %s", error)
        return None
    try:
        gpus = Gpus(nvml)
    except nvml.NVMLError as error:
        logger.debug("GPUs are not sampled: %s", error)
        nvml.nvmlShutdown()
        return None
    if gpus.is_empty:
        gpus.close()
        return None
    return gpus


class Gpus:
    """The GPUs of this machine.

    Args:
        nvml: the module `pynvml`, or an object with the same functions; initialised.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        self._handles = {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}

    @property
    def is_empty(self) -> bool:
        """Whether there is no GPU."""
        return not self._handles

    def names(self) -> list[str]:
        """Return the name of each GPU, such as ``NVIDIA A100-SXM4-40GB``."""
        found = []
        for handle in self._handles.values():
            name = self._ask(functools.partial(self._nvml.nvmlDeviceGetName, handle))
            found += [] if name is None else [_text(name)]
        return found

    def sample(self) -> dict[str, dict[str, float]]:
        """Return the load of each GPU by its UUID.

        ``gpu_util`` in percent, ``gpu_free_memory`` and ``gpu_used_memory`` in bytes, ``gpu_temperature`` in degrees
        Celsius. What a GPU does not support is missing.
        """
        return {uuid: self._load_of(handle) for uuid, handle in self._handles.items()}

    def close(self) -> None:
        """Release the library."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            logger.debug("NVML did not shut down: %s", error)

    def _load_of(self, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        rates = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        celsius = self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        load: dict[str, float] = {}
        if rates is not None:
            load["gpu_util"] = rates.gpu
        if memory is not None:
            load.update(gpu_free_memory=memory.free, gpu_used_memory=memory.used)
        if celsius is not None:
            load["gpu_temperature"] = celsius
        return load

    def _ask(self, question: Callable[[], Any]) -> Any | None:
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def _text(name: str | bytes) -> str:
    # Older releases of the package return bytes.
    return name.decode() if isinstance(name, bytes) else name
