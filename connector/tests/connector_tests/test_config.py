"""The transfer config of each kind of engine, against golden files: vLLM ignores a misspelt key in silence.

DUPLEX_REFRESH_GOLDEN=1 writes the files anew; what changed is then read in the diff before it is kept.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from duplex_connector.config import TransferSettings, kv_transfer_argument, kv_transfer_config
from duplex_connector.contract import Backend, ConnectorKind, Role

GOLDEN = Path(__file__).parent / "golden"

P5EN = TransferSettings(
    connector=ConnectorKind.GUARDED,
    backend=Backend.LIBFABRIC,
    buffer_device="cuda",
    role_is_both=True,
    lease_seconds=30,
    bidirectional=True,
    ttl_seconds=480,
    threshold_tokens=64,
)
SETTINGS = {
    "p5en-guarded": P5EN,
    "p5en-stock": replace(P5EN, connector=ConnectorKind.STOCK),
    "trainium-stock": replace(P5EN, connector=ConnectorKind.STOCK, role_is_both=False, neuron=True),
    "cpu-guarded": replace(P5EN, backend=Backend.UCX, buffer_device="cpu"),
}


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_golden(name: str, role: Role) -> None:
    path = GOLDEN / f"transfer-{name}-{role.value}.json"
    text = json.dumps(kv_transfer_config(role, SETTINGS[name]), indent=2) + "\n"
    if os.environ.get("DUPLEX_REFRESH_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs: if that is meant, run with DUPLEX_REFRESH_GOLDEN=1"


def test_ttl_and_threshold_do_not_reach_the_flags_of_guarded_engines() -> None:
    edited = replace(P5EN, ttl_seconds=30, threshold_tokens=4096, bidirectional=False)
    for role in Role:
        assert kv_transfer_config(role, edited) == kv_transfer_config(role, P5EN)


def test_ttl_and_threshold_are_flags_of_stock_engines() -> None:
    stock = replace(P5EN, connector=ConnectorKind.STOCK, ttl_seconds=30, threshold_tokens=4096)
    extra = kv_transfer_config(Role.DECODE, stock)["kv_connector_extra_config"]
    assert (extra["decoder_kv_blocks_ttl"], extra["kv_recompute_threshold"]) == (30, 4096)
    off = kv_transfer_config(Role.DECODE, replace(stock, bidirectional=False))["kv_connector_extra_config"]
    assert off["bidirectional_kv_xfer"] is False
    assert "decoder_kv_blocks_ttl" not in off


def test_roles_differ_only_in_kv_role_and_only_when_asked() -> None:
    assert kv_transfer_config(Role.PREFILL, P5EN) == kv_transfer_config(Role.DECODE, P5EN)
    per_role = replace(P5EN, role_is_both=False)
    prefill, decode = (kv_transfer_config(role, per_role) for role in Role)
    assert (prefill.pop("kv_role"), decode.pop("kv_role")) == ("kv_producer", "kv_consumer")
    assert prefill == decode


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_what_must_never_be_otherwise(settings: TransferSettings) -> None:
    for role in Role:
        config = kv_transfer_config(role, settings)
        guarded = settings.connector is ConnectorKind.GUARDED
        assert config["kv_load_failure_policy"] == ("recompute" if guarded else "fail")
        assert "engine_id" not in config
        assert config["kv_connector_extra_config"]["backends"] == [settings.backend.value]


def test_the_argument_is_the_config_as_json() -> None:
    assert json.loads(kv_transfer_argument(Role.PREFILL, P5EN)) == kv_transfer_config(Role.PREFILL, P5EN)
