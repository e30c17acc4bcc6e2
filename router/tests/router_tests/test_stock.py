"""Stock engines: handles are used once, and trusted no further than a former prompt."""

import asyncio
from pathlib import Path

from duplex_connector.contract import ConnectorKind, Role

from .rig import Engines, assistant, fresh, launch, router, running, say, say_plain, until, user


async def test_plain_continuations_pull_up_to_the_former_prompt(stock: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, stock.document()) as under_test:
        await until(lambda: under_test.service.core.templates.probed("r1"))
        client, messages = under_test.client(), fresh()
        for turn in range(4):
            messages.append(user(f"turn {turn}"))
            said = await say(client, messages, stream=bool(turn % 2))
            assert said.text == await say_plain(stock, messages)
            assert (said.tokens["pulled"] > 0) is bool(turn)
            messages.append(assistant(said.text))
        assert stock.holds() == 1
    assert stock.holds() == 0
    assert stock.corrupt() == 0


async def test_edits_and_parallel_turns_are_answered_right(stock: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, stock.document()) as under_test:
        await until(lambda: under_test.service.core.templates.probed("r1"))
        client, first = under_test.client(), [*fresh(), user("first")]
        one = await say(client, first)
        second = [*first, assistant(one.text), user("second")]
        two = await say(client, second)
        third = [*second, assistant(two.text), user("third")]
        said = await asyncio.gather(*[say(client, third) for _ in range(3)])
        assert sum(each.tokens["pulled"] > 0 for each in said) == 1, "the handle is used once"
        assert {each.text for each in said} == {await say_plain(stock, third)}
        edited = [*first, assistant(one.text), user("changed my mind")]
        assert (await say(client, edited)).text == await say_plain(stock, edited)
        retold = [*first, assistant("I said nothing."), user("second")]
        assert (await say(client, retold)).text == await say_plain(stock, retold)
    assert stock.holds() == 0
    assert stock.corrupt() == 0


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


async def test_stripped_thinking_is_right_for_plain_turns_and_refused_for_tool_loops(tmp_path: Path) -> None:
    flags = ("--sim-template", "strips-thinking", "--no-enable-prefix-caching")
    prefill, decode = (launch(role, ConnectorKind.STOCK, *flags) for role in (Role.PREFILL, Role.DECODE))
    plain = launch(None, ConnectorKind.STOCK, *flags)
    with running(prefill, decode, plain):
        engines = Engines(ConnectorKind.STOCK, [prefill], [decode], plain)
        async with router(tmp_path, engines.document()) as under_test:
            await until(lambda: under_test.service.core.templates.probed("r1"))
            client, first = under_test.client(), [*fresh(), user("first")]
            one = await say(client, first)
            second = [*first, assistant(f"<think>hm</think>{one.text}"), user("second")]
            two = await say(client, second)
            assert two.reuse == "partial", "a former prompt is the same, whatever became of its reply"
            assert two.text == await say_plain(engines, second)
            await say(client, [*fresh(), user("first")], tools=TOOLS)
            call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            looped = [*fresh(), user("first")]
            await say(client, looped, tools=TOOLS)
            looped += [{**assistant("<think>hm</think>"), "tool_calls": [call]}]
            looped += [{"role": "tool", "tool_call_id": "c", "content": "found"}]
            three = await say(client, looped, tools=TOOLS)
            assert three.reuse == "rejected;reason=unstable-template"
            assert three.text == await say_plain(engines, looped, tools=TOOLS)
        assert engines.holds() == 0
        assert engines.corrupt() == 0
