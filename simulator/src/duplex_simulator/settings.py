"""The command line: vLLM's flags as far as they matter here, and the simulator's own."""

from __future__ import annotations

import argparse
import json
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from duplex_connector.contract import Env, Port
from duplex_connector.proof import Group, GroupKind

from .connector import ConnectorSettings
from .profile import PROFILES
from .sequence import Layout
from .template import TemplateKind

logger = logging.getLogger(__name__)

_TOKENIZERS: Final = ("word", "bpe-lossy")
_VERSIONS: Final = ("0.33.0", "0.32.0")
_LORA_PAIR: Final = 2


class SettingsError(ValueError):
    """The command line cannot be served; the text says what to change."""


@dataclass(frozen=True)
class Settings:
    """Everything that one engine process is told. `names`: what the API calls the model; `adapters`: name to path."""

    model: str
    names: tuple[str, ...]
    host: str
    port: int
    layout: Layout
    blocks: int
    max_length: int
    most_running: int
    chunk: int
    connector: ConnectorSettings | None
    adapters: Mapping[str, str] = field(default_factory=dict)
    token_details: bool = False
    shutdown_timeout: float = 0.0
    profile: str = "instant"
    time_scale: float = 1.0
    template: TemplateKind = TemplateKind.PLAIN
    tokenizer: str = "word"
    seed: int = 0
    version: str = "0.33.0"

    @property
    def streams_params(self) -> bool:
        """Return whether streamed answers carry kv_transfer_params: from 0.33 on."""
        return self.version != "0.32.0"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="duplex-simulator", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve the OpenAI API as vLLM does", allow_abbrev=False)
    serve.add_argument("model_tag", nargs="?", default=None, metavar="MODEL")
    vllm = serve.add_argument_group("flags of vLLM")
    vllm.add_argument("--model", default=None)
    vllm.add_argument("--host", default="127.0.0.1")
    vllm.add_argument("--port", type=int, default=Port.API)
    vllm.add_argument("--served-model-name", nargs="+", default=None)
    vllm.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    vllm.add_argument("--block-size", type=int, default=16)
    vllm.add_argument("--max-model-len", type=int, default=32_768)
    vllm.add_argument("--max-num-seqs", type=int, default=256)
    vllm.add_argument("--max-num-batched-tokens", type=int, default=8192)
    vllm.add_argument("--num-gpu-blocks-override", type=int, default=None)
    vllm.add_argument("--kv-transfer-config", default=None, help="JSON, as vLLM reads it")
    vllm.add_argument("--enable-prompt-tokens-details", action="store_true")
    vllm.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    vllm.add_argument("--disable-hybrid-kv-cache-manager", action="store_true")
    vllm.add_argument("--enable-lora", action="store_true")
    vllm.add_argument("--lora-modules", nargs="+", default=[], metavar="NAME=PATH")
    vllm.add_argument("--shutdown-timeout", type=float, default=0.0)
    own = serve.add_argument_group("flags of the simulator")
    own.add_argument("--sim-profile", choices=sorted(PROFILES), default="instant")
    own.add_argument("--sim-blocks", type=int, default=8192, help="blocks in the pool")
    own.add_argument("--sim-template", type=TemplateKind, choices=list(TemplateKind), default=TemplateKind.PLAIN)
    own.add_argument("--sim-tokenizer", choices=_TOKENIZERS, default="word")
    own.add_argument("--sim-seed", type=int, default=0, help="other weights: other answers")
    own.add_argument("--sim-time-scale", type=float, default=1.0, help="factor on computing and transfer times")
    own.add_argument("--sim-groups", default="full", help="KV-cache groups, as full,window:128,state")
    own.add_argument("--sim-version", choices=_VERSIONS, default=_VERSIONS[0])
    return parser


