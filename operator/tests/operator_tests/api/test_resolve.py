"""Computed defaults."""

from __future__ import annotations

import pytest

from duplex_connector.contract import Backend, ConnectorKind
from duplex_operator.api import resolve
from duplex_operator.api.instances import INSTANCE_TYPES, instance_type
from duplex_operator.api.resolve import image_version
from operator_tests.api.cel_cases import CPU, NEURON
from operator_tests.api.objects import serving


def test_the_smallest_serving_on_p5en() -> None:
    resolved = resolve(serving().spec)
    assert (resolved.version, resolved.served_name) == ("0.33.0", "Qwen/Qwen3-32B")
    assert (resolved.connector, resolved.backend) == (ConnectorKind.GUARDED, Backend.LIBFABRIC)
    assert (resolved.block_size, resolved.buffer_device) == (16, "cuda")
    assert (resolved.bidirectional, resolved.streams, resolved.fabric) == (True, True, True)
    assert (resolved.prefill.devices, resolved.prefill.tensor_parallel_size, resolved.prefill.efa) == (8, 8, 16)


def test_cpu_has_no_devices_and_moves_kv_over_tcp() -> None:
    resolved = resolve(serving(**CPU).spec)
    assert (resolved.backend, resolved.buffer_device, resolved.block_size) == (Backend.UCX, "cpu", 32)
    assert (resolved.decode.devices, resolved.decode.efa, resolved.decode.tensor_parallel_size) == (0, 0, 1)


def test_neuron_is_stock_without_reuse_unless_asked() -> None:
    resolved = resolve(serving(**NEURON).spec)
    assert (resolved.connector, resolved.backend) == (ConnectorKind.STOCK, Backend.LIBFABRIC)
    assert (resolved.buffer_device, resolved.block_size, resolved.neuron) == ("cuda", 32, True)
    assert (resolved.bidirectional, resolved.streams) == (False, False)
    asked = serving(**NEURON, kvTransfer={"bidirectional": {"enabled": True}})
    assert resolve(asked.spec).bidirectional
    assert resolved.prefill.cores == 64


@pytest.mark.parametrize(
    ("image", "version", "on"),
    [("vllm:v0.25.1", "0.25.1", False), ("vllm:v0.26.0", "0.26.0", True), ("vllm:0.99.0", "0.99.0", False)],
)
def test_reuse_is_on_only_where_expired_reads_are_declined(image: str, version: str, *, on: bool) -> None:
    resolved = resolve(serving(engine={"image": image, "connector": "Stock"}).spec)
    assert (resolved.version, resolved.bidirectional) == (version, on)


def test_streaming_needs_033_or_the_feature() -> None:
    assert not resolve(serving(engine={"image": "vllm:v0.32.0"}).spec).streams
    assert resolve(serving(engine={"image": "vllm:v0.32.0", "features": ["StreamsKVParams"]}).spec).streams


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.33.0", "0.33.0"),
        ("registry:5000/vllm:0.33.0@sha256:" + "a" * 64, "0.33.0"),
        ("registry:5000/vllm", ""),
        ("vllm:nightly", ""),
        ("neuron:0.24.0.1.1.0-neuronx-py313", ""),
    ],
)
def test_version_of_an_image(image: str, version: str) -> None:
    assert image_version(image) == version


@pytest.mark.parametrize(
    ("source", "model"),
    [
        (None, "Qwen/Qwen3-32B"),
        ({"hub": {}}, "Qwen/Qwen3-32B"),
        ({"pvc": {"claimName": "w", "path": "a/b"}}, "/models/a/b"),
        ({"pvc": {"claimName": "w"}}, "/models"),
        ({"hostPath": {"path": "/data/m"}}, "/models"),
        ({"s3": {"uri": "s3://bucket/m"}}, "s3://bucket/m"),
    ],
)
def test_what_the_engine_loads(source: dict[str, object] | None, model: str) -> None:
    assert resolve(serving(model={"source": source}).spec).engine_model == model


def test_tensor_parallel_size_says_the_gpus_too() -> None:
    role = resolve(serving(prefill={"tensorParallelSize": 4}, decode={"acceleratorsPerPod": 2}).spec)
    assert (role.prefill.devices, role.prefill.efa) == (4, 8)
    assert (role.decode.devices, role.decode.tensor_parallel_size, role.decode.efa) == (2, 2, 4)


@pytest.mark.parametrize(
    ("name", "devices", "efa"),
    [
        ("p5.48xlarge", 2, 8),
        ("p5.48xlarge", 4, 16),
        ("p5en.48xlarge", 8, 16),
        ("p5en.48xlarge", 1, 2),
        ("p6-b200.48xlarge", 8, 8),
        ("p6-b300.48xlarge", 1, 2),
        ("p4d.24xlarge", 1, 1),
        ("p4d.24xlarge", 8, 4),
        ("g6e.48xlarge", 3, 2),
        ("trn1.32xlarge", 16, 8),
        ("trn1.32xlarge", 1, 1),
        ("trn2.48xlarge", 8, 8),
    ],
)
def test_share_of_efa_interfaces(name: str, devices: int, efa: int) -> None:
    assert instance_type(name).efa_for(devices) == efa


def test_hyperpod_types_are_the_same_machines() -> None:
    assert instance_type("ml.p5en.48xlarge") is instance_type("p5en.48xlarge")


def test_every_type_with_devices_has_efa_and_a_resource() -> None:
    for instance in INSTANCE_TYPES:
        assert (instance.efa > 0, instance.resource is not None) == (instance.devices > 0,) * 2
