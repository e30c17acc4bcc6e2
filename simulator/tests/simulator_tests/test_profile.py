"""The profile meets the published figures through the running prefill/decode flow."""

from __future__ import annotations

import pytest

from duplex_connector.contract import ConnectorKind, Duplex, Params
from duplex_simulator.profile import INSTANT, QWEN3_32B_P5EN

from .clocks import VirtualClock
from .nodes import COLD, Node, node

NEW = 140
ANSWER = 8


async def _turns(clock: VirtualClock, prefill: Node, decode: Node, history: int, *, reuse: bool) -> tuple[float, float]:
    """Hold a conversation whose second turn has `history` tokens; return its prefill time and time to first token."""
    first = [300 + index % 3000 for index in range(history + 1 - ANSWER)]
    cold = await prefill.leg(first, 1, COLD)
    answered = await decode.leg(first, ANSWER, cold.params)
    handle = answered.params if reuse else COLD
    if reuse:
        assert handle[Params.NUM_TOKENS] == history
    prompt = first + answered.tokens + [4000 + index for index in range(NEW - 1)]
    started = clock.now()
    leg = await prefill.leg(prompt, 1, handle)
    prefilled = clock.now()
    if reuse:
        assert leg.params[Params.DUPLEX][Duplex.PULLED] == history
    stream = decode.process.engine.generate(decode.request(prompt, 2, leg.params))
    await anext(stream)
    first_token = clock.now()
    await stream.aclose()
    return prefilled - started, first_token - started


PUBLISHED = [
    (2_000, False, 0.153, 0.158),
    (24_000, False, 0.744, 0.778),
    (2_000, True, 0.128, 0.122),
    (24_000, True, 0.414, 0.460),
]


@pytest.mark.parametrize(("history", "reuse", "prefill_seconds", "first_token_seconds"), PUBLISHED)
async def test_figures(history: int, reuse: bool, prefill_seconds: float, first_token_seconds: float) -> None:  # noqa: FBT001 - a pytest parameter
    clock = VirtualClock()
    flags = ("--sim-profile", "qwen3-32b-p5en")
    async with (
        node(clock, *flags, "--no-enable-prefix-caching", kind=ConnectorKind.GUARDED) as prefill,
        node(clock, *flags, kind=ConnectorKind.GUARDED) as decode,
    ):
        seen = await clock.run(_turns(clock, prefill, decode, history, reuse=reuse))
    assert seen == pytest.approx((prefill_seconds, first_token_seconds), rel=0.1)


@pytest.mark.parametrize(("history", "seconds"), [(2_000, 0.030), (24_000, 0.130)])
def test_transfer(history: int, seconds: float) -> None:
    assert QWEN3_32B_P5EN.transfer_seconds(history) == pytest.approx(seconds, rel=0.1)


def test_lines_go_on_and_nothing_costs_nothing() -> None:
    assert QWEN3_32B_P5EN.transfer_seconds(0) == 0
    assert QWEN3_32B_P5EN.transfer_seconds(46_000) == pytest.approx(0.130 + 22_000 * (0.130 - 0.0285) / 22_000)
    assert QWEN3_32B_P5EN.prefill_seconds(0, 10_000) == 0
    assert INSTANT.prefill_seconds(10_000, 0) == INSTANT.transfer_seconds(10_000) == INSTANT.decode_seconds() == 0
