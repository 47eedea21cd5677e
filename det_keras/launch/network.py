"""The names, addresses and interfaces of this machine, as Horovod's connections use them."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Mapping

from det_keras.errors import DetError
from det_keras.launch.placement import Placement
from det_keras.protocol.values import is_loopback
from det_keras.workers.rendezvous import LOOPBACK

# The network interface that connects the ranks of one machine; other machines cannot reach it.
LOOPBACK_INTERFACE = "lo"

_SIOCGIFADDR = 0x8915


def host_name_problem(name: str, placement: Placement) -> str | None:
    """Return the problem with this machine's name, None if there is none.

    Horovod 0.28.1 ignores `HOROVOD_GLOO_IFACE` for one of its two groups of connections: each rank then listens on
    the address that the machine's name resolves to (``GlooContext::InitializeForProcessSet``).

    Args:
        name: the machine's name.
        placement: the nodes; on several, the other nodes have to reach that address.
    """
    own = LOOPBACK if placement.is_single else placement.address
    advice = f"Add the line `{own} {name}` to /etc/hosts."
    try:
        address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        return (
            f"The name of this machine, {name!r}, does not resolve ({error}), and Horovod needs it. {advice}"
        )
    if is_loopback(address) == is_loopback(own):
        return None
    found = f"The name of this machine, {name!r}, resolves to {address}. Horovod listens there, and other"
    if placement.is_single:
        return f"{found} machines may reach it. {advice}"
    return f"{found} nodes cannot reach it. {advice}"


def find_interface(environ: Mapping[str, str], address: str) -> str:
    """Return the network interface over which the ranks of several nodes communicate.

    Raises:
        DetError: no interface of this machine has the address.
    """
    if chosen := environ.get("DET_INTER_NODE_NETWORK_INTERFACE"):
        return chosen
    if is_loopback(address):
        return LOOPBACK_INTERFACE
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            request = struct.pack("256s", name.encode()[:15])
            found = fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24]
            if socket.inet_ntoa(found) == address:
                return name
    raise DetError(
        f"No network interface has {address}, the address of this node in rendezvous.json. Set "
        "`task_container_defaults.dtrain_network_interface` of the master, or DET_INTER_NODE_NETWORK_INTERFACE."
    )


def listen(address: str) -> socket.socket:
    """Return a socket that listens at a free port of an address of this machine.

    Raises:
        DetError: it is not an address of this machine.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        listener.bind((address, 0))
        listener.listen()
    except OSError as error:
        listener.close()
        raise DetError(
            f"This launcher cannot listen on {address}, the address of this node in rendezvous.json: "
            f"{error.strerror}."
        ) from error
    return listener


def free_port(address: str) -> int:
    """Return a port of an address of this machine that is currently not in use.

    Raises:
        DetError: it is not an address of this machine.
    """
    with listen(address) as probe:
        port: int = probe.getsockname()[1]
        return port
