"""Who sends a request, as its head tells: tenant, session, request id, and the header lines that engines get of it."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from typing import Final

from duplex_connector.contract import Header
from duplex_router.fleet.document import Tenancy
from duplex_router.wire.heads import RequestHead, render_fields

_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}\Z")
_FORWARDED: Final = (b"authorization", b"traceparent", b"tracestate", Header.SESSION_ID.encode())
_KEY: Final = "caller"

_process = os.urandom(8).hex().encode()
_turns = itertools.count()


class Caller:
    """What a head says, kept with the head, since the requests of one client share it.

    `lines`: header lines for the engines, without a request id. `given_id`: the client's own request id, or empty.
    """

    __slots__ = ("_fields", "_head", "_tenants", "given_id", "lines", "session")

    def __init__(self, head: RequestHead) -> None:
        found = [(name, head.headers[name]) for name in _FORWARDED if name in head.headers]
        self._fields = render_fields(found)
        self.lines = b"content-type: application/json\r\n" + self._fields
        given = head.headers.get(Header.REQUEST_ID.encode(), b"")
        self.given_id = given if _REQUEST_ID.match(given) else b""
        self.session = head.headers.get(Header.SESSION_ID.encode(), b"")
        self._head = head.headers
        self._tenants: dict[Tenancy, bytes] = {}

    def passed_lines(self) -> bytes:
        """Return the lines for a body that is passed on as it is, of whatever type the client says."""
        kind = self._head.get(b"content-type", b"application/json")
        return b"content-type: %b\r\n%b" % (kind, self._fields)

    def request_id(self) -> bytes:
        """Return the client's request id, or a new one of 32 hexadecimal digits."""
        return self.given_id or b"%b%016x" % (_process, next(_turns))

    def tenant(self, tenancy: Tenancy) -> bytes:
        """Return what stands for the request's tenant: a digest, so that no secret is kept with a conversation."""
        known = self._tenants.get(tenancy)
        if known is None:
            known = self._tenants[tenancy] = self._tenant(tenancy)
        return known

    def _tenant(self, tenancy: Tenancy) -> bytes:
        if tenancy is Tenancy.NONE:
            return b""
        name = b"authorization" if tenancy is Tenancy.AUTHORIZATION else Header.TENANT.encode()
        return hashlib.blake2b(self._head.get(name, b""), digest_size=16, person=b"duplex-tenant").digest()


def caller_of(head: RequestHead) -> Caller:
    """Return the caller that a head tells of."""
    known = head.derived.get(_KEY)
    if isinstance(known, Caller):
        return known
    caller = head.derived[_KEY] = Caller(head)
    return caller
