"""Devices that are not there: device plugins for a node of the lab, over the kubelet's own socket (API v1beta1).

The kubelet counts them, gives each to one container, and mounts into it what stands for its devices: an empty file
under /dev for each. Runs inside the node, and ends with it:

    python -m duplex_lab.device_plugin FOLDER RESOURCE=COUNT=PATH ...

PATH is where a device appears in a container, with {} for its number: nvidia.com/gpu=8=/dev/nvidia{}.
The few messages are written by hand (their field numbers are the API's): generated code would be larger than they are.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

SOCKETS: Final = Path("/var/lib/kubelet/device-plugins")
_KUBELET: Final = SOCKETS / "kubelet.sock"
_VERSION: Final = "v1beta1"
_LENGTH_DELIMITED: Final = 2
_VARINT_BYTE: Final = 0x7F


@dataclass(frozen=True)
class Devices:
    """Devices of one resource. `path`: where one appears in a container, with {} for its number."""

    resource: str
    count: int
    path: str

    @classmethod
    def parse(cls, text: str) -> Devices:
        """Read RESOURCE=COUNT=PATH."""
        resource, count, path = text.split("=")
        return cls(resource, int(count), path)

    def __str__(self) -> str:
        return f"{self.resource}={self.count}={self.path}"


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > _VARINT_BYTE:
        out.append(number & _VARINT_BYTE | 0x80)
        number >>= 7
    return bytes([*out, number])


def encoded(number: int, value: str | bytes) -> bytes:
    """Return a field of a message: a text or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(raw)) + raw


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number, value) of a message whose fields are all texts or messages."""
    at = 0

    def varint() -> int:
        nonlocal at
        result = shift = 0
        while True:
            byte = message[at]
            at += 1
            result |= (byte & _VARINT_BYTE) << shift
            shift += 7
            if byte <= _VARINT_BYTE:
                return result

    while at < len(message):
        number = varint() >> 3
        length = varint()
        yield number, message[at : at + length]
        at += length


class Plugin:
    """Serves one resource."""

    def __init__(self, devices: Devices, folder: Path) -> None:
        self._devices = devices
        self._folder = folder / devices.resource.replace("/", "_")
        self._folder.mkdir(parents=True, exist_ok=True)
        for number in range(devices.count):
            (self._folder / str(number)).touch()
        self._ended = threading.Event()
        self.socket = SOCKETS / f"{devices.resource.replace('/', '_')}.sock"
        self._server: Any = None

    def start(self) -> None:
        """Listen, and register with the kubelet. Raises grpc.RpcError."""
        self.socket.unlink(missing_ok=True)
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list),
            "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate),
        }
        service = grpc.method_handlers_generic_handler(f"{_VERSION}.DevicePlugin", handlers)
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix://{self.socket}")
        self._server.start()
        with grpc.insecure_channel(f"unix://{_KUBELET}") as channel:
            register = channel.unary_unary(f"/{_VERSION}.Registration/Register")
            name = encoded(2, self.socket.name) + encoded(3, self._devices.resource)
            register(encoded(1, _VERSION) + name, timeout=10)

    def stop(self) -> None:
        """Stop serving."""
        self._ended.set()
        if self._server is not None:
            self._server.stop(None)

    def _list(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        each = [encoded(1, str(number)) + encoded(2, "Healthy") for number in range(self._devices.count)]
        yield b"".join(encoded(1, device) for device in each)
        while context.is_active() and not self._ended.wait(1):
            pass

    def _allocate(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        answers = []
        for _, container in fields(request):
            taken = sorted(int(name) for _, name in fields(container))
            mounts = [
                encoded(1, self._devices.path.format(number)) + encoded(2, str(self._folder / str(number)))
                for number in taken
            ]
            answers.append(encoded(1, b"".join(encoded(2, mount) for mount in mounts)))
        return b"".join(answers)


def serve(folder: Path, devices: list[Devices]) -> None:
    """Serve for ever; a kubelet that restarts has forgotten its plugins and is told anew."""
    while True:
        plugins = [Plugin(each, folder) for each in devices]
        try:
            known = _KUBELET.stat().st_ino
            for plugin in plugins:
                plugin.start()
            sys.stderr.write(f"registered {', '.join(map(str, devices))}\n")
            while _KUBELET.stat().st_ino == known:
                time.sleep(0.5)
        except (OSError, grpc.RpcError) as error:
            sys.stderr.write(f"device plugins: {error}\n")
        for plugin in plugins:
            plugin.stop()
        time.sleep(0.5)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), [Devices.parse(text) for text in sys.argv[2:]])
