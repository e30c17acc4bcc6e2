"""What a turn may still do again after a leg failed, and whose fault the failure was: the engine's or the pair's."""

from __future__ import annotations

from duplex_router.fleet.engines import Engine
from duplex_router.fleet.pairs import Way

from .core import Core
from .legs import Answer, Failure


def cause(result: Answer | Failure) -> str:
    """Return a leg's failure as metrics and messages name it."""
    return result.value if isinstance(result, Failure) else f"status-{result.status}"


class Tries:
    """One retry a turn, whichever leg it is; engines that could not even be reached are passed over besides.

    Another revision is tried once, where none of the first's engines of a role can take the turn: that is no retry.
    `avoid`: keys of engines that failed in this turn; they are used again only where there are no others.
    """

    __slots__ = ("_core", "_moved", "_retried", "avoid")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._retried = False
        self._moved = False
        self.avoid: set[str] = set()

    def prefill_failed(
        self, engine: Engine | None, result: Answer | Failure, *, holder: str, began: float, guarded: bool
    ) -> bool:
        """Blame whom it must be, and tell whether the leg may be done again.

        `holder`: the decode engine that it was to pull from, if it was. `began`: when the leg was sent.
        """
        if engine is None:
            return False
        if holder and _hung(engine, result, began, guarded=guarded):
            self._core.fleet.transfer_failed(engine.key, holder, Way.PULL)
        else:
            engine.failed(self._core.clock())
        if holder and _may_be_the_others(result):
            self.avoid.add(holder)
        return self._again(engine, result)

    def decode_failed(
        self, engine: Engine | None, result: Answer | Failure, *, hander: str, began: float, guarded: bool
    ) -> bool:
        """Do the same for a decode leg. `hander`: the prefill engine whose hand-off it was to read, if it was."""
        if engine is None:
            return False
        if hander and _hung(engine, result, began, guarded=guarded):
            self._core.fleet.transfer_failed(hander, engine.key, Way.HAND_OFF)
        else:
            engine.failed(self._core.clock())
        if hander and _may_be_the_others(result):
            self.avoid.add(hander)
        return self._again(engine, result)

    def elsewhere(self, engine: Engine) -> bool:
        """Tell whether another engine of the same role is ready that has not failed in this turn."""
        ready = self._core.fleet.ready(engine.revision, engine.role)
        return any(each.key not in self.avoid for each in ready)

    def may_move(self) -> bool:
        """Tell whether the turn may go to another revision: it may once."""
        moved, self._moved = self._moved, True
        return not moved

    def _again(self, engine: Engine, result: Answer | Failure) -> bool:
        self.avoid.add(engine.key)
        if result is Failure.UNREACHABLE:
            # It has seen nothing, so another one is no retry. The same one at once would not be there either.
            return self.elsewhere(engine)
        again, self._retried = not self._retried, True
        return again


def _may_be_the_others(result: Answer | Failure) -> bool:
    """Tell whether the engine that was read from may be what failed: there is one retry, which should meet neither."""
    return result not in (Failure.LOST, Failure.UNREACHABLE)


def _hung(engine: Engine, result: Answer | Failure, began: float, *, guarded: bool) -> bool:
    """Tell whether a leg that was to read from another engine failed by that read, as far as one can see.

    A stock engine answers 500 where a read failed, or an error in its stream; a guarded one computes instead, so that
    its 500 is its own. A read that hangs looks like a hung engine, unless that engine has answered others meanwhile.
    """
    if isinstance(result, Answer) or result is Failure.BROKEN:
        return not guarded
    return result is Failure.TIMEOUT and engine.heard_at >= began
