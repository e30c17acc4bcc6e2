"""OpenTelemetry spans of turns and their legs, sent by OTLP over HTTP from a thread beside the event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from duplex_router.turn.record import LegRecord, TurnRecord
from duplex_router.turn.trace import TraceContext

from .aside import Aside

FLUSH_SECONDS = 1.0
MAX_WAITING = 4096
TURNS_AT_ONCE = 256
EXPORT_SECONDS = 5.0
_SCOPE_ATTRIBUTES = {"service.name": "duplex-router"}

log = logging.getLogger(__name__)


class SpanSender(Aside):
    """`endpoint`: URL of an OTLP collector's traces, such as http://collector:4318/v1/traces."""

    def __init__(self, endpoint: str, pod_name: str, wall_ahead: Callable[[], float]) -> None:
        super().__init__(wall_ahead, seconds=FLUSH_SECONDS, most=MAX_WAITING)
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
        self._resource = Resource.create({**_SCOPE_ATTRIBUTES, "service.instance.id": pod_name})
        self._ids = RandomIdGenerator()

    def observe(self, record: TurnRecord) -> None:
        """See `Aside`; a turn that is not traced is left out."""
        if record.trace is not None:
            self._keep(record)

    def flush(self) -> None:
        """See `Aside`; what a slow collector does not take is dropped and counted."""
        ahead = self._wall_ahead()
        while self._waiting:
            turns = [self._waiting.popleft() for _ in range(min(len(self._waiting), TURNS_AT_ONCE))]
            spans = [span for turn in turns if turn.trace for span in self._spans(turn, turn.trace, ahead)]
            if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
                self.dropped += len(turns)
                log.warning("%d turns' spans did not reach the collector", len(turns))
                return

    def _spans(self, record: TurnRecord, trace: TraceContext, ahead: float) -> list[ReadableSpan]:
        context = _context(trace.trace_id, int(trace.span_id, 16))
        outcome = record.outcome
        turn = ReadableSpan(
            name=f"turn {record.path}",
            context=context,
            parent=_context(trace.trace_id, int(trace.parent, 16), remote=True) if trace.parent else None,
            resource=self._resource,
            kind=SpanKind.SERVER,
            attributes={
                "url.path": record.path,
                "http.response.status_code": record.status,
                "duplex.request_id": record.request_id,
                "duplex.revision": record.revision,
                "duplex.reuse": outcome.kind,
                "duplex.reason": outcome.reason,
                "duplex.tokens.pulled": outcome.pulled,
                "duplex.tokens.computed": outcome.computed,
                "duplex.tokens.completion": record.completion_tokens,
            },
            status=_status(record.status < HTTPStatus.INTERNAL_SERVER_ERROR),
            start_time=_nanoseconds(record.began + ahead),
            end_time=_nanoseconds(record.ended + ahead),
        )
        return [turn, *(self._leg(leg, trace, context, ahead, record.ended) for leg in record.legs)]

    def _leg(
        self, leg: LegRecord, trace: TraceContext, parent: SpanContext, ahead: float, turn_ended: float
    ) -> ReadableSpan:
        return ReadableSpan(
            name=f"{leg.name} leg",
            context=_context(trace.trace_id, self._ids.generate_span_id()),
            parent=parent,
            resource=self._resource,
            kind=SpanKind.CLIENT,
            attributes={"duplex.leg": leg.name, "duplex.engine": leg.engine, "duplex.failed": leg.what},
            status=_status(not leg.what),
            start_time=_nanoseconds(leg.began + ahead),
            end_time=_nanoseconds((leg.ended or turn_ended) + ahead),
        )


def _context(trace_id: bytes, span_id: int, *, remote: bool = False) -> SpanContext:
    return SpanContext(int(trace_id, 16), span_id, is_remote=remote, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _status(good: bool) -> Status:  # noqa: FBT001 - says itself
    return Status(StatusCode.UNSET if good else StatusCode.ERROR)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
