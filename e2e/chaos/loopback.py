"""A loopback address of this run's own: other programs' ports on 127.0.0.1 are never taken for ours."""

from __future__ import annotations

import os
import socket

_PID = os.getpid()
HOST = f"127.{1 + _PID // 65536 % 250}.{_PID // 256 % 256}.{1 + _PID % 254}"
"""All of 127.0.0.0/8 is loopback on Linux."""


def free_port() -> int:
    """Return a port of our address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
