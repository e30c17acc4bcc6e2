"""A conversation through any OpenAI-compatible URL with the unmodified openai client; one JSON line per turn.

Run as a program inside the cluster's network: it reads a Script as JSON from standard input and prints a Turn after
each turn. Nothing in it knows of Duplex except two response headers that it reads if they are there.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

# Plain English words that every tokenizer of the demo knows as one token each.
WORDS = """
the of and to in is that for it as was with be by on not he this are or his from at which but have an had
they you  were there one all we their been has when who will more no if out so said what up its about into
than them can only  other new some could time these two may then do first any my now such like our over man
me even most made after also  did many before must through back years where much your way well down should
because each just those people how too  little state good very make world still own see men work long get
here between both life being under never day same  another know while last might us great old year off come
since against go came right used take three
""".split()  # noqa: SIM905 - a list literal of words is harder to read


@dataclass(frozen=True)
class Script:
    """What to say: `first_words` in the first user message, `next_words` in each later one, all derived from `nonce`.

    `edits` maps a turn (from 1) to what the client does to the history before it: "regenerate" drops the last user
    message's answer and asks again, "edit" rewrites the middle of the last user message.
    """

    base_url: str
    model: str
    nonce: str
    turns: int
    first_words: int
    next_words: int
    max_tokens: int
    extra_body: dict[str, Any] = field(default_factory=dict)
    strip_thinking: bool = False
    edits: dict[str, str] = field(default_factory=dict)
    pause_seconds: float = 0.0
    timeout_seconds: float = 300.0


@dataclass(frozen=True)
class Turn:
    """One turn as the client saw it. Token counts of reuse are None where the server did not report them."""

    turn: int
    prompt_tokens: int
    reply_tokens: int
    pulled_tokens: int | None
    computed_tokens: int | None
    reuse: str | None
    ttft_ms: float
    text: str
    finish_reason: str | None
    request_id: str | None


def prose(nonce: str, part: int, count: int) -> str:
    """Return `count` words that only this nonce and part give, so that nothing of an earlier run can be replayed."""
    stream = hashlib.shake_256(f"{nonce}/{part}".encode()).digest(count)
    return " ".join(WORDS[byte % len(WORDS)] for byte in stream)


def _reported(header: str | None) -> tuple[int | None, int | None]:
    if not header:
        return None, None
    parts = dict(part.strip().split("=", 1) for part in header.split(","))
    return int(parts["pulled"]), int(parts["computed"])


def ask(client: OpenAI, script: Script, messages: list[dict[str, str]], number: int) -> Turn:
    """Send one streamed turn and return what came back; TTFT is up to the first chunk with content."""
    started = time.perf_counter()
    raw = client.chat.completions.with_raw_response.create(
        model=script.model,
        messages=cast("list[ChatCompletionMessageParam]", messages),
        max_tokens=script.max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=script.extra_body or None,
    )
    first: float | None = None
    text, finish, usage = "", None, None
    for chunk in raw.parse():
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.content:
                first = first or time.perf_counter()
                text += choice.delta.content
            finish = choice.finish_reason or finish
    pulled, computed = _reported(raw.headers.get("x-duplex-tokens"))
    return Turn(
        turn=number,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        reply_tokens=usage.completion_tokens if usage else 0,
        pulled_tokens=pulled,
        computed_tokens=computed,
        reuse=raw.headers.get("x-duplex-reuse"),
        ttft_ms=round(((first or time.perf_counter()) - started) * 1000, 1),
        text=text,
        finish_reason=finish,
        request_id=raw.headers.get("x-request-id"),
    )


def _without_thinking(text: str) -> str:
    return text.rpartition("</think>")[2].lstrip()


def converse(script: Script, *, enough: Callable[[], bool] = lambda: False) -> list[Turn]:
    """Hold the conversation of the script and return its turns; prints each as a JSON line when it is over.

    It ends before its time after a turn when `enough` says so.
    """
    client = OpenAI(
        base_url=f"{script.base_url}/v1", api_key=script.nonce, timeout=script.timeout_seconds, max_retries=0
    )
    messages: list[dict[str, str]] = []
    turns = []
    for number in range(1, script.turns + 1):
        match script.edits.get(str(number)):
            case "regenerate":
                messages.pop()
            case "edit":
                messages.pop()
                words = messages[-1]["content"].split()
                middle = len(words) // 2
                messages[-1]["content"] = " ".join([*words[:middle], prose(script.nonce, -number, len(words) - middle)])
            case _:
                count = script.first_words if number == 1 else script.next_words
                messages.append({"role": "user", "content": prose(script.nonce, number, count)})
        turn = ask(client, script, messages, number)
        reply = _without_thinking(turn.text) if script.strip_thinking else turn.text
        messages.append({"role": "assistant", "content": reply})
        turns.append(turn)
        print(json.dumps(asdict(turn)), flush=True)
        if enough():
            break
        time.sleep(script.pause_seconds)
    return turns


def parse_turns(output: str) -> list[Turn]:
    """Return the turns that a run of this program printed."""
    names = {entry.name for entry in fields(Turn)}
    return [Turn(**{k: v for k, v in json.loads(line).items() if k in names}) for line in output.splitlines() if line]


def main() -> None:
    """Hold the conversation that standard input describes; SIGTERM ends it once the turn under way is over."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    converse(Script(**json.load(sys.stdin)), enough=lambda: bool(told))


if __name__ == "__main__":
    main()
