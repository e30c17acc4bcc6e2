"""Whatever clients do to their conversations, no answer rests on wrong KV, and what can be pulled is pulled.

DUPLEX_EXAMPLES sets how many scripts are run on each kind of engine, DUPLEX_SEED which; a failure names the seed.
"""

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, note, seed, settings

from duplex_connector.contract import ConnectorKind
from duplex_connector.proof import SHORT_STEP
from duplex_simulator.tokenizer import CORRUPT_MARK

from .edits import EDITS, Step, Talk, scripts
from .near_site import Answered, NearSite, near_site

EXAMPLES = int(os.environ.get("DUPLEX_EXAMPLES", "8"))
SEED = int(os.environ.get("DUPLEX_SEED", "7"))
PLAIN = ("--sim-template", "plain", "--sim-tokenizer", "word")
THINKING = ("--sim-template", "strips-thinking", "--sim-tokenizer", "bpe-lossy")
bounded = settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],  # to shrink a script of turns takes minutes, and says nothing new
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


class Stage:
    """A site in an event loop of its own, in which one script after the other is played.

    `stripping`: its template renders what was said otherwise as the talk goes on, which nobody can see in the content:
    then not the hold that shares most tokens can be expected, but one that shares most content.
    """

    def __init__(self, runner: asyncio.Runner, site: NearSite, *, stripping: bool) -> None:
        self.runner, self.site, self.stripping = runner, site, stripping
        self._turns = 0

    def play(self, script: tuple[list[str], list[Step]], *, proved: bool) -> None:
        note(f"DUPLEX_SEED={SEED}")
        self.runner.run(self._play(script, proved=proved))

    async def _play(self, script: tuple[list[str], list[Step]], *, proved: bool) -> None:
        systems, steps = script
        key = f"Bearer {secrets.token_hex(8)}"
        talks = [Talk([{"role": "system", "content": text}, {"role": "user", "content": text}]) for text in systems]
        try:
            for step in steps:
                talk = talks[step.talk % len(talks)]
                if step.branch:
                    talk = talk.copy()
                    talks.append(talk)
                for edit, draw in step.edits:
                    EDITS[edit](talk, draw)
                await self._turn(key, talk, step, proved=proved)
        finally:
            await self._clean()

    async def _turn(self, key: str, talk: Talk, step: Step, *, proved: bool) -> None:
        site = self.site
        prompt = site.prompt_ids(talk.messages, talk.more)
        body = {"messages": talk.messages, "max_tokens": step.reply_tokens, **talk.more}
        best = min(site.shares(prompt, body), default=0) if self.stripping else max(site.shares(prompt), default=0)
        broken = site.broken_rules()
        answers: list[Answered] = await asyncio.gather(
            *(site.ask(key, f"turn{self._turns}x{number}", body) for number in range(step.at_once))
        )
        self._turns += 1
        for answer in answers:
            assert answer.prompt == prompt
            assert CORRUPT_MARK not in answer.text
            if proved:
                # By its digests an engine can prove whole steps: one of them may be lost, no more.
                least = best // SHORT_STEP * SHORT_STEP - SHORT_STEP
                assert answer.pulled >= least, f"{answer.pulled} of {best} tokens pulled; {answer.reuse}"
        assert site.broken_rules() == broken
        talk.messages.append({"role": "assistant", "content": answers[0].text})

    async def _clean(self) -> None:
        """Release what the script's turns hold; nothing else may be held then."""
        ledger = self.site.service.ledger
        ledger.retire_all()
        self.site.service.core.keeper.flush()
        for _ in range(500):
            if self.site.decode.holds() == 0 and self.site.prefill.holds() == 0 and len(ledger) == 0:
                break
            await asyncio.sleep(0.01)
        assert (self.site.decode.holds(), self.site.prefill.holds(), len(ledger)) == (0, 0, 0)
        self.site.held_ids.clear()


def _stage(tmp_path: Path, kind: ConnectorKind, flags: tuple[str, ...]) -> Iterator[Stage]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        site = runner.run(stack.enter_async_context(near_site(tmp_path, kind, *flags)))
        yield Stage(runner, site, stripping=flags is THINKING)
        runner.run(stack.aclose())
        runner.run(asyncio.sleep(0.1))  # the engines' last heartbeats end


@pytest.fixture(scope="module", params=[PLAIN, THINKING], ids=["plain", "thinking"])
def guarded_stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    yield from _stage(tmp_path_factory.mktemp("guarded"), ConnectorKind.GUARDED, request.param)


@pytest.fixture(scope="module", params=[PLAIN, THINKING], ids=["plain", "thinking"])
def stock_stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    yield from _stage(tmp_path_factory.mktemp("stock"), ConnectorKind.STOCK, request.param)


@seed(SEED)
@bounded
@given(script=scripts)
def test_guarded_engines_pull_all_but_a_step_of_what_could_be_and_answer_right(
    guarded_stage: Stage, script: tuple[list[str], list[Step]]
) -> None:
    guarded_stage.play(script, proved=True)


@seed(SEED)
@bounded
@given(script=scripts)
def test_stock_engines_answer_right(stock_stage: Stage, script: tuple[list[str], list[Step]]) -> None:
    stock_stage.play(script, proved=False)
