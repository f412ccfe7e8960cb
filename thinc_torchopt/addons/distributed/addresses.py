"""Choose the network interface between machines. gloo uses the one of the machine's own name, which others often can't
reach: a container's, or the loopback.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_VARIABLE = "GLOO_SOCKET_IFNAME"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


def choose_interface(master: str, port: int, *, one_machine: bool) -> None:
    """Let gloo use the interface that reaches the master, unless the user has set one.

    one_machine (bool): Whether all ranks are on this machine. If not, the loopback is not used: the master's own name
        often resolves to it.
    """
    if os.environ.get(_VARIABLE):
        return
    name = interface_to(master, port)
    if name is not None and (one_machine or not _is_loopback(address_of(name))):
        os.environ[_VARIABLE] = name


def interface_to(host: str, port: int) -> str | None:
    """The name of the interface for packets to an address. None: unknown."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        own = probe.getsockname()[0]
        loopback = None
        for _, name in socket.if_nameindex():
            address = address_of(name)
            if address == own:
                return name
            if _is_loopback(address):
                loopback = name
        return loopback if _is_loopback(own) else None
    return None


def address_of(name: str) -> str | None:
    """The IPv4 address of an interface, if it has one and this is Linux."""
    if fcntl is None:
        return None
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)[20:24])
    return None


def _is_loopback(address: str | None) -> bool:
    return address is not None and address.startswith("127.")
