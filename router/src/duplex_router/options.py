"""Command-line options of the store, the access log and traces, and the settings that they give."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from .store.address import StoreAddressError, StoreSettings, parse_address

STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class SeenSettings:
    """What is written and sent of turns. `access_log`: a file, `-` for standard output, None for no log.

    `traces`: URL of an OTLP collector's traces; samples are shares from 0 to 1.
    """

    access_log: Path | None = None
    access_log_sample: float = 1.0
    traces: str = ""
    trace_sample: float = 0.01


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add what says where routers share their ledgers."""
    defaults = StoreSettings()
    group = parser.add_argument_group("ledger shared with other routers (Valkey or Redis)")
    group.add_argument("--store", default="", metavar="URL", help="redis[s]:// or valkey[s]://host:port[/database]")
    group.add_argument("--store-file", type=Path, metavar="FILE", help="file with that URL, which may hold a password")
    group.add_argument("--store-ca", type=Path, metavar="FILE", help="whom to trust with TLS; default: the system's")
    group.add_argument("--store-cert", type=Path, metavar="FILE", help="our certificate, for mutual TLS")
    group.add_argument("--store-key", type=Path, metavar="FILE", help="its key")
    group.add_argument("--store-prefix", default="", help="of its keys; default: namespace/serving, or default")
    group.add_argument("--store-seconds", type=float, default=defaults.seconds, help="longest wait of a turn for it")


def store_of(options: argparse.Namespace) -> StoreSettings | None:
    """Return the store's settings; None where there is none. Raises StoreAddressError."""
    if not options.store and options.store_file is None:
        return None
    if options.store and options.store_file is not None:
        raise StoreAddressError("give --store or --store-file, not both")
    if options.store:
        parse_address(options.store)
    serving = f"{options.namespace}/{options.serving}" if options.serving else "default"
    return StoreSettings(
        url=options.store,
        url_file=options.store_file,
        ca_file=options.store_ca,
        certificate_file=options.store_cert,
        key_file=options.store_key,
        prefix=options.store_prefix or serving,
        seconds=options.store_seconds,
    )


def add_seen_options(parser: argparse.ArgumentParser) -> None:
    """Add what is written and sent of turns."""
    defaults = SeenSettings()
    group = parser.add_argument_group("access log and traces")
    group.add_argument("--access-log", type=Path, metavar="FILE", help="JSON lines; - is standard output")
    group.add_argument("--access-log-sample", type=float, default=defaults.access_log_sample, help="of good turns")
    group.add_argument("--traces", default="", metavar="URL", help="OTLP collector, as http://collector:4318/v1/traces")
    group.add_argument("--trace-sample", type=float, default=defaults.trace_sample, help="of turns that bring no trace")


def seen_of(options: argparse.Namespace) -> SeenSettings:
    """Return these settings."""
    return SeenSettings(options.access_log, options.access_log_sample, options.traces, options.trace_sample)
