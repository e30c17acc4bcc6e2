"""The command line: vLLM's flags, the connector's config, and what is refused."""

from __future__ import annotations

import json

import pytest

from duplex_connector.contract import Env
from duplex_connector.proof import GroupKind
from duplex_simulator.settings import Settings, SettingsError, parse


def _parse(*flags: str) -> Settings:
    return parse(["serve", "org/model", *flags], {})


def test_defaults_are_vllms() -> None:
    settings = _parse()
    assert settings.names == ("org/model",)
    assert (settings.port, settings.connector, settings.layout.prefix_caching) == (8000, None, True)
    assert [(group.kind, group.block_size) for group in settings.layout.groups] == [(GroupKind.FULL, 16)]


def test_the_operators_command_line_is_understood() -> None:
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_connector_module_path": "duplex_connector.nixl",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "bidirectional_kv_xfer": True,
            "kv_lease_duration": 20,
            "decoder_kv_blocks_ttl": 60,
            "kv_recompute_threshold": 0,
        },
    }
    flags = ["serve", "org/model", "--host", "0.0.0.0", "--port", "8001", "--served-model-name", "a", "b"]
    flags += ["--tensor-parallel-size", "4", "--block-size", "32", "--kv-transfer-config", json.dumps(config)]
    flags += ["--enable-prompt-tokens-details", "--shutdown-timeout", "30", "--no-enable-prefix-caching"]
    flags += ["--gpu-memory-utilization", "0.9", "--max_model_len", "4096"]
    env = {Env.SIDE_CHANNEL_HOST: "10.0.0.7", Env.SIDE_CHANNEL_PORT: "5601", "UCX_TCP_USER_TIMEOUT": "5s"}
    settings = parse(flags, env)
    assert settings.connector is not None
    assert settings.connector.network_patience == 5.0
    kv = settings.connector
    assert kv is not None
    assert (settings.host, settings.port, settings.names) == ("0.0.0.0", 8001, ("a", "b"))
    assert (settings.max_length, settings.shutdown_timeout, settings.token_details) == (4096, 30.0, True)
    assert (kv.host, kv.port, kv.guarded, kv.bidirectional, kv.recompute) == ("10.0.0.7", 5601, True, True, True)
    assert (kv.lease, kv.ttl, kv.threshold, kv.tensor_parallel) == (20.0, 60.0, 0, 4)
    assert not settings.layout.prefix_caching


def test_every_start_is_another_engine() -> None:
    config = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
    first, second = (_parse("--kv-transfer-config", config).connector for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.engine_id != second.engine_id
    assert (first.ttl, first.threshold, first.lease, first.bidirectional) == (480.0, 64, 30.0, False)


def test_groups_stand_in_vllms_order() -> None:
    layout = _parse("--sim-groups", "full,window:128,state").layout
    assert [group.kind for group in layout.groups] == [GroupKind.WINDOW, GroupKind.STATE, GroupKind.FULL]
    assert layout.groups[0].window_blocks == 128 // 16 + 1
    whole = _parse("--sim-groups", "full,window:128", "--disable-hybrid-kv-cache-manager").layout
    assert [group.kind for group in whole.groups] == [GroupKind.FULL]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--sim-groups", "half"], "none of full"),
        (["--sim-groups", "window:8,window:16"], "none of full"),
        (["--kv-transfer-config", "{"], "not JSON"),
        (["--kv-transfer-config", "{}"], "kv_role"),
        (["--kv-transfer-config", '{"kv_role": "kv_both", "kv_connector": "Other"}'], "not simulated"),
        (["--sim-blocks", "10"], "smaller than one request"),
        (["--enable-lora", "--lora-modules", "a"], "NAME=PATH"),
    ],
)
def test_what_cannot_be_served_is_refused(flags: list[str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        _parse(*flags)


def test_a_model_is_needed() -> None:
    with pytest.raises(SettingsError, match="name the model"):
        parse(["serve"], {})


def test_only_0_33_streams_the_params() -> None:
    assert _parse().streams_params
    assert not _parse("--sim-version", "0.32.0").streams_params
