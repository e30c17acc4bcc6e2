"""Who sends a request, as its head tells: tenant, session, request id, and the header lines that engines get of it."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Final

from duplex_connector.contract import Header
from duplex_router.fleet.document import Tenancy
from duplex_router.turn.trace import TraceContext, read_traceparent
from duplex_router.wire.heads import RequestHead, render_fields

_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}\Z")
_FORWARDED: Final = (Header.SESSION_ID.encode(),)
_KEY: Final = "caller"
_JSON: Final = b"application/json"

_process = os.urandom(8).hex().encode()


_LAST: Final = [b"%03x" % number for number in range(0x1000)]


class _Ids:
    """New request ids: eight bytes that name the process, and a number of eight; the last three digits by a table."""

    __slots__ = ("_number", "_rest")

    def __init__(self) -> None:
        self._number = -1
        self._rest = b""

    def next(self) -> bytes:
        self._number += 1
        last = self._number & 0xFFF
        if not last:
            self._rest = b"%b%013x" % (_process, self._number >> 12)
        return self._rest + _LAST[last]


_ids = _Ids()


class Caller:
    """What a head says, kept with the head, since the requests of one client share it.

    `key_line`: the header line with the client's key as engines read it. `given_id`: the client's own request id; both
    may be empty, and so may `traceparent`, the client's own.
    """

    __slots__ = (
        "_fields",
        "_key",
        "_kind",
        "_tenant_header",
        "_tenants",
        "_tracestate",
        "given_id",
        "key_line",
        "session",
        "traceparent",
    )

    def __init__(self, head: RequestHead) -> None:
        found = [(name, head.headers[name]) for name in _FORWARDED if name in head.headers]
        self._fields = render_fields(found)
        self._kind = head.headers.get(b"content-type", _JSON)
        given = head.headers.get(Header.REQUEST_ID.encode(), b"")
        self.given_id = given if _REQUEST_ID.match(given) else b""
        self.session = head.headers.get(Header.SESSION_ID.encode(), b"")
        authorization, key = head.headers.get(b"authorization", b""), head.headers.get(b"x-api-key", b"")
        self._key = authorization or key
        self.key_line = b""
        if authorization:
            self.key_line = b"authorization: %b\r\n" % authorization
        elif key:  # Anthropic's clients show it so; vLLM reads Authorization alone
            self.key_line = b"authorization: Bearer %b\r\n" % key
        self._tenant_header = head.headers.get(Header.TENANT.encode(), b"")
        self.traceparent = read_traceparent(head.headers.get(b"traceparent", b""))
        self._tracestate = head.headers.get(b"tracestate", b"") if self.traceparent else b""
        self._tenants: dict[Tenancy, bytes] = {}

    def request_id(self) -> bytes:
        """Return the client's request id, or a new one of 32 hexadecimal digits."""
        return self.given_id or _ids.next()

    def lines_for(self, request_id: bytes, trace: TraceContext | None = None, *, with_key: bool) -> bytes:
        """Return the header lines of a turn's legs."""
        return self._lines(_JSON, request_id, trace, with_key=with_key)

    def passed_lines(self, *, with_key: bool) -> bytes:
        """Return the lines for a body that is passed on as it is, of whatever type the client says."""
        return self._lines(self._kind, self.request_id(), None, with_key=with_key)

    def _lines(self, kind: bytes, request_id: bytes, trace: TraceContext | None, *, with_key: bool) -> bytes:
        key_line = self.key_line if with_key else b""
        lines = b"%bcontent-type: %b\r\n%bx-request-id: %b\r\n" % (key_line, kind, self._fields, request_id)
        parent = trace.header() if trace is not None else self.traceparent
        if not parent:
            return lines
        state = b"tracestate: %b\r\n" % self._tracestate if self._tracestate else b""
        return b"%btraceparent: %b\r\n%b" % (lines, parent, state)

    def tenant(self, tenancy: Tenancy) -> bytes:
        """Return what stands for the request's tenant: a digest, so that no secret is kept with a conversation."""
        known = self._tenants.get(tenancy)
        if known is None:
            known = self._tenants[tenancy] = self._tenant(tenancy)
        return known

    def _tenant(self, tenancy: Tenancy) -> bytes:
        if tenancy is Tenancy.NONE:
            return b""
        name = self._key if tenancy is Tenancy.AUTHORIZATION else self._tenant_header
        return hashlib.blake2b(name, digest_size=16, person=b"duplex-tenant").digest()


def caller_of(head: RequestHead) -> Caller:
    """Return the caller that a head tells of."""
    known = head.derived.get(_KEY)
    if isinstance(known, Caller):
        return known
    caller = head.derived[_KEY] = Caller(head)
    return caller
