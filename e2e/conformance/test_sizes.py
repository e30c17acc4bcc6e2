"""What engines say of their KV's size, held against the bytes that really cross."""

from __future__ import annotations

from duplex_connector.contract import Duplex, Metric

from .checks import ANSWER, GUARDED, PROMPT, connector, over
from .report import Report
from .turns import Turns, eventually, samples
from .variants import Variant

_BYTES = f"{Metric.NIXL_BYTES}_sum"


@over(GUARDED)
def test_bytes_per_token_are_those_that_a_pull_moves(turns: Turns, variant: Variant, report: Report) -> None:
    turn = turns.turn(turns.words(PROMPT), most=ANSWER)
    before = samples(turns.engines.prefill).get(_BYTES, 0.0)
    following = turns.turn(turn.history + turns.words(90), turn.handle, most=ANSWER, ttl=0)
    pulled = following.prefill.duplex[Duplex.PULLED]
    size = samples(turns.engines.decode)[Metric.DUPLEX_KV_BYTES]
    assert eventually(lambda: samples(turns.engines.prefill).get(_BYTES, 0.0) > before, expected=True)
    moved = samples(turns.engines.prefill)[_BYTES] - before
    # Whole blocks cross.
    assert pulled * size <= moved <= (pulled + turns.engines.facts.block_size) * size
    report.add(
        "bytes of KV per token, as said and as moved", connector(variant), "equal", pulled=pulled, note=f"{size:.0f}"
    )
