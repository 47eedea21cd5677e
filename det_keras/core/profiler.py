"""Reports the load of the machine and of the training during a training, from a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from det_keras.core.gpus import load_nvml, open_gpus

if TYPE_CHECKING:
    from det_keras.core.distributed import DistributedContext

logger = logging.getLogger(__name__)

# Ten samples, one a second, unless `on` is told otherwise.
_PERIOD_S = 10.0
_USUAL_SAMPLES = 10
_LOOKS_PER_PERIOD = 20
# Only a call of the operating system or of the GPU's driver that hangs takes longer; the thread is a daemon.
_CLOSE_TIMEOUT_S = 2.0


class Sampler(Protocol):
    """What takes the samples, such as a `SystemSampler`; it is created, used and closed on the profiler's thread."""

    def sample(self) -> Mapping[str, Mapping[str, object]]:
        """Return the metrics of each group by name."""

    def close(self) -> None:
        """Release all resources."""


class Probe(Protocol):
    """What is observed more often than it is reported; it is used on the profiler's thread."""

    def look(self) -> None:
        """Observe once."""

    def sample(self) -> Mapping[str, Mapping[str, object]]:
        """Return the metrics of each group by name since the last call."""


class Profiler:
    """Reports samples from its own thread until it is closed, the first one after a period.

    An error never leaves the thread: the first is logged, and the next sample is tried again.

    Args:
        report: records the metrics of a group; returns at once.
        make_sampler: returns what takes the samples.
        period_s: time between two samples, in seconds; 10 by default.
    """

    def __init__(
        self,
        report: Callable[[str, Mapping[str, object]], None],
        make_sampler: Callable[[], Sampler],
        *,
        period_s: float | None = None,
    ) -> None:
        self._report = report
        self._make_sampler = make_sampler
        self._period_s = _PERIOD_S if period_s is None else period_s
        self._has_failed = False
        self._probes: tuple[Probe, ...] = ()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="det-profiler", daemon=True)
        self._thread.start()

    def watch(self, *probes: Probe) -> None:
        """Add the metrics of probes to each sample, in place of earlier ones; none for no probe."""
        self._probes = probes

    def close(self) -> None:
        """Stop sampling; a second call has no effect."""
        self._closing.set()
        self._thread.join(timeout=_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            sampler = self._make_sampler()
        except Exception:
            self._log_failure()
            return
        while not self._closing.is_set():
            try:
                if not self._look_for_a_period():
                    break
                for group, metrics in self._sample(sampler).items():
                    self._report(group, metrics)
            except Exception:
                self._log_failure()
        try:
            sampler.close()
        except Exception:
            self._log_failure()

    def _look_for_a_period(self) -> bool:
        """Let the probes look until the next sample; return False if the profiler is being closed."""
        for _ in range(_LOOKS_PER_PERIOD):
            if self._closing.wait(self._period_s / _LOOKS_PER_PERIOD):
                return False
            probes = self._probes
            for probe in probes:
                try:
                    probe.look()
                except Exception:
                    # The load of the machine is still worth its samples.
                    self._log_failure()
                    self._probes = tuple(other for other in probes if other is not probe)
        return True

    def _sample(self, sampler: Sampler) -> Mapping[str, Mapping[str, object]]:
        found = {group: dict(metrics) for group, metrics in sampler.sample().items()}
        for probe in self._probes:
            for group, metrics in probe.sample().items():
                found.setdefault(group, {}).update(metrics)
        return found

    def _log_failure(self) -> None:
        """Log the exception that is being handled, the first time only."""
        if not self._has_failed:
            self._has_failed = True
            logger.warning(
                "System metrics are incomplete; the training is not affected. Set `profiling.enabled: false` in the "
                "config to turn them off.",
                exc_info=True,
            )


class ProfilerContext:
    """Reports the load of each machine and of the training on it, by the first worker of each machine.

    Args:
        workers: of the training.
        find_report: returns what records a machine's metrics; None if nothing records those of this machine.
    """

    def __init__(
        self,
        workers: DistributedContext,
        find_report: Callable[[], Callable[[str, Mapping[str, object]], None] | None],
    ) -> None:
        self._workers = workers
        self._find_report = find_report
        self._profiler: Profiler | None = None
        self._is_on = False

    def on(self, sampling_interval: float = 1.0, samples_per_report: int = 10) -> None:
        """Begin to report; all workers call it. A second call has no effect until `off`.

        Args:
            sampling_interval: with `samples_per_report` the time between two reports, in seconds.
            samples_per_report: see `sampling_interval`; counters cover the whole time, and gauges are read once.

        Raises:
            ValueError: an argument is not above 0.
        """
        for name, value in (
            ("sampling_interval", sampling_interval),
            ("samples_per_report", samples_per_report),
        ):
            if not value > 0:
                raise ValueError(f"`{name}` must be above 0. Received: {value!r}.")
        if self._is_on:
            return
        self._is_on = True
        pids = self._workers.gather_local(os.getpid())
        report = None if pids is None else self._find_report()
        if pids is not None and report is not None:
            period_s = _PERIOD_S * sampling_interval * samples_per_report / _USUAL_SAMPLES
            self._profiler = Profiler(report, lambda: sampler_of(pids), period_s=period_s)

    def off(self) -> None:
        """End the reports; a second call has no effect."""
        self._is_on = False
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.close()

    def watch(self, *probes: Probe) -> None:
        """Report the metrics of probes with the load, in place of earlier ones; none for no probe."""
        if self._profiler is not None:
            self._profiler.watch(*probes)


def sampler_of(pids: Iterable[int]) -> Sampler:
    """Return the sampler of this machine.

    Args:
        pids: the training's processes on this machine.
    """
    # Imported here, on the profiler's thread: psutil is not needed without a profiler.
    from det_keras.core.system_metrics import SystemSampler

    return SystemSampler(pids, open_gpus(load_nvml()))
