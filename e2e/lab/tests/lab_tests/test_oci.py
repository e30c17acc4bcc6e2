"""Archives hold what the image specification asks for, and the same content gives the same bytes."""

import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from duplex_lab.oci import ImageConfig, write_archive


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    folder = tmp_path / "layer"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "tool").write_text("#!/bin/sh\n")
    (folder / "bin" / "tool").chmod(0o755)
    (folder / "bin" / "alias").symlink_to("tool")
    return folder


def read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


def blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    content = files["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
    assert hashlib.sha256(content).hexdigest() == descriptor["digest"].removeprefix("sha256:")
    assert len(content) == descriptor["size"]
    return content


def test_every_blob_is_found_by_its_digest(tmp_path: Path, layer: Path) -> None:
    config = ImageConfig(entrypoint=["/bin/tool"], environment={"A": "b"}, user="65532")
    write_archive(tmp_path / "image.tar", "duplex.local/tool:1", [layer], config)
    files = read(tmp_path / "image.tar")
    entry = json.loads(files["index.json"])["manifests"][0]
    assert entry["annotations"]["io.containerd.image.name"] == "duplex.local/tool:1"
    manifest = json.loads(blob(files, entry))
    image = json.loads(blob(files, manifest["config"]))
    assert image["config"] == {"Env": ["A=b"], "Entrypoint": ["/bin/tool"], "User": "65532", "WorkingDir": "/"}
    assert image["rootfs"]["diff_ids"] == [each["digest"] for each in manifest["layers"]]
    assert len(image["history"]) == len(manifest["layers"]) == 1
    (tmp_path / "layer.tar").write_bytes(blob(files, manifest["layers"][0]))
    with tarfile.open(tmp_path / "layer.tar") as content:
        assert content.getmember("bin/tool").mode == 0o755
        assert content.getmember("bin/alias").linkname == "tool"
        assert {(each.uid, each.gid, each.mtime) for each in content} == {(0, 0, 0)}


def test_times_and_owners_do_not_change_the_bytes(tmp_path: Path, layer: Path) -> None:
    write_archive(tmp_path / "first.tar", "a/b:1", [layer], ImageConfig())
    os.utime(layer / "bin" / "tool", (1, 1))
    write_archive(tmp_path / "second.tar", "a/b:1", [layer], ImageConfig())
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()


def test_content_changes_the_digest(tmp_path: Path, layer: Path) -> None:
    write_archive(tmp_path / "first.tar", "a/b:1", [layer], ImageConfig())
    (layer / "bin" / "tool").write_text("#!/bin/bash\n")
    write_archive(tmp_path / "second.tar", "a/b:1", [layer], ImageConfig())
    first, second = (json.loads(read(tmp_path / name)["index.json"]) for name in ("first.tar", "second.tar"))
    assert first["manifests"][0]["digest"] != second["manifests"][0]["digest"]


def test_a_failed_write_leaves_no_archive(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_archive(tmp_path / "image.tar", "a/b:1", [tmp_path / "missing"], ImageConfig())
    assert not (tmp_path / "image.tar").exists()
