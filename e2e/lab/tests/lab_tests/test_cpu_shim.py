"""What the CPU engine's plugin adds to streamed answers, and how it lets processes start."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from types import ModuleType
from typing import Any

import pytest

from duplex_lab.engine import IMAGE_FOLDER

HANDLE = {"remote_request_id": "cmpl-1", "duplex": {"last": "é"}}


@pytest.fixture
def shim() -> ModuleType:
    spec = importlib.util.spec_from_file_location("duplex_cpu_shim", IMAGE_FOLDER / "shim" / "duplex_cpu_shim.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, separators=(',', ':'), ensure_ascii=False)}\n\n"


def chunk(**choice: Any) -> dict[str, Any]:
    return {"id": "cmpl-1", "choices": [{"index": 0, **choice}]}


def read(text: str) -> dict[str, Any]:
    assert text.endswith("\n\n")
    seen: dict[str, Any] = json.loads(text.removeprefix("data: "))
    return seen


def test_the_finishing_chunk_has_the_params(shim: ModuleType) -> None:
    done = chunk(text="é", finish_reason="length")
    assert read(shim._completed(event(done), HANDLE)) == {**done, "kv_transfer_params": HANDLE}


def test_every_chunk_of_tokens_has_the_key(shim: ModuleType) -> None:
    more = chunk(delta={"content": "word"}, finish_reason=None)
    assert read(shim._completed(event(more), HANDLE)) == {**more, "kv_transfer_params": None}


@pytest.mark.parametrize(
    "text",
    [
        "data: [DONE]\n\n",
        event({"id": "cmpl-1", "choices": [], "usage": {"prompt_tokens": 3}}),
        event({"error": {"message": "Internal server error"}}),
        event(chunk(delta={"role": "assistant", "content": ""}, finish_reason=None)),
    ],
    ids=["end", "usage", "error", "opening"],
)
def test_other_events_stay_as_they_are(shim: ModuleType, text: str) -> None:
    assert shim._completed(text, HANDLE) == text


async def test_the_params_come_from_the_engines_last_result(shim: ModuleType) -> None:
    class Result:
        def __init__(self, params: dict[str, Any] | None) -> None:
            self.kv_transfer_params = params

    class Serving:
        async def generate(self, request: str, result_generator: Any) -> Any:
            async for _, result in result_generator:
                ended = result.kv_transfer_params is not None
                yield event(chunk(text=request, finish_reason="stop" if ended else None))
            yield "data: [DONE]\n\n"

    async def results() -> Any:
        yield 0, Result(None)
        yield 0, Result(HANDLE)

    shim._wrap(Serving, "generate")
    events = [each async for each in Serving().generate("word", results())]
    assert [read(each)["kv_transfer_params"] for each in events[:-1]] == [None, HANDLE]
    assert events[-1] == "data: [DONE]\n\n"


class Platform:
    """Stands for vLLM's CPU platform, which decides how processes start when a configuration is made."""

    @classmethod
    def check_and_update_config(cls, config: object) -> None:
        del config
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"


@pytest.mark.parametrize(
    ("bind", "threads", "method"), [("nobind", "1", "fork"), ("auto", "1", "spawn"), ("nobind", "2", "spawn")]
)
def test_processes_are_forked_where_openmp_has_no_threads_to_set_up(
    shim: ModuleType, monkeypatch: pytest.MonkeyPatch, bind: str, threads: str, method: str
) -> None:
    platforms = ModuleType("vllm.platforms.cpu")
    platform = type("CpuPlatform", (Platform,), {})
    monkeypatch.setattr(platforms, "CpuPlatform", platform, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", ModuleType("vllm.platforms"))
    monkeypatch.setitem(sys.modules, "vllm.platforms.cpu", platforms)
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "unset")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", bind)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    shim._fork_processes()
    platform().check_and_update_config(object())  # type: ignore[attr-defined] # of Platform
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == method