def _groups(text: str, block_size: int, *, whole_windows: bool) -> tuple[tuple[Group, ...], int]:
    """Return the groups in vLLM's order (what is not full attention first) and the window in tokens."""
    special, full, window = [], [], 0
    for part in text.split(","):
        kind, _, size = part.partition(":")
        match kind:
            case "full":
                full.append(Group(GroupKind.FULL, block_size))
            case "window" if size.isdecimal() and int(size) > 0 and window in {0, int(size)}:
                window = int(size)
                blocks = -(-window // block_size) + 1
                special.append(Group(GroupKind.WINDOW, block_size, blocks))
            case "state":
                special.append(Group(GroupKind.STATE, block_size))
            case _:
                raise SettingsError(f"--sim-groups: {part!r} is none of full, window:TOKENS (one size), state")
    if whole_windows and window:
        return (Group(GroupKind.FULL, block_size),), 0
    return (*special, *full), window


def _adapters(modules: Sequence[str]) -> dict[str, str]:
    pairs = [module.split("=", 1) for module in modules]
    if any(len(pair) != _LORA_PAIR for pair in pairs):
        raise SettingsError("--lora-modules takes NAME=PATH pairs")
    return dict(pairs)


def _connector(known: argparse.Namespace, env: Mapping[str, str]) -> ConnectorSettings | None:
    text = known.kv_transfer_config
    if text is None:
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"--kv-transfer-config is not JSON: {error}") from error
    if not isinstance(config, dict) or config.get("kv_role") not in {"kv_producer", "kv_consumer", "kv_both"}:
        raise SettingsError("--kv-transfer-config needs kv_role: kv_producer, kv_consumer or kv_both")
    if config.get("kv_connector") not in {"NixlConnector", "NixlPullConnector"}:
        raise SettingsError(f"kv_connector {config.get('kv_connector')!r} is not simulated: use NixlConnector")
    extra: dict[str, Any] = config.get("kv_connector_extra_config") or {}
    return ConnectorSettings(
        engine_id=config.get("engine_id") or str(uuid.uuid4()),
        host=env.get(Env.SIDE_CHANNEL_HOST, "localhost"),
        port=int(env.get(Env.SIDE_CHANNEL_PORT, str(Port.SIDE_CHANNEL))),
        guarded=bool(config.get("kv_connector_module_path")),
        bidirectional=bool(extra.get("bidirectional_kv_xfer", False)),
        recompute=config.get("kv_load_failure_policy", "fail") == "recompute",
        lease=float(extra.get("kv_lease_duration", 30)),
        ttl=float(extra.get("decoder_kv_blocks_ttl", 480)),
        threshold=int(extra.get("kv_recompute_threshold", 64)),
        tensor_parallel=known.tensor_parallel_size,
        network_patience=float(env.get("UCX_TCP_USER_TIMEOUT", "0").removesuffix("s")),
        publishes_generation=known.sim_version != "0.32.0",
    )


def parse(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of a command line; flags of vLLM that do not matter here are logged and ignored.

    Raises SettingsError, and SystemExit as argparse does.
    """
    env = os.environ if env is None else env
    spelled = [_dashed(argument) for argument in arguments]
    known, unknown = _parser().parse_known_args(spelled)
    if unknown:
        logger.info("flags of vLLM without effect on the simulator: %s", " ".join(unknown))
    model = known.model_tag or known.model
    if not model:
        raise SettingsError("name the model: duplex-simulator serve MODEL")
    whole = known.disable_hybrid_kv_cache_manager
    groups, window = _groups(known.sim_groups, known.block_size, whole_windows=whole)
    layout = Layout(groups, window, prefix_caching=known.enable_prefix_caching)
    blocks = known.num_gpu_blocks_override or known.sim_blocks
    if (blocks - 1) * known.block_size < known.max_model_len:
        raise SettingsError(
            f"the pool of {blocks} blocks of {known.block_size} tokens is smaller than one request of --max-model-len "
            f"{known.max_model_len}: raise --sim-blocks or lower --max-model-len"
        )
    return Settings(
        model=model,
        names=tuple(known.served_model_name or (model,)),
        host=known.host,
        port=known.port,
        layout=layout,
        blocks=blocks,
        max_length=known.max_model_len,
        most_running=known.max_num_seqs,
        chunk=known.max_num_batched_tokens,
        connector=_connector(known, env),
        adapters=_adapters(known.lora_modules) if known.enable_lora else {},
        token_details=known.enable_prompt_tokens_details,
        shutdown_timeout=known.shutdown_timeout,
        profile=known.sim_profile,
        time_scale=known.sim_time_scale,
        template=known.sim_template,
        tokenizer=known.sim_tokenizer,
        seed=known.sim_seed,
        version=known.sim_version,
    )


def _dashed(argument: str) -> str:
    """Spell `--max_model_len` as `--max-model-len`, as vLLM's parser does."""
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value
