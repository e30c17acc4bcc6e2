"""What the router does to engines, leg by leg, with token-id prompts: the client of the suite."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from duplex_connector.contract import LEASE_MODEL, Duplex, Metric, Params, Role

from .variants import MODEL, Running

COLD: Final = {
    Params.DO_REMOTE_DECODE: True,
    Params.DO_REMOTE_PREFILL: False,
    Params.ENGINE_ID: None,
    Params.BLOCK_IDS: None,
    Params.HOST: None,
    Params.PORT: None,
}
ALONE: Final = {Params.DO_REMOTE_PREFILL: False, Params.DO_REMOTE_DECODE: False}
COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"


T = TypeVar("T")


class NoAnswerError(Exception):
    """Nothing came within the time: the request hangs, or the engine is gone."""


@dataclass(frozen=True)
class Reply:
    """An HTTP answer."""

    status: int
    body: dict[str, Any]
    seconds: float

    @property
    def params(self) -> dict[str, Any]:
        """Return the kv_transfer_params; empty where there are none."""
        return self.body.get(Params.FIELD) or {}

    @property
    def duplex(self) -> dict[str, Any]:
        """Return the guarded connector's part of the params."""
        return self.params.get(Params.DUPLEX) or {}

    @property
    def choice(self) -> dict[str, Any]:
        """Return the only choice."""
        choice: dict[str, Any] = self.body["choices"][0]
        return choice

    @property
    def tokens(self) -> list[int]:
        """Return the generated token ids."""
        tokens: list[int] = self.choice["token_ids"]
        return tokens

    @property
    def cached(self) -> int:
        """Return how many prompt tokens were not computed, by usage."""
        return int((self.body["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def request(url: str, path: str, body: Mapping[str, Any] | None = None, *, seconds: float = 60.0) -> Reply:
    """Send a request and return the answer, of whatever status; raises NoAnswerError."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)
    started = time.monotonic()
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request("GET" if data is None else "POST", path, data, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(f"{url}{path}: {error!r} after {time.monotonic() - started:.1f} s") from error
    finally:
        connection.close()
    seen = json.loads(text) if text.startswith("{") else {"text": text}
    return Reply(answer.status, seen, time.monotonic() - started)


def event_data(url: str, path: str, body: Mapping[str, Any], *, seconds: float) -> list[str]:
    """Return the data of each event of a streamed answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)
    try:
        data = json.dumps({**body, "stream": True}).encode()
        connection.request("POST", path, data, {"content-type": "application/json"})
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def stream(url: str, path: str, body: Mapping[str, Any], *, seconds: float = 60.0) -> list[dict[str, Any]]:
    """Return the chunks of a streamed answer; the last event must be `[DONE]`."""
    events = event_data(url, path, body, seconds=seconds)
    if not events or events[-1] != "[DONE]":
        raise NoAnswerError(f"the stream does not end with [DONE]: {events[-1:]}")
    return [json.loads(event) for event in events[:-1]]


def samples(url: str) -> dict[str, float]:
    """Return the engine's metrics, by name and labels without the model's and the engine's."""
    found = {}
    for line in request(url, "/metrics").body["text"].splitlines():
        if line.startswith("#") or not line.strip():
            continue
        head, _, value = line.rpartition(" ")
        name, _, labels = head.partition("{")
        kept = [label for label in labels.rstrip("}").split(",") if label and not label.startswith(_COMMON)]
        found[name + ("{" + ",".join(sorted(kept)) + "}" if kept else "")] = float(value)
    return found


_COMMON = ("engine=", "model_name=")


def blocks_used(url: str) -> int:
    """Return how many blocks somebody refers to, from vLLM's own gauges."""
    found = samples(url)
    info = next(key for key in found if key.startswith("vllm:cache_config_info"))
    total = int(info.split('num_gpu_blocks="')[1].split('"')[0])
    return round(found[Metric.KV_USAGE] * (total - 1))


def eventually(read: Callable[[], Any], expected: object, *, seconds: float = 10.0) -> Any:  # noqa: ANN401 - any value
    """Return what `read` returns once it equals `expected`, or its last value when the time is up."""
    deadline = time.monotonic() + seconds
    while (seen := read()) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    return seen


@dataclass(frozen=True)
class Turn:
    """A prompt, its answer, and what both engines said."""

    prompt: list[int]
    prefill: Reply
    decode: Reply

    @property
    def tokens(self) -> list[int]:
        """Return the answer's token ids."""
        return self.decode.tokens

    @property
    def handle(self) -> dict[str, Any]:
        """Return what decode left for the next turn."""
        return self.decode.params

    @property
    def history(self) -> list[int]:
        """Return prompt and answer."""
        return self.prompt + self.tokens


@dataclass
class Turns:
    """Turns over one set of engines. Prompts are random, so no two checks share a prefix."""

    engines: Running
    random: random.Random = field(default_factory=lambda: random.Random())  # noqa: S311, PLW0108 - no secret; fresh
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))
    _held: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._held:
            # No hold of this check may lapse while the next one counts blocks.
            with suppress(NoAnswerError):
                self.lease(dict.fromkeys(self._held, 0.0))

    def words(self, count: int) -> list[int]:
        """Return random tokens of plain words."""
        tokens = self.engines.facts.tokens
        return [self.random.randrange(tokens.start, tokens.stop) for _ in range(count)]

    def body(self, prompt: Sequence[int], most: int, params: Mapping[str, Any] | None, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Return a completion request for a greedy answer of exactly `most` tokens."""
        base = {"model": MODEL, "prompt": list(prompt), "max_tokens": most, "temperature": 0, "ignore_eos": True}
        base |= {"return_token_ids": True}
        return {**base, **({Params.FIELD: dict(params)} if params is not None else {}), **more}

    def prefill(
        self,
        prompt: Sequence[int],
        handle: Mapping[str, Any] | None = None,
        *,
        wishes: Mapping[str, Any] | None = None,
        seconds: float | None = None,
        **more: Any,  # noqa: ANN401 - JSON
    ) -> Reply:
        """Send the prefill leg; `wishes` are added to the handle's `duplex` object."""
        params: dict[str, Any] = dict(handle or COLD) | {Params.DO_REMOTE_DECODE: True, Params.DO_REMOTE_PREFILL: False}
        if wishes is not None:
            params[Params.DUPLEX] = {**(params.get(Params.DUPLEX) or {}), **wishes}
        wait = seconds or self.engines.facts.answer_seconds
        return request(self.engines.prefill, COMPLETIONS, self.body(prompt, 1, params, **more), seconds=wait)

    def decode(
        self,
        prompt: Sequence[int],
        prefilled: Reply,
        most: int = 40,
        *,
        wishes: Mapping[str, Any] | None = None,
        **more: Any,  # noqa: ANN401 - JSON
    ) -> Reply:
        """Send the decode leg after a prefill leg that must have succeeded."""
        if prefilled.status != http.client.OK:
            raise AssertionError(f"the prefill leg failed: {prefilled.status} {prefilled.body}")
        params = dict(prefilled.params)
        if wishes is not None:
            params[Params.DUPLEX] = {**(params.get(Params.DUPLEX) or {}), **wishes}
        wait = self.engines.facts.answer_seconds
        reply = request(self.engines.decode, COMPLETIONS, self.body(prompt, most, params, **more), seconds=wait)
        self.release_at_the_end(reply)
        return reply

    def release_at_the_end(self, decoded: Reply) -> None:
        """Release what this answer of decode holds when the check ends."""
        if decoded.duplex:  # of a guarded engine: a stock one knows no lease messages
            self._held.append(str(decoded.params[Params.REQUEST_ID]))

    def turn(
        self,
        prompt: Sequence[int],
        handle: Mapping[str, Any] | None = None,
        *,
        most: int = 40,
        keep: bool = False,
        ttl: float | None = None,
        **more: Any,  # noqa: ANN401 - JSON
    ) -> Turn:
        """Send both legs."""
        prefilled = self.prefill(prompt, handle, wishes={Duplex.KEEP: True} if keep else None, **more)
        answered = self.decode(prompt, prefilled, most, wishes=None if ttl is None else {Duplex.TTL: ttl}, **more)
        if answered.status != http.client.OK:
            raise AssertionError(f"the decode leg failed: {answered.status} {answered.body}")
        return Turn(list(prompt), prefilled, answered)

    def plain(self, prompt: Sequence[int], most: int = 40, **more: Any) -> list[int]:  # noqa: ANN401 - JSON
        """Return the plain engine's tokens for the prompt: the truth."""
        salt = f"{self.random.getrandbits(64):x}"
        wait = self.engines.facts.answer_seconds
        body = self.body(prompt, most, None, **{"cache_salt": salt, **more})
        reply = request(self.engines.plain, COMPLETIONS, body, seconds=wait)
        if reply.status != http.client.OK:
            raise AssertionError(f"the plain engine failed: {reply.status} {reply.body}")
        return reply.tokens

    def lease(self, renew: Mapping[str, float]) -> Reply:
        """Send decode a lease message: seconds from now by request id of the hold; 0 releases."""
        params = {Params.DO_REMOTE_PREFILL: True, Params.DO_REMOTE_DECODE: False, Params.DUPLEX: {Duplex.RENEW: renew}}
        body = {"model": LEASE_MODEL, "prompt": "lease", "max_tokens": 1, Params.FIELD: params}
        return request(self.engines.decode, COMPLETIONS, body)

    def release(self, *handles: Mapping[str, Any]) -> None:
        """Release holds of a guarded decode engine."""
        self.lease({str(handle[Params.REQUEST_ID]): 0 for handle in handles})

    def drop(self, prefilled: Reply) -> None:
        """Give up a prefill leg that no decode leg follows: a rejected one frees what prefill holds."""
        body = self.body([self.engines.facts.tokens.start], 1, prefilled.params, model="no-such-model")
        request(self.engines.decode, COMPLETIONS, body)

    def kill(self, role: Role) -> None:
        """End one engine without warning, and with it what it holds."""
        self.engines.kill(role)
        if role is Role.DECODE:
            self._held.clear()

    def aside(self, work: Callable[[], T]) -> Future[T]:
        """Run a leg beside the others."""
        return self._pool.submit(work)


def trimmed(handle: Mapping[str, Any], common: int, block_size: int) -> dict[str, Any]:
    """Cut a stock handle to the blocks that lie in the common prefix."""
    blocks = common // block_size
    ids = [list(group[:blocks]) for group in handle[Params.BLOCK_IDS]]
    return {**handle, Params.NUM_TOKENS: blocks * block_size, Params.BLOCK_IDS: ids}
