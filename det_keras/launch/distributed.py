"""Start a script on several processes.

    python3 -m det_keras.launch.distributed [--np N] [--engine ENGINE] -- python3 train.py ...

In a trial or job there is one process for each slot of the allocation; with one slot or none, the command runs
unchanged. If the allocation has several nodes, each container starts this launcher, which starts the ranks of its
node; see `launch/meeting.py`. Each line of rank R appears as ``[rank=R] line`` on the stream that it was printed
to. The exit code is 0 if every rank exited with 0, else that of the first that did not.

The launcher also decides over which engine the ranks exchange gradients: the builtin one, for which they inherit shared
memory and pipes, or Horovod, for which the launcher runs a rendezvous.

Why not ``horovodrun``: it marks lines in another way, kills its processes five seconds after a SIGTERM, which
is too soon for a checkpoint, starts each rank through a shell, and listens on every interface of the machine
without authentication. A script started by ``horovodrun`` works too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import math
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from det_keras.about import LOG_FORMAT
from det_keras.cluster_info import ClusterInfo, get_cluster_info
from det_keras.compat import with_determined
from det_keras.errors import ClusterInfoError, DetError
from det_keras.launch.command import become, cannot_start
from det_keras.launch.meeting import Connections, derive_key, host, join, meeting_ports
from det_keras.launch.network import LOOPBACK_INTERFACE, find_interface, free_port, host_name_problem, listen
from det_keras.launch.nodes import Nodes
from det_keras.launch.placement import Placement
from det_keras.launch.rank_group import RankGroup
from det_keras.protocol.engines import AUTO, BUILTIN, ENGINE_VARIABLE, ENGINES, HOROVOD, named_engine
from det_keras.workers.heartbeat import ADDRESS_VARIABLE, Heartbeats
from det_keras.workers.inherited import CHANNELS, ENDS_VARIABLE, Ends, SharedMemory
from det_keras.workers.rendezvous import LOOPBACK, Rendezvous

logger = logging.getLogger("det_keras.launch.distributed")

INSTALL_COMMAND = "python3 -m det_keras.launch.horovod_build"

_USAGE = "python3 -m det_keras.launch.distributed [--np N] [--trial MODULE:CLASS] [OPTIONS] -- COMMAND ..."

_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_DEFAULTS = {
    # The output of a rank appears as it is printed.
    "PYTHONUNBUFFERED": "1",
    # With Horovod's 30 s, a rank that is slow to import TensorFlow would count as dead.
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",
    # How long Horovod's thread sleeps between two rounds. Two ranks on two cores, 0.1 million floats: an exchange
    # takes 1.2, 1.5 and 2.2 ms at 0.1, 0.5 and 1 ms, and the rounds alone 36, 14 and 11 % of a core, which the
    # training needs itself.
    "HOROVOD_CYCLE_TIME": "0.5",
    # The size of a buffer in each rank; our gradients are already flat and need none.
    "HOROVOD_FUSION_THRESHOLD": str(64 << 20),
}
_MEETING_PORT = "INTER_TRAIN_PROCESS_COMM_PORT_1"
# horovodrun's own options, accepted for scripts that pass them, and the equivalent variables.
_TUNING = {
    "--cycle-time-ms": "HOROVOD_CYCLE_TIME",
    "--cache-capacity": "HOROVOD_CACHE_CAPACITY",
    "--gloo-timeout-seconds": "HOROVOD_GLOO_TIMEOUT_SECONDS",
    "--log-level": "HOROVOD_LOG_LEVEL",
    "--stall-check-warning-time-seconds": "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "--stall-check-shutdown-time-seconds": "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "--timeline-filename": "HOROVOD_TIMELINE",
}


def main(arguments: Sequence[str]) -> int:
    """Run a command on the ranks that `arguments` and the allocation define.

    Returns:
        The exit code. With a single rank, the command replaces this process and this function does not return.
    """
    logging.basicConfig(format=LOG_FORMAT, level=logging.INFO)
    parser = _parser()
    options = _parse(parser, arguments)
    try:
        info = get_cluster_info()
        placement = _placement(info, options.np)
    except ClusterInfoError as error:
        logger.error("%s", error)
        return 1
    argv = _command(parser, options)
    if shutil.which(argv[0]) is None:
        return cannot_start(argv[0], FileNotFoundError())
    if placement.size == 1:
        return become(argv, with_determined(os.environ, first=True))
    if "HOROVOD_RANK" in os.environ:
        parser.error(
            f"This process is already rank {os.environ['HOROVOD_RANK']} of a job. "
            "Start the script itself with horovodrun, or this launcher without it."
        )
    base = {**with_determined(os.environ, first=True), **options.tuning}
    try:
        engine = _choose_engine(options.engine, os.environ, info)
        with contextlib.ExitStack() as stack:
            listeners: list[socket.socket] = []
            if not placement.is_single and placement.node == 0 and engine != HOROVOD:
                listeners = [stack.enter_context(listen(placement.address)) for _ in range(CHANNELS)]
            terms = {"engine": engine, "engine_ports": [one.getsockname()[1] for one in listeners]}
            connections = stack.enter_context(
                contextlib.closing(_connect_nodes(info, placement, options, terms))
            )
            if connections.terms["engine"] != BUILTIN:
                _warn_about_horovod(placement)
            return _run_ranks(
                argv, info, placement, connections, base, options.hang_timeout_seconds, listeners
            )
    except DetError as error:
        logger.error("%s", error)
        return 1


def rank_environments(
    base: Mapping[str, str],
    placement: Placement,
    port: int | None,
    cores: int,
    *,
    chief_key: str,
    interface: str = LOOPBACK_INTERFACE,
) -> dict[int, dict[str, str]]:
    """Return the environment of each rank of this node, by rank.

    Args:
        base: inherited variables; its values for speed and threads take precedence over the defaults.
        placement: the ranks.
        port: port of this node's rendezvous for Horovod, on 127.0.0.1; None without Horovod.
        cores: number of cores that the ranks of this node share.
        chief_key: processes that hold this key can exchange objects with the ranks; only the ranks receive it.
        interface: the network interface that connects the ranks.
    """
    workers = placement.workers()
    threads = str(max(1, cores // len(workers)))
    common = {
        **_DEFAULTS,
        **dict.fromkeys(_THREADS, threads),
        "DET_CHIEF_KEY": chief_key,
        **base,
        "DET_CHIEF_IP": placement.chief_address,
        # The scope of the node's own ranks in the rendezvous; horovodrun's name for a single machine is localhost.
        "HOROVOD_HOSTNAME": "localhost" if placement.is_single else f"node-{placement.node}",
    }
    if port is not None:
        common |= {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": interface,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": LOOPBACK,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        }
    return {
        worker.rank: {
            **common,
            **{f"HOROVOD_{name.upper()}": str(value) for name, value in asdict(worker).items()},
        }
        for worker in workers
    }


def _choose_engine(chosen: str | None, environ: Mapping[str, str], info: ClusterInfo | None) -> str:
    """Return the engine, as the options, the environment or the config say.

    Raises:
        DetError: there is no such engine, or it is not installed.
    """
    config = {} if info is None else (info.trial.config if info.trial is not None else info.task_config)
    configured = (config.get("optimizations") or {}).get("collective_engine")
    name = chosen or named_engine(environ) or configured or AUTO
    has_horovod = importlib.util.find_spec("horovod") is not None
    if name == HOROVOD and not has_horovod:
        raise DetError(
            "The engine `horovod` is not installed. Leave it out for the builtin one, or install it with "
            f"`{INSTALL_COMMAND}`."
        )
    return BUILTIN if name == AUTO and not has_horovod else name


def _warn_about_horovod(placement: Placement) -> None:
    if (problem := host_name_problem(socket.gethostname(), placement)) is not None:
        logger.warning("%s", problem)
    if placement.is_single:
        logger.warning(
            "While Horovod's ranks connect, they listen on %s without authentication, where other accounts of this "
            "machine can reach them. `--engine builtin` opens no port.",
            LOOPBACK,
        )


def _connect_nodes(
    info: ClusterInfo | None, placement: Placement, options: argparse.Namespace, terms: dict[str, Any]
) -> Connections:
    """Connect this launcher with those of the other nodes; a job on one node has none.

    Args:
        info: the task.
        placement: the nodes.
        options: with timeouts.
        terms: what the launcher of the first node decides for all.
    """
    if info is None or placement.is_single:
        return Connections(terms={**terms, "port": free_port(LOOPBACK)})
    key, ports = derive_key(info, "launchers").encode(), meeting_ports(info.allocation_id)
    patience = {"timeout_s": options.node_timeout_seconds, "silence_s": options.hang_timeout_seconds}
    if placement.node > 0:
        return join(placement, key, ports, **patience)
    port = int(os.environ.get(_MEETING_PORT) or free_port(placement.address))
    return host(placement, key, ports, {**terms, "port": port}, **patience)


def _run_ranks(
    argv: Sequence[str],
    info: ClusterInfo | None,
    placement: Placement,
    connections: Connections,
    base: Mapping[str, str],
    patience_s: float,
    listeners: Sequence[socket.socket],
) -> int:
    is_single = info is None or placement.is_single
    interface, chief_key = LOOPBACK_INTERFACE, secrets.token_hex(32)
    terms = connections.terms
    if not is_single:
        assert info is not None
        chief_key = derive_key(info, "ranks")
        if terms["engine"] != BUILTIN:
            interface = find_interface(base, placement.address)
    with contextlib.ExitStack() as stack:
        rendezvous = (
            None if terms["engine"] == BUILTIN else stack.enter_context(_rendezvous(placement, connections))
        )
        channels: list[SharedMemory] = []
        if terms["engine"] != HOROVOD:
            local_size = placement.counts[placement.node]
            channels = [
                SharedMemory(local_size, listener=listener, port=port)
                for _, listener, port in zip_longest(range(CHANNELS), listeners, terms["engine_ports"])
            ]
        heartbeats = stack.enter_context(contextlib.closing(Heartbeats(patience_s)))
        # The rendezvous port of a DistributedContext made by the script; the master gives each of its tasks another.
        port = {_MEETING_PORT: str(terms["port"])}
        base = {**port, **base, ADDRESS_VARIABLE: heartbeats.address, **({} if is_single else port)}
        base[ENGINE_VARIABLE] = terms["engine"]
        environments = rank_environments(
            base,
            placement,
            None if rendezvous is None else rendezvous.port,
            len(os.sched_getaffinity(0)),
            chief_key=chief_key,
            interface=interface,
        )
        descriptors = {}
        if channels:
            for local_rank, rank in enumerate(environments):
                ends = [channel.ends(local_rank) for channel in channels]
                environments[rank][ENDS_VARIABLE] = Ends.to_text(ends)
                descriptors[rank] = [descriptor for one in ends for descriptor in one.descriptors]

        def when_started() -> None:
            for channel in channels:
                channel.close()
            if rendezvous is not None:
                rendezvous.serve()

        nodes = Nodes(placement, connections.events)
        try:
            group = RankGroup(argv, environments, heartbeats, nodes, descriptors)
            return group.run(when_started=when_started)
        except OSError as error:
            return cannot_start(argv[0], error)


def _rendezvous(placement: Placement, connections: Connections) -> Rendezvous:
    guests = connections.calls.values() if placement.node == 0 else ()
    return Rendezvous(chief=connections.calls.get(0), guests=guests)


def _placement(info: ClusterInfo | None, requested: int | None) -> Placement:
    if info is None:
        return Placement((requested or 1,))
    placement = Placement.of_task(info)
    slots = sum(info.container_slot_counts)
    if requested is None or requested == slots:
        return placement
    if not placement.is_single:
        raise ClusterInfoError(
            f"--np {requested} cannot be obeyed on an allocation of several nodes with {slots} slots, which gets a "
            "rank for each slot. Leave out --np."
        )
    logger.warning("Starting %d ranks, as --np says, on an allocation of %d slots.", requested, slots)
    return Placement((requested,))


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if options.command[:1] == ["--trial"]:
        # The original's order is accepted too: options, `--`, and then the trial.
        parser.parse_args(options.command, namespace=options)
    return options


def _command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    command: list[str] = options.command
    if options.trial is None and not command:
        parser.error("There is nothing to run. Give the command behind `--`, such as `-- python3 train.py`.")
    if options.trial is None:
        return command
    if command:
        parser.error(f"There is both --trial {options.trial} and a command, {command[0]!r}. Leave one out.")
    return [sys.executable, "-m", "det_keras.keras.generations.trial", options.trial]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="det_keras.launch.distributed",
        usage=_USAGE,
        description="Start a script on several processes.",
        allow_abbrev=False,
    )
    parser.set_defaults(tuning={})
    parser.add_argument(
        "--np",
        "-np",
        "--num-proc",
        type=_positive,
        metavar="N",
        help="number of processes; by default the number of the allocation's slots, 1 outside a trial or job",
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        help="what exchanges gradients; by default as `optimizations.collective_engine` says",
    )
    parser.add_argument("--trial", metavar="MODULE:CLASS", help="run this trial class instead of a command")
    parser.add_argument(
        "--autohorovod", action="store_true", help="run one slot without Horovod; this is always done"
    )
    parser.add_argument(
        "--hang-timeout-seconds",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="end all ranks when one is stopped or swapped out for this long; 30 by default",
    )
    parser.add_argument(
        "--node-timeout-seconds",
        type=_seconds,
        default=600.0,
        metavar="S",
        help="wait this long for the launchers of an allocation's other nodes; 600 by default",
    )
    parser.add_argument(
        "--fusion-threshold-mb", type=_megabytes, action=_Tune, metavar="MB", dest="HOROVOD_FUSION_THRESHOLD"
    )
    for option, variable in _TUNING.items():
        parser.add_argument(option, action=_Tune, dest=variable, help=f"sets {variable}", metavar="X")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


class _Tune(argparse.Action):
    """Records an environment variable for the ranks."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        namespace.tuning = {**namespace.tuning, self.dest: str(values)}


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of processes, 1 or more. Received: {text!r}.")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0. Received: {text!r}.")
    return seconds


def _megabytes(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of megabytes. Received: {text!r}.")
    return int(text) << 20


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
