"""`/metrics`: the counters in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from duplex_connector.contract import Role
from duplex_router.turn.counters import BUCKETS, Histogram
from duplex_router.turn.shared import SharedView

from .state import AdminState

MAX_ENGINES = 512
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


Labels = tuple[tuple[str, str], ...]


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


class _Page:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, kind: str, text: str, samples: Mapping[Labels, float]) -> None:
        full = f"duplex_router_{name}"
        self.lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        self.lines += [f"{full}{_labels(dict(labels))} {value}" for labels, value in samples.items()]

    def one(self, name: str, kind: str, text: str, value: float) -> None:
        self.add(name, kind, text, {(): value})

    def by(self, label: str, name: str, kind: str, text: str, values: Mapping[str, float]) -> None:
        self.add(name, kind, text, {((label, key),): value for key, value in values.items()})

    def histograms(self, name: str, text: str, label: str, values: Mapping[str, Histogram]) -> None:
        full = f"duplex_router_{name}"
        self.lines += [f"# HELP {full} {text}", f"# TYPE {full} histogram"]
        for key, histogram in values.items():
            labels = {label: key} if label else {}
            for bound, count in zip([*map(str, BUCKETS), "+Inf"], _running(histogram.counts), strict=True):
                self.lines.append(f"{full}_bucket{_labels({**labels, 'le': bound})} {count}")
            self.lines.append(f"{full}_sum{_labels(labels)} {histogram.total}")
            self.lines.append(f"{full}_count{_labels(labels)} {sum(histogram.counts)}")


def _running(counts: list[int]) -> Iterator[int]:
    total = 0
    for count in counts:
        total += count
        yield total


def render(state: AdminState) -> str:
    """Return the page."""
    page = _Page()
    _turns(page, state)
    _holds(page, state)
    _fleet(page, state)
    _engines(page, state)
    if state.core.shared is not None:
        _shared(page, state.core.shared.view())
    return "\n".join(page.lines) + "\n"


def _turns(page: _Page, state: AdminState) -> None:
    counters = state.core.counters
    page.one("turns_total", "counter", "Turns begun.", counters.turns)
    page.one("turns_in_flight", "gauge", "Turns under way.", counters.in_flight)
    page.one("turns_waiting", "gauge", "Turns that wait for admission.", state.core.admission.waiting)
    text = "Turns that waited: in the end admitted (waited) or turned away (too-many, too-long)."
    page.by("how", "queue_total", "counter", text, counters.queue)
    page.one("broken_pairs", "gauge", "Pairs that cannot reach each other.", len(state.core.fleet.pairs.broken()))
    answers = {str(status): count for status, count in counters.answers.items()}
    page.by("status", "answers_total", "counter", "Turns by HTTP status; 499: the client left.", answers)
    reused = {"full": counters.full, "partial": counters.partial}
    page.by("outcome", "reused_turns_total", "counter", "Turns whose history was pulled from decode.", reused)
    page.one("eligible_turns_total", "counter", "Turns that shared history with a held one.", counters.eligible)
    page.by("reason", "reuse_rejected_total", "counter", "Turns that might have reused and did not.", counters.rejected)
    page.one("pulled_tokens_total", "counter", "Prompt tokens pulled from decode.", counters.pulled_tokens)
    page.one("computed_tokens_total", "counter", "Prompt tokens that prefill computed.", counters.computed_tokens)
    failures: dict[Labels, float] = {
        (("leg", leg), ("why", why)): count for (leg, why), count in counters.leg_failures.items()
    }
    page.add("leg_failures_total", "counter", "Legs that failed.", failures)
    page.by("leg", "retries_total", "counter", "Legs done again.", counters.retries)
    page.by(
        "phase", "clients_gone_total", "counter", "Clients that left, by what was under way.", counters.clients_gone
    )
    text = "Seconds to the client's first byte, by what reuse came to."
    page.histograms("first_byte_seconds", text, "outcome", counters.first_byte)
    legs = {"prefill": counters.prefill_leg, "decode": counters.decode_leg}
    page.histograms("leg_seconds", "Seconds that a leg took.", "leg", legs)


def _holds(page: _Page, state: AdminState) -> None:
    core = state.core
    page.one("holds", "gauge", "Holds that this router owns.", len(core.ledger))
    page.one("held_tokens", "gauge", "Tokens in them.", core.ledger.tokens)
    page.by("how", "holds_ended_total", "counter", "Holds that ended.", core.counters.holds_ended)
    text = "Turns that left no hold, as after a stop string; both: the former hold was used up besides."
    page.by("lost", "unheld_turns_total", "counter", text, core.counters.unheld)
    page.by("kind", "lease_messages_total", "counter", "Messages about holds.", core.counters.lease_messages)


def _fleet(page: _Page, state: AdminState) -> None:
    fleet = state.core.fleet
    document = fleet.document
    page.one("fleet_version", "gauge", "Counter of the fleet document in use.", document.version[1] if document else 0)
    page.one("fleet_broken", "gauge", "1 where the newest document was refused.", int(bool(fleet.broken)))
    ready: dict[Labels, float] = {}
    served: dict[str, float] = {}
    for name in [revision.name for revision in document.revisions] if document else []:
        for role in Role:
            ready[("revision", name), ("role", role.value)] = len(fleet.ready(name, role))
        served[name] = state.core.counters.revision(name).served_tokens
    page.add("engines_ready", "gauge", "Engines that take new legs.", ready)
    page.by("revision", "served_tokens_total", "counter", "Tokens that engines answered with.", served)
    successes = {name: canary.last_success or 0 for name, canary in state.canaries.items()}
    text = "Unix time of a revision's last good canary; 0: none."
    page.by("revision", "canary_last_success_seconds", "gauge", text, successes)


def _engines(page: _Page, state: AdminState) -> None:
    core, now = state.core, state.core.clock()
    percent = core.fleet.document.policy.retention_percent if core.fleet.document is not None else 0
    legs: dict[Labels, float] = {}
    tokens: dict[Labels, float] = {}
    resting: dict[Labels, float] = {}
    held: dict[Labels, float] = {}
    budget: dict[Labels, float] = {}
    size: dict[Labels, float] = {}
    used: dict[Labels, float] = {}
    for engine in list(core.fleet.engines.values())[:MAX_ENGINES]:
        label = (("engine", engine.name), ("role", engine.role.value))
        legs[label], tokens[label] = engine.legs, engine.waiting_tokens
        resting[label] = int(now < engine.resting_until)
        if engine.kv_tokens is not None and engine.kv_use is not None:
            size[label], used[label] = engine.kv_tokens, round(engine.kv_tokens * engine.kv_use)
        if engine.role is Role.DECODE:
            held[label] = core.ledger.held_tokens(engine.key)
            if engine.kv_tokens is not None:
                budget[label] = engine.kv_tokens * percent // 100
    page.add("engine_legs", "gauge", "Legs under way on an engine.", legs)
    page.add("engine_waiting_tokens", "gauge", "Prompt tokens that an engine has not answered for.", tokens)
    page.add("engine_resting", "gauge", "1 while an engine is left alone after failures.", resting)
    page.add("engine_held_tokens", "gauge", "Tokens that an engine holds for this router's conversations.", held)
    page.add("engine_kv_tokens", "gauge", "Tokens that an engine's KV cache has room for.", size)
    page.add("engine_kv_used_tokens", "gauge", "Tokens that it is in use for, those of all holds included.", used)
    page.add("engine_budget_tokens", "gauge", "Tokens that it may hold for all routers.", budget)


def _shared(page: _Page, view: SharedView) -> None:
    page.one("store_up", "gauge", "1 while the store answers in time.", int(view.up))
    page.one("store_routers", "gauge", "Routers that share the store, this one included.", view.routers)
    text = "Look-ups in the store; late, lost and closed (not asked, since it is down) count as a miss."
    page.by("outcome", "store_lookups_total", "counter", text, view.lookups)
    page.by("outcome", "store_claims_total", "counter", "Claims of stock handles in the store.", view.claims)
    page.by("what", "store_entries_total", "counter", "What became of entries in the store.", view.events)
    page.histograms("store_seconds", "Seconds that an answered look-up took.", "", {"": view.seconds})
