"""Write OCI image archives (OCI image-spec 1.1: image layout, manifest, configuration) from folders.

For the images that no Dockerfile can make without a registry: the bases, and the pod sandbox. Same folders, same bytes:
owner, times and order are fixed, so the image's digest changes only with its content.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from duplex_lab.errors import LabError

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class ImageConfig:
    """How containers of an image start."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""

    def document(self) -> dict[str, Any]:
        """Return the configuration's `config` object; empty fields stay out."""
        values = {
            "Env": [f"{name}={value}" for name, value in self.environment.items()],
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "User": self.user,
            "WorkingDir": "/",
        }
        return {name: value for name, value in values.items() if value}


def architecture() -> str:
    """Return this machine's architecture as images name it."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise LabError(f"no images are made for {machine}: use a machine with one of {', '.join(_ARCHITECTURES)}")
    return _ARCHITECTURES[machine]


def write_archive(path: Path, name: str, layers: Sequence[Path], config: ImageConfig) -> None:
    """Write an archive for `ctr images import` and `buildah pull oci-archive:` with one layer per folder.

    `name` is a full reference with a tag, such as duplex.local/pause:1. Written whole or not at all.
    """
    unfinished = path.with_suffix(".unfinished")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(unfinished, "w") as archive:
        descriptors = [_add_layer(archive, layer, path.parent) for layer in layers]
        image = {
            "architecture": architecture(),
            "os": "linux",
            "config": config.document(),
            # Layers are not compressed, so the identity of their content is the digest of their blob.
            "rootfs": {"type": "layers", "diff_ids": [descriptor["digest"] for descriptor in descriptors]},
            # buildah refuses to build on layers that no history accounts for.
            "history": [{"created_by": "duplex-lab"} for _ in layers],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, **_add_blob(archive, _json(image))},
            "layers": descriptors,
        }
        entry = {
            "mediaType": _MANIFEST,
            **_add_blob(archive, _json(manifest)),
            "annotations": {
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1],
            },
            "platform": {"os": "linux", "architecture": architecture()},
        }
        _add_file(archive, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}))
        _add_file(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
    unfinished.replace(path)


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _add_file(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _add_blob(archive: tarfile.TarFile, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    _add_file(archive, f"blobs/sha256/{digest}", data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def _add_layer(archive: tarfile.TarFile, folder: Path, scratch: Path) -> dict[str, Any]:
    # By way of a file: layers are larger than what should be held in memory.
    with tempfile.TemporaryFile(dir=scratch) as layer:
        with tarfile.open(fileobj=layer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for child in sorted(folder.iterdir()):
                tar.add(child, child.name, filter=_anonymous)
        size = layer.tell()
        layer.seek(0)
        digest = hashlib.file_digest(layer, "sha256").hexdigest()
        layer.seek(0)
        entry = tarfile.TarInfo(f"blobs/sha256/{digest}")
        entry.size = size
        archive.addfile(entry, layer)
    return {"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": size}


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry
