"""Keys and certificates from files, read again when they change: a mounted Secret is renewed without a restart."""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from duplex_router.wire.heads import RequestHead

from .settings import CredentialSettings

log = logging.getLogger(__name__)

BEARER: Final = b"bearer "
_ADMITTED: Final = "admitted"
_ALPN: Final = ["http/1.1"]
_SECRETS: Final = (OSError, ssl.SSLError, ValueError)


class CredentialError(Exception):
    """A key or certificate that cannot be used. The message says which, and why."""


class Watched:
    """Files that something is made of. `refresh` makes it anew when they change; what is broken changes nothing."""

    def __init__(self, what: str, paths: Iterable[Path], load: Callable[[], None]) -> None:
        self._what, self._paths, self._load = what, list(paths), load
        self._seen = self._signature()
        try:
            load()
        except _SECRETS as error:
            raise CredentialError(f"{what}: {error}") from error

    def refresh(self) -> None:
        """Look whether the files have changed."""
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        try:
            self._load()
        except _SECRETS as error:
            log.error("%s cannot be used, the last good ones stay: %s", self._what, error)  # noqa: TRY400 - it says all
        else:
            log.info("%s read again", self._what)

    def _signature(self) -> list[tuple[str, int, int, int]]:
        found = []
        for path in self._paths:
            for file in key_files(path) if path.is_dir() else [path]:
                try:
                    told = file.stat()
                except OSError:
                    continue
                found.append((str(file), told.st_ino, told.st_size, told.st_mtime_ns))
        return found


def key_files(folder: Path) -> list[Path]:
    """Return a folder's files; a mounted Secret keeps its own machinery under names with leading dots."""
    return sorted(file for file in folder.iterdir() if not file.name.startswith(".") and file.is_file())


def _lines(path: Path) -> list[bytes]:
    """Return the keys of a file, or of all files of a folder, one a line. Raises ValueError where there is none."""
    files = key_files(path) if path.is_dir() else [path]
    keys = [line.strip() for file in files for line in file.read_bytes().splitlines() if line.strip()]
    if not keys:
        raise ValueError(f"{path} holds no key")
    return keys


class ApiKeys:
    """Clients' keys, as digests under a secret of this process: how long a look-up takes tells nothing of a key."""

    def __init__(self) -> None:
        self._secret = os.urandom(32)
        self._digests: frozenset[bytes] = frozenset()

    def replace(self, keys: Iterable[bytes]) -> None:
        """Take new keys in place of the old."""
        self._digests = frozenset(map(self._digest, keys))

    def admit(self, head: RequestHead) -> bool:
        """Tell whether a request shows a key: `Authorization: Bearer`, or `x-api-key` as Anthropic's clients do."""
        if head.derived.get(_ADMITTED) is self._digests:
            return True
        key = shown_key(head)
        admitted = bool(key) and self._digest(key) in self._digests
        if admitted:
            head.derived[_ADMITTED] = self._digests
        return admitted

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()


def shown_key(head: RequestHead) -> bytes:
    """Return the key that a request shows; empty where it shows none."""
    given = head.headers.get(b"authorization", b"")
    if given[: len(BEARER)].lower() == BEARER:
        return given[len(BEARER) :].strip()
    return head.headers.get(b"x-api-key", b"").strip()


class Credentials:
    """What a router shows and asks for. Raises CredentialError where something cannot be read at the start.

    `settings`: where it is read from. `api_keys`: None where clients need none. `engine_line`: the header line with the
    engines' key; empty without one.
    `server`, `client`: TLS towards clients and towards engines; None: plain.
    """

    def __init__(self, settings: CredentialSettings) -> None:
        self.settings = settings
        self._watched: list[Watched] = []
        self.api_keys: ApiKeys | None = None
        self.engine_line = b""
        self.server: ssl.SSLContext | None = None
        self.client: ssl.SSLContext | None = None
        if settings.api_keys is not None:
            self.api_keys = ApiKeys()
            self._watch("the clients' API keys", [settings.api_keys], self._load_api_keys)
        if settings.engine_key is not None:
            self._watch("the engines' API key", [settings.engine_key], self._load_engine_key)
        if settings.certificate is not None and settings.private_key is not None:
            self.server = _server_context()
            self._watch("the server's certificate", [settings.certificate, settings.private_key], self._load_server)
        trusted = [settings.engine_ca, settings.engine_certificate, settings.engine_private_key]
        self._watch("the trust in engines", [path for path in trusted if path is not None], self._load_client)

    def _watch(self, what: str, paths: list[Path], load: Callable[[], None]) -> None:
        self._watched.append(Watched(what, paths, load))

    def refresh(self) -> None:
        """Read again what has changed; to be called about once a second."""
        for each in self._watched:
            each.refresh()

    @property
    def forwards(self) -> bool:
        """Whether engines get the client's own key: only where the router neither checks it nor has one for them."""
        return self.api_keys is None and not self.engine_line

    def _load_api_keys(self) -> None:
        if self.api_keys is not None and self.settings.api_keys is not None:
            self.api_keys.replace(_lines(self.settings.api_keys))

    def _load_engine_key(self) -> None:
        if self.settings.engine_key is not None:
            self.engine_line = b"authorization: Bearer %b\r\n" % _lines(self.settings.engine_key)[0]

    def _load_server(self) -> None:
        certificate, key = self.settings.certificate, self.settings.private_key
        if self.server is not None and certificate is not None:
            _server_context().load_cert_chain(certificate, key)  # what does not fit must not reach the one in use
            self.server.load_cert_chain(certificate, key)

    def _load_client(self) -> None:
        """Make a new context: connections that are open keep the one that they were opened with."""
        settings = self.settings
        context = ssl.create_default_context(cafile=settings.engine_ca)
        context.set_alpn_protocols(_ALPN)
        if settings.engine_certificate is not None:
            context.load_cert_chain(settings.engine_certificate, settings.engine_private_key)
        self.client = context


def _server_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    return context
