"""The openai and anthropic clients on two servers: a serving's router, and a plain engine that should say the same.

Run as a module inside the cluster's network (`python -m harness.clients`): it reads a Comparison as JSON from standard
input and prints a Finding after each case. Nothing in it knows of Duplex except the response header with the reuse.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import anthropic
import openai

from duplex_lab.cluster import Cluster

from .answers import difference, joined, tells_params, without_chance
from .client_cases import Api, Conversation, Options, single_cases, streamed
from .installation import ROOT
from .talk import ConversationFailedError

TURNS: Final = 3
_MOST_SECONDS: Final = 3600.0
_WHOLE, _STREAMED = "whole", "streamed"
_MANNERS: Final[dict[str, Callable[[Api, Options], Options]]] = {
    _WHOLE: lambda _, options: options,
    _STREAMED: streamed,
}


@dataclass(frozen=True)
class Comparison:
    """Which servers to ask for which model. `nonce`: what prompts are derived from, so that none was seen before."""

    ours: str
    plain: str
    model: str
    nonce: str
    timeout_seconds: float = 300.0


@dataclass(frozen=True)
class Finding:
    """What one request of a case showed.

    `difference`: empty where both servers said the same. `reuse`: the router's word, empty where it says none.
    `turn`: of a conversation, from 1; 0 for a case that is none.
    """

    api: str
    case: str
    difference: str
    reuse: str
    turn: int = 0


@dataclass(frozen=True)
class Answer:
    """An answer, or a stream's parts, as plain values, with the header that tells the reuse; or the client's error."""

    parts: list[Any]
    reuse: str = ""
    error: str = ""


class Server:
    """Both vendors' clients of one server."""

    def __init__(self, url: str, comparison: Comparison) -> None:
        key, patience = comparison.nonce, comparison.timeout_seconds
        self._model = comparison.model
        self.openai = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=patience)
        self.claude = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=patience)
        self._calls: dict[Api, Any] = {  # their overloads do not fit options that are built here
            Api.CHAT: self.openai.chat.completions,
            Api.COMPLETIONS: self.openai.completions,
            Api.RESPONSES: self.openai.responses,
            Api.MESSAGES: self.claude.messages,
        }

    def ask(self, api: Api, options: Options) -> Answer:
        """Send one request and read the whole answer."""
        try:
            return self._call(api, options)
        except (openai.APIError, anthropic.APIError) as error:
            return Answer([], error=f"{type(error).__name__}: {error}")

    def _call(self, api: Api, options: Options) -> Answer:
        # In the body, since Anthropic's client has no argument for it.
        chosen = options if "temperature" in options else {**options, "extra_body": {"temperature": 0}}
        raw = self._calls[api].with_raw_response.create(**{"model": self._model, **chosen})
        parsed = raw.parse()
        parts = list(parsed) if options.get("stream") else [parsed]
        return Answer([part.model_dump(mode="json") for part in parts], raw.headers.get("x-duplex-reuse", ""))

    def refusal(self, api: Api, options: Options) -> list[Any]:
        """Send a request that is refused; return what its client raises: package, class and status."""
        try:
            self._call(api, options)
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            return [type(error).__module__.partition(".")[0], type(error).__name__, error.status_code]
        return ["an answer"]

    def models(self) -> list[Any]:
        """Return what the client sees of the models."""
        return [[each.id, each.object] for each in self.openai.models.list().data]


def compare(ours: Answer, plain: Answer) -> str:
    """Return how the router's answer differs from the plain engine's; empty where it does not."""
    if ours.error or plain.error:
        return f"the router's client: {ours.error or 'an answer'}; the plain engine's: {plain.error or 'an answer'}"
    if tells_params(ours.parts):
        return "the client sees kv_transfer_params"
    return difference(joined(without_chance(ours.parts)), joined(without_chance(plain.parts)))


def _singles(ours: Server, plain: Server, nonce: str) -> Iterator[Finding]:
    for manner, shaped in _MANNERS.items():
        for api, name, options in single_cases(f"{nonce}/{manner}"):
            request = shaped(api, options)
            answer = ours.ask(api, request)
            yield Finding(api, f"{name}, {manner}", compare(answer, plain.ask(api, request)), answer.reuse)


def _conversations(ours: Server, plain: Server, nonce: str) -> Iterator[Finding]:
    for api in Api:
        for manner, shaped in _MANNERS.items():
            talk = Conversation(api, f"{nonce}/{api}/{manner}")
            for turn in range(1, TURNS + 1):
                # A stream of messages has no place for a handle: what a later turn shall find, a whole answer leaves.
                leaves = api is not Api.MESSAGES or turn == TURNS
                request = shaped(api, talk.say()) if leaves else talk.say()
                answer = ours.ask(api, request)
                told = compare(answer, plain.ask(api, request))
                yield Finding(api, f"a conversation, {manner}", told, answer.reuse, turn)
                if answer.error:
                    break
                talk.take(answer.parts)


def _errors(ours: Server, plain: Server, nonce: str) -> Iterator[Finding]:
    words = [{"role": "user", "content": nonce}]
    unknown: Options = {"model": "no-such-model", "messages": words, "max_tokens": 5}
    wrong: Options = {"messages": words, "max_tokens": -5}
    greedy: Options = {"messages": words, "max_tokens": 5, "n": 2}
    cases = (
        (Api.CHAT, "an unknown model", unknown, ["openai", "NotFoundError", 404]),
        (Api.CHAT, "max_tokens below 0", wrong, ["openai", "BadRequestError", 400]),
        (Api.CHAT, "two choices at temperature 0", greedy, ["openai", "BadRequestError", 400]),
        (Api.MESSAGES, "an unknown model", unknown, ["anthropic", "NotFoundError", 404]),
        (Api.MESSAGES, "max_tokens below 0", wrong, ["anthropic", "BadRequestError", 400]),
    )
    for api, name, options, expected in cases:
        told = difference([each.refusal(api, options) for each in (ours, plain)], [expected, expected])
        yield Finding(api, f"{name}: {expected[1]}", told, "")


def findings(comparison: Comparison) -> Iterator[Finding]:
    """Run all cases, one after the other, and give what each showed."""
    ours, plain = Server(comparison.ours, comparison), Server(comparison.plain, comparison)
    yield Finding("models", "a list", difference(ours.models(), plain.models()), "")
    yield from _errors(ours, plain, comparison.nonce)
    yield from _singles(ours, plain, comparison.nonce)
    yield from _conversations(ours, plain, comparison.nonce)


def run(cluster: Cluster, comparison: Comparison) -> list[Finding]:
    """Run all cases in the cluster's network. Raises ConversationFailedError, with what was found, where one fails."""
    done = cluster.run_in_network(
        [sys.executable, "-m", "harness.clients"],
        input=json.dumps(asdict(comparison)),
        env={"PYTHONPATH": str(ROOT / "e2e")},
        capture_output=True,
        text=True,
        timeout=_MOST_SECONDS,
    )
    if done.returncode:
        raise ConversationFailedError(f"{done.stdout}\n{done.stderr[-3000:]}")
    return [Finding(**json.loads(line)) for line in done.stdout.splitlines()]


def table(found: Iterable[Finding]) -> list[str]:
    """Return a line for each request."""
    rows = [f"{'answer':>8}  {'reuse':<38}  request"]
    for each in found:
        said = "differs" if each.difference else "equal"
        turn = f", turn {each.turn}" if each.turn else ""
        rows.append(f"{said:>8}  {each.reuse or '-':<38}  {each.api}: {each.case}{turn}")
    return rows


def main() -> None:
    """Make the comparison that standard input describes."""
    for finding in findings(Comparison(**json.load(sys.stdin))):
        print(json.dumps(asdict(finding)), flush=True)


if __name__ == "__main__":
    main()
