"""`duplex-router`: the command line."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path

import uvloop

from duplex_connector.contract import Port
from duplex_kube.client import ConnectError, connect

from .fleet.fleet import Fleet
from .http.credentials import CredentialError
from .http.settings import CredentialSettings, ServerSettings
from .options import add_seen_options, add_store_options, seen_of, store_of
from .service import Service, ServiceSettings, Source
from .source.file import FileSource
from .source.kubernetes import KubernetesSource
from .store.address import StoreAddressError
from .turn.admission import QueueSettings
from .turn.core import LegSettings

log = logging.getLogger(__name__)

GC_THRESHOLDS = (50_000, 20, 20)
"""Rarer collections: turns make no cycles, and each pass over all connections would show in the latency."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; exits with a message where it is wrong."""
    legs, queue, server, service = LegSettings(), QueueSettings(), ServerSettings(), ServiceSettings()
    parser = argparse.ArgumentParser(prog="duplex-router", description="Route turns over prefill and decode engines.")
    parser.add_argument("--fleet", type=Path, help="fleet document as a YAML or JSON file, without Kubernetes")
    parser.add_argument("--namespace", help="namespace of the DisaggregatedServing")
    parser.add_argument("--serving", help="name of the DisaggregatedServing")
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's own account, or $KUBECONFIG")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 - a server in a pod
    parser.add_argument("--port", type=int, default=Port.API)
    parser.add_argument("--admin-port", type=int, default=Port.ADMIN)
    parser.add_argument("--pod-name", default=os.environ.get("POD_NAME", ""))
    parser.add_argument("--prefill-seconds", type=float, default=legs.prefill_seconds, help="prefill deadline")
    parser.add_argument("--decode-seconds", type=float, default=legs.decode_seconds, help="to the first token")
    parser.add_argument("--silence-seconds", type=float, default=legs.silence_seconds, help="within a stream")
    parser.add_argument("--drain-seconds", type=float, default=service.drain_seconds, help="on SIGTERM")
    parser.add_argument("--max-body-bytes", type=int, default=server.max_body_bytes)
    parser.add_argument("--max-turns", type=int, default=server.max_turns, help="turns under way at once")
    parser.add_argument("--engine-turns", type=int, default=queue.engine_turns, help="per decode engine")
    parser.add_argument(
        "--engine-prompt-tokens", type=int, default=queue.engine_prompt_tokens, help="unanswered, per prefill engine"
    )
    parser.add_argument("--max-waiting", type=int, default=queue.max_waiting, help="turns that wait, per revision")
    parser.add_argument("--wait-seconds", type=float, default=queue.wait_seconds, help="how long at most")
    _add_credentials(parser)
    add_store_options(parser)
    add_seen_options(parser)
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    options = parser.parse_args(arguments)
    if (options.fleet is None) == (options.serving is None or options.namespace is None):
        parser.error("give either --fleet FILE, or both --namespace and --serving")
    for one, other in (("tls_cert", "tls_key"), ("engine_cert", "engine_cert_key")):
        if (getattr(options, one) is None) != (getattr(options, other) is None):
            parser.error(f"--{one} and --{other} belong together".replace("_", "-"))
    try:
        store_of(options)
    except StoreAddressError as error:
        parser.error(str(error))
    if options.traces and find_spec("opentelemetry") is None:
        parser.error("--traces needs OpenTelemetry: pip install 'duplex-serving[router,otel]'")
    return options


def _add_credentials(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group("keys and certificates", "files, read again when they change")
    files.add_argument("--api-keys", type=Path, help="clients must show a key of this file, or of this folder's files")
    files.add_argument("--tls-cert", type=Path, help="TLS towards clients: certificate chain, PEM")
    files.add_argument("--tls-key", type=Path, help="its private key")
    files.add_argument("--engine-api-key", type=Path, help="file with the key that engines were started with")
    files.add_argument(
        "--engine-ca", type=Path, help="whom to trust as engines (URLs with https); default: the system's"
    )
    files.add_argument("--engine-cert", type=Path, help="mutual TLS: certificate to show to engines")
    files.add_argument("--engine-cert-key", type=Path, help="its private key")
    files.add_argument("--engine-tls", action="store_true", help="all engines speak TLS, also those from Kubernetes")
    files.add_argument("--engine-name", default="", help="name in the engines' certificates; default: their addresses")


def settings_of(options: argparse.Namespace) -> ServiceSettings:
    """Return the settings that a command line gives."""
    return ServiceSettings(
        host=options.host,
        port=options.port,
        admin_port=options.admin_port,
        pod_name=options.pod_name,
        drain_seconds=options.drain_seconds,
        legs=LegSettings(
            prefill_seconds=options.prefill_seconds,
            decode_seconds=options.decode_seconds,
            silence_seconds=options.silence_seconds,
        ),
        queue=QueueSettings(
            engine_turns=options.engine_turns,
            engine_prompt_tokens=options.engine_prompt_tokens,
            max_waiting=options.max_waiting,
            wait_seconds=options.wait_seconds,
        ),
        store=store_of(options),
        seen=seen_of(options),
        server=ServerSettings(max_body_bytes=options.max_body_bytes, max_turns=options.max_turns),
        credentials=CredentialSettings(
            api_keys=options.api_keys,
            engine_key=options.engine_api_key,
            certificate=options.tls_cert,
            private_key=options.tls_key,
            engine_ca=options.engine_ca,
            engine_certificate=options.engine_cert,
            engine_private_key=options.engine_cert_key,
            engine_tls=options.engine_tls,
            engine_name=options.engine_name,
        ),
    )


async def serve(options: argparse.Namespace) -> int:
    """Run a router until SIGTERM or SIGINT; returns the exit status."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        if options.fleet is not None:
            path: Path = options.fleet

            def make_source(fleet: Fleet) -> Source:
                return FileSource(fleet, path)
        else:
            try:
                client = await connect(options.kubeconfig, user_agent="duplex-router", connections=8)
            except ConnectError as error:
                log.error("%s", error)  # noqa: TRY400 - the message says it all; a traceback would hide it
                return 1
            api = await stack.enter_async_context(client)

            def make_source(fleet: Fleet) -> Source:
                return KubernetesSource(fleet, api, namespace=options.namespace, serving=options.serving)

        try:
            service = Service(settings_of(options), make_source)
            await service.start()
        except CredentialError as error:
            log.error("%s", error)  # noqa: TRY400 - the same
            return 1
        except OSError as error:
            log.error("cannot listen: %s; choose another --port or --admin-port", error)  # noqa: TRY400 - the same
            return 1
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        await stop.wait()
        await service.stop()
    return 0


def main() -> None:
    """Run the command."""
    options = parse_arguments(sys.argv[1:])
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(uvloop.run(serve(options)))
