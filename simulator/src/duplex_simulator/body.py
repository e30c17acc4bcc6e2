"""Request bodies: what is asked, checked as vLLM checks it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duplex_connector.contract import Params

from .calls import wanted
from .request import Sampling
from .settings import Settings
from .template import TemplateError, render
from .tokenizer import Tokenizer

_COMPLETION_TOKENS = 16
_REFUSED = ("prompt_logprobs", "best_of", "suffix", "echo", "use_beam_search")
_MOST_LOGPROBS = 20


class ApiError(Exception):
    """An answer in vLLM's error shape."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param

    def body(self) -> dict[str, Any]:
        """Return the JSON that vLLM answers with."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True)
class Asked:
    """A checked request: `model` as the client called it, `adapter` where that names one.

    `prompts`: several only in completions; each is answered `count` times. `logprobs`: how many of the best tokens are
    shown with each, None where none are asked for. `calls_tools`: the reply consists of tool calls.
    """

    model: str
    adapter: str | None
    salt: str | None
    prompts: list[list[int]]
    count: int
    logprobs: int | None
    calls_tools: bool
    sampling: Sampling
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    params: dict[str, Any] | None
    chat: bool


def load(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a request body."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise ApiError(f"the request body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError("the request body must be a JSON object")
    return body


def _number(body: Mapping[str, Any], key: str, least: int) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise ApiError(f"{key} must be an integer of at least {least}, got {value!r}.", param=key)
    return value


def _flag(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise ApiError(f"{key} must be a boolean, got {value!r}.", param=key)
    return bool(value)


def model_of(body: Mapping[str, Any], settings: Settings) -> tuple[str, str | None]:
    """Return the model's name for the answer and the adapter, as vLLM resolves them; 404 for any other name."""
    name = body.get("model")
    if name is None or name == "":
        return settings.names[0], None
    if name in settings.names:
        return str(name), None
    if name in settings.adapters:
        return str(name), str(name)
    aliases = ", ".join(settings.names)
    raise ApiError(
        f"The model `{name}` does not exist. Valid aliases: {aliases}.", status=404, kind="NotFoundError", param="model"
    )


def prompt_of_chat(body: Mapping[str, Any], settings: Settings, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a chat request's prompt."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ApiError("messages must be a list of objects", param="messages")
    options = body.get("chat_template_kwargs") or {}
    try:
        text = render(
            messages,
            kind=settings.template,
            tools=body.get("tools"),
            generation_prompt=body.get("add_generation_prompt") is not False,
            thinking=not isinstance(options, Mapping) or options.get("enable_thinking") is not False,
        )
    except TemplateError as error:
        raise ApiError(str(error), param="messages") from error
    return tokenizer.encode(text)


def _prompts_of_completion(body: Mapping[str, Any], tokenizer: Tokenizer) -> list[list[int]]:
    prompt = body.get("prompt")
    several = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else [prompt]
    return [_prompt_of_completion(each, tokenizer) for each in several]


def _prompt_of_completion(prompt: object, tokenizer: Tokenizer) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        wrong = next((token for token in prompt if not 0 <= token < tokenizer.size), None)
        if wrong is not None:
            raise ApiError(f"Token id {wrong} is out of vocabulary", param="prompt")
        return list(prompt)
    raise ApiError("prompt must be a string, a list of token ids, or a list of such", param="prompt")


def _logprobs(body: Mapping[str, Any], *, chat: bool) -> int | None:
    if not chat:
        return _number(body, "logprobs", 0)
    if not _flag(body, "logprobs"):
        if body.get("top_logprobs"):
            raise ApiError("when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
        return None
    count = _number(body, "top_logprobs", 0) or 0
    if count > _MOST_LOGPROBS:
        raise ApiError(f"Requested sample logprobs of {count}, which is greater than max allowed: {_MOST_LOGPROBS}")
    return count


def _sampling(body: Mapping[str, Any], *, chat: bool, room: int) -> Sampling:
    asked = _number(body, "max_completion_tokens", 1) if chat else None
    if asked is None:
        asked = _number(body, "max_tokens", 1)
    least = _number(body, "min_tokens", 0) or 0
    most = asked if asked is not None else (room if chat else _COMPLETION_TOKENS)
    if least > most:
        raise ApiError(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.", param="min_tokens")
    stop = body.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) and text for text in stops):
        raise ApiError("stop must be a string or a list of strings, none of them empty", param="stop")
    stop_ids = body.get("stop_token_ids") or ()
    if not isinstance(stop_ids, list | tuple) or not all(type(token) is int for token in stop_ids):
        raise ApiError("stop_token_ids must be a list of integers", param="stop_token_ids")
    return Sampling(min(most, room), least, _flag(body, "ignore_eos"), frozenset(stop_ids), stops)


def _check_supported(body: Mapping[str, Any]) -> None:
    for key in _REFUSED:
        if body.get(key) not in (None, False):
            raise ApiError(f"{key} is not simulated: leave it out", param=key)
    if (_number(body, "n", 1) or 1) > 1 and body.get("temperature") == 0:
        raise ApiError(f"n must be 1 when using greedy sampling, got {body['n']}.")
    params = body.get(Params.FIELD)
    if params is not None and not isinstance(params, dict):
        raise ApiError("kv_transfer_params must be an object", param=Params.FIELD)
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise ApiError("Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")


def ask(body: Mapping[str, Any], settings: Settings, tokenizer: Tokenizer, *, chat: bool) -> Asked:
    """Return the checked request; raises ApiError."""
    _check_supported(body)
    model, adapter = model_of(body, settings)
    params = body.get(Params.FIELD)
    given = params.get("prompt_token_ids") if isinstance(params, dict) else None
    if given is not None:
        prompts = [_prompt_of_completion(given, tokenizer)]
    else:
        prompts = [prompt_of_chat(body, settings, tokenizer)] if chat else _prompts_of_completion(body, tokenizer)
    if not all(prompts):
        raise ApiError("The prompt is empty: at least one token is needed", param="prompt")
    longest = max(len(prompt) for prompt in prompts)
    room = settings.max_length - longest
    sampling = _sampling(body, chat=chat, room=max(0, room))
    calls = wanted(body, prompts[0]) if chat else ()
    sampling.forced = tuple(tokenizer.encode("".join(call.spelt() for call in calls)))
    asked = body.get("max_completion_tokens") or body.get("max_tokens") or 1
    if room < 1 or asked > room:
        raise ApiError(
            f"This model's maximum context length is {settings.max_length} tokens. However, you requested {asked} "
            f"output tokens and your prompt contains {longest} input tokens. Please reduce the length.",
            param="input_tokens",
        )
    options = body.get("stream_options") or {}
    stream = _flag(body, "stream")
    if options and not stream:
        raise ApiError("Stream options can only be defined when `stream=True`.", param="stream_options")
    return Asked(
        model=model,
        adapter=adapter,
        salt=body.get("cache_salt"),
        prompts=prompts,
        count=_number(body, "n", 1) or 1,
        logprobs=_logprobs(body, chat=chat),
        calls_tools=bool(calls),
        sampling=sampling,
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        return_token_ids=_flag(body, "return_token_ids"),
        params=dict(params) if params else None,
        chat=chat,
    )
