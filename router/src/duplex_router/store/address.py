"""Where the store is and how to log in: read from a URL, or from a file that a Secret is mounted as."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

DEFAULT_PORT = 6379
_PLAIN = ("redis", "valkey")
_TLS = ("rediss", "valkeys")


class StoreAddressError(Exception):
    """An address that cannot be used. The message never holds its password."""


@dataclass(frozen=True, slots=True)
class Address:
    """One server. `user` and `password` are empty where none is needed."""

    host: str
    port: int = DEFAULT_PORT
    user: str = ""
    password: str = ""
    database: int = 0
    tls: bool = False

    def __str__(self) -> str:
        return f"{'rediss' if self.tls else 'redis'}://{self.host}:{self.port}/{self.database}"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """`url`, or the `url_file` that holds one, read anew for each connection, so that a changed password is taken up.

    `ca_file`: whom to trust, else the system's authorities; `certificate_file` and `key_file`: who we are. `prefix`
    keeps the keys of one serving apart from another's.
    """

    url: str = ""
    url_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    prefix: str = ""
    seconds: float = 0.02
    """How long a turn waits for the store."""

    def address(self) -> Address:
        """Return where the store is now. Raises StoreAddressError."""
        if self.url_file is None:
            return parse_address(self.url)
        try:
            return parse_address(self.url_file.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            raise StoreAddressError(f"the file with the store's address cannot be read: {error}") from error

    def tls(self) -> ssl.SSLContext:
        """Return how to check the store's certificate and show ours. Raises StoreAddressError."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise StoreAddressError(f"the store's certificates cannot be read: {error}") from error
        return context


def parse_address(url: str) -> Address:
    """Read `redis[s]://[user:password@]host[:port][/database]`, or the same with `valkey[s]`."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise StoreAddressError("the store's address is not a URL, or its port is not a number") from None
    if parts.scheme not in (*_PLAIN, *_TLS) or not parts.hostname:
        raise StoreAddressError("the store's address must be redis://host:port, rediss:// with TLS, or valkey(s)://")
    database = parts.path.strip("/") or "0"
    if not database.isdecimal() or parts.query or parts.fragment:
        raise StoreAddressError("the store's address may end with /<database number>, and with nothing else")
    return Address(
        host=parts.hostname,
        port=port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=int(database),
        tls=parts.scheme in _TLS,
    )
