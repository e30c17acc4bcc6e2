"""Records turns of a prefill and a decode engine, byte for byte: `python -m harness.exchanges --help`.

The files are what the router's tests replay. Each holds the client's request, both legs as they were sent, and both
answers as they came, framing included.
"""

from __future__ import annotations

import argparse
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from duplex_router.wire.body import BodyReader
from duplex_router.wire.heads import HEAD_END, parse_response_head
from duplex_router.wire.inference import Endpoint, parse_inference
from duplex_router.wire.params import MISS
from duplex_router.wire.prefill import hand_off_to_decode, read_prefill_answer

_TOKENS = 6
_TTL_SECONDS = 30.0
_SECONDS = 120.0
_TOOL = {"type": "object", "properties": {"city": {"type": "string"}}}
_ASK = [{"role": "user", "content": "Tell me of the weather in München, please: \u201cgrüezi\u201d."}]


def cases(model: str, *, tools: bool) -> dict[str, tuple[Endpoint, dict[str, Any]]]:
    """Return the requests that are recorded, by name."""
    base = {"model": model, "temperature": 0}
    chat = {**base, "messages": _ASK, "max_tokens": _TOKENS}
    found: dict[str, tuple[Endpoint, dict[str, Any]]] = {
        "chat": (Endpoint.CHAT, chat),
        "chat-logprobs": (Endpoint.CHAT, {**chat, "logprobs": True, "top_logprobs": 2}),
        "completion": (Endpoint.COMPLETIONS, {**base, "prompt": "The cache holds", "max_tokens": _TOKENS}),
        "responses": (Endpoint.RESPONSES, {**base, "input": "Hello.", "max_output_tokens": _TOKENS}),
        "messages": (Endpoint.MESSAGES, {**base, "messages": _ASK, "max_tokens": _TOKENS}),
    }
    if tools:
        function = {"name": "get_weather", "parameters": _TOOL}
        claudes = {"name": "get_weather", "input_schema": _TOOL}
        many = {"max_tokens": 200}
        found["chat-tool"] = (
            Endpoint.CHAT,
            {**chat, **many, "tools": [{"type": "function", "function": function}], "tool_choice": "required"},
        )
        found["messages-tool"] = (
            Endpoint.MESSAGES,
            {**base, **many, "messages": _ASK, "tools": [claudes], "tool_choice": {"type": "any"}},
        )
    streamed = {f"{name}-streamed": (endpoint, {**body, "stream": True}) for name, (endpoint, body) in found.items()}
    return {**found, **streamed}


def exchange(url: str, path: str, body: bytes) -> bytes:
    """Send one request and return all that comes back until the connection ends."""
    parts = urlsplit(url)
    head = f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=_SECONDS) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def payload(answer: bytes) -> bytes:
    """Return the body of a whole answer, without its framing."""
    head, _, rest = answer.partition(HEAD_END)
    parsed = parse_response_head(head)
    return BodyReader(length=parsed.length, chunked=parsed.chunked).feed(rest)


def record(prefill: str, decode: str, endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    """Run one turn as the router does, and return what went over the wire. Raises WireError where prefill fails."""
    request = parse_inference(endpoint, json.dumps(body).encode())
    first = b"".join(request.prefill_body(MISS))
    prefilled = exchange(prefill, endpoint, first)
    answer = read_prefill_answer(payload(prefilled))
    ttl = _TTL_SECONDS if request.tells_handle else 0
    params = hand_off_to_decode(answer, ttl, with_token_ids=False) if answer.hand_off is not None else None
    second = b"".join(request.decode_body(params))
    decoded = exchange(decode, endpoint, second)
    return {
        "path": endpoint,
        "request": body,
        "prefill": {"sent": json.loads(first), "answer": prefilled.decode()},
        "decode": {"sent": json.loads(second), "answer": decoded.decode()},
    }


def main() -> None:
    """Record all cases into a folder."""
    parser = argparse.ArgumentParser(prog="python -m harness.exchanges", description=__doc__)
    parser.add_argument("--prefill", required=True, help="URL of the prefill engine")
    parser.add_argument("--decode", required=True, help="URL of the decode engine")
    parser.add_argument("--model", required=True)
    parser.add_argument("--source", required=True, help="what answers, for the reader of the files")
    parser.add_argument("--tools", action="store_true", help="the model calls tools where it is made to")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, (endpoint, body) in cases(arguments.model, tools=arguments.tools).items():
        found = {"source": arguments.source, **record(arguments.prefill, arguments.decode, endpoint, body)}
        text = json.dumps(found, indent=1, ensure_ascii=False)
        (arguments.folder / f"{name}.json").write_text(text + "\n")
        told = "remote_block_ids" in found["decode"]["answer"]
        print(f"{name}: {len(found['decode']['answer'])} bytes, {'with' if told else 'without'} a handle")


if __name__ == "__main__":
    main()
