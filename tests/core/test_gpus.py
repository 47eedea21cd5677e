"""GPUs are read through NVML's functions; here those of an object that implements them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from det_keras.core.gpus import load_nvml, open_gpus
from det_keras.core.system_metrics import SystemSampler


class NVMLError(Exception):
    pass


class Nvml:
    """The functions of `pynvml` for a number of GPUs."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, count=2, *, fails=(), as_bytes=False):
        self.count, self.fails, self.as_bytes = count, fails, as_bytes
        self.open = 0

    def _check(self, name, index=None):
        if name in self.fails or (name, index) in self.fails:
            raise NVMLError(name)

    def nvmlInit(self):  # noqa: N802 - NVML's names
        self._check("init")
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        self._check("count")
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return f"GPU-{handle}".encode() if self.as_bytes else f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        self._check("name", handle)
        name = f"GPU of kind {handle}"
        return name.encode() if self.as_bytes else name

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        self._check("memory", handle)
        return SimpleNamespace(total=1000, free=1000 - 100 * handle, used=100 * handle)

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        self._check("rates", handle)
        return SimpleNamespace(gpu=40 + handle, memory=7)

    def nvmlDeviceGetTemperature(self, handle, sensor):  # noqa: N802
        assert sensor == self.NVML_TEMPERATURE_GPU
        self._check("temperature", handle)
        return 60 + handle


FIRST = {"gpu_util": 40, "gpu_free_memory": 1000, "gpu_used_memory": 0, "gpu_temperature": 60}
SECOND = {"gpu_util": 41, "gpu_free_memory": 900, "gpu_used_memory": 100, "gpu_temperature": 61}


@pytest.mark.parametrize("as_bytes", [False, True])
def test_each_gpu_is_sampled_by_its_uuid(as_bytes):
    nvml = Nvml(as_bytes=as_bytes)
    sampler = SystemSampler([], open_gpus(nvml))
    assert sampler.sample()["gpu"] == {"GPU-0": FIRST, "GPU-1": SECOND}
    assert nvml.open == 1
    sampler.close()
    assert nvml.open == 0


@pytest.mark.parametrize(("what", "names"), [
    ("temperature", {"gpu_temperature"}),
    ("rates", {"gpu_util"}),
    ("memory", {"gpu_free_memory", "gpu_used_memory"}),
])  # fmt: skip
def test_what_a_gpu_does_not_support_is_missing(what, names):
    load = open_gpus(Nvml(fails=[(what, 1)])).sample()
    assert load["GPU-0"] == FIRST
    assert load["GPU-1"] == {name: value for name, value in SECOND.items() if name not in names}


@pytest.mark.parametrize(
    "nvml",
    [None, Nvml(fails=["init"]), Nvml(fails=["count"]), Nvml(0)],
    ids=["no-package", "no-driver", "no-access", "no-gpu"],
)
def test_machine_without_gpus_has_none(nvml):
    assert open_gpus(nvml) is None
    assert nvml is None or nvml.open == 0


def test_package_is_optional(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert load_nvml() is None


@pytest.mark.parametrize("as_bytes", [False, True])
def test_each_gpu_has_its_name(as_bytes):
    assert open_gpus(Nvml(as_bytes=as_bytes, fails=[("name", 0)])).names() == ["GPU of kind 1"]
