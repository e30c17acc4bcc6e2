"""Whole conversations through the router on simulated guarded engines: answers right, history pulled, nothing left."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from duplex_router.fleet.document import Policy

from .rig import CORRUPT, Engines, Router, assistant, fetch, fresh, router, say, say_plain, until, user


@pytest.mark.parametrize("stream", [True, False])
async def test_every_later_turn_pulls_the_whole_history(guarded: Engines, tmp_path: Path, stream: bool) -> None:  # noqa: FBT001 - a parameter of the test
    async with router(tmp_path, guarded.document()) as under_test:
        client, messages = under_test.client(), fresh()
        for turn in range(4):
            messages.append(user(f"turn {turn}"))
            said = await say(client, messages, stream=stream)
            assert said.text == await say_plain(guarded, messages)
            assert said.reuse == ("full" if turn else "miss")
            assert (said.tokens["pulled"] > 0) is bool(turn)
            messages.append(assistant(said.text))
        assert guarded.holds() == len(under_test.service.ledger) == 1
        stats = await asyncio.to_thread(fetch, under_test.admin + "/stats")
        assert stats["reuse"]["full"] == stats["reuse"]["eligible"] == 3
        assert stats["holds"] == 1
    assert guarded.holds() == 0
    assert guarded.corrupt() == 0


async def test_edited_regenerated_and_branched_histories_are_answered_right(guarded: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, guarded.document()) as under_test:
        client = under_test.client()
        first = [*fresh(), user("first")]
        one = await say(client, first)
        second = [*first, assistant(one.text), user("second")]
        await say(client, second)
        regenerated = await say(client, second, stream=True)
        edited = [*first, assistant(one.text), user("changed my mind")]
        answers = {
            "regenerated": (second, regenerated),
            "edited": (edited, await say(client, edited)),
            "shortened": (first, await say(client, first)),
            "reply changed": (
                [*first, assistant("No. " + one.text), user("third")],
                await say(client, [*first, assistant("No. " + one.text), user("third")]),
            ),
        }
        for name, (messages, said) in answers.items():
            assert said.text == await say_plain(guarded, messages), name
            assert said.tokens["pulled"] > 0, name
    assert guarded.holds() == 0
    assert guarded.corrupt() == 0


async def test_parallel_turns_share_one_hold_and_it_outlives_them(guarded: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, guarded.document()) as under_test:
        client, base = under_test.client(), [*fresh(), user("base")]
        one = await say(client, base)
        turns = [[*base, assistant(one.text), user(f"branch {number}")] for number in range(6)]
        said = await asyncio.gather(*[say(client, turn, stream=bool(number % 2)) for number, turn in enumerate(turns)])
        for turn, answer in zip(turns, said, strict=True):
            assert answer.text == await say_plain(guarded, turn)
        assert sum(answer.tokens["pulled"] > 0 for answer in said) >= 5
        assert guarded.holds() == len(under_test.service.ledger) == 6
    assert guarded.holds() == 0
    assert guarded.corrupt() == 0


async def test_tenants_do_not_share(guarded: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, guarded.document()) as under_test:
        messages = [*fresh(), user("first")]
        one = await say(under_test.client("alice"), messages)
        messages += [assistant(one.text), user("second")]
        theirs = await say(under_test.client("bob"), messages)
        assert (theirs.reuse, theirs.tokens["pulled"]) == ("miss", 0)
        assert (await say(under_test.client("alice"), messages)).tokens["pulled"] > 0


async def test_a_changed_policy_acts_on_the_next_turn(guarded: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, guarded.document()) as under_test:
        client, messages = under_test.client(), [*fresh(), user("first")]
        one = await say(client, messages)
        messages += [assistant(one.text), user("second")]
        under_test.write(guarded.document(recomputeThresholdTokens=100_000))
        await until(lambda: _policy(under_test).recompute_threshold_tokens == 100_000, seconds=2)
        two = await say(client, messages)
        assert two.reuse == "rejected;reason=below-threshold"
        messages += [assistant(two.text), user("third")]
        under_test.write(guarded.document(ttlSeconds=0))
        await until(lambda: _policy(under_test).ttl_seconds == 0, seconds=2)
        await say(client, messages)
        await until(lambda: guarded.holds() == 0, seconds=5)
        under_test.write(guarded.document(bidirectional=False))
        await until(lambda: not _policy(under_test).bidirectional, seconds=2)
        assert (await say(client, messages)).reuse == "rejected;reason=disabled"
        assert guarded.holds() == 0


def _policy(under_test: Router) -> Policy:
    assert under_test.service.fleet.document is not None
    return under_test.service.fleet.document.policy


async def test_completions_of_text_and_of_token_ids(guarded: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, guarded.document()) as under_test:
        client = under_test.client()
        text = f"{fresh()[0]['content']} " + "once upon a time " * 60
        for prompt, longer in ((text, text + "there was a king"), (list(range(300, 500)), list(range(300, 520)))):
            extra = {"ignore_eos": True}
            await client.completions.create(model="model", prompt=prompt, max_tokens=70, extra_body=extra)
            raw = await client.completions.with_raw_response.create(
                model="model", prompt=longer, max_tokens=5, extra_body=extra
            )
            assert raw.headers["x-duplex-reuse"] == "partial"
            assert CORRUPT not in raw.parse().choices[0].text
    assert guarded.holds() == 0
    assert guarded.corrupt() == 0


async def test_an_explanation_names_what_happened(guarded: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, guarded.document()) as under_test:
        client, messages = under_test.client(), [*fresh(), user("first")]
        one = await say(client, messages)
        messages += [assistant(one.text), user("second")]
        await say(client, messages, extra_headers={"x-request-id": "mine-2"})
        found = await asyncio.to_thread(fetch, under_test.admin + "/explain/mine-2")
        assert (found["reuse"], found["matchedDepth"], found["historyDepth"], found["status"]) == ("full", 3, 4, 200)
        assert found["pulledTokens"] > 0
        assert [leg["leg"] for leg in found["legs"]] == ["prefill", "decode"]
        assert "shares the first 3 of this request's 4 parts" in found["why"]
        assert f"pulled {found['pulledTokens']}" in found["why"]


async def test_usage_arrives_although_prefill_has_no_stream_options(guarded: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, guarded.document()) as under_test:
        create: Any = under_test.client().chat.completions.create
        stream = await create(
            model="model",
            messages=[*fresh(), user("one")],
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
        last = [chunk async for chunk in stream][-1]
        assert last.usage is not None
        assert last.usage.completion_tokens == 5


async def test_models_tokenize_and_health(guarded: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, guarded.document()) as under_test:
        models = await under_test.client().models.list()
        assert [model.id for model in models.data] == ["model"]
        version = await asyncio.to_thread(fetch, under_test.url + "/version")
        assert version == {"version": "0.33.0"}
        assert json.dumps(await asyncio.to_thread(fetch, under_test.admin + "/stats"))
