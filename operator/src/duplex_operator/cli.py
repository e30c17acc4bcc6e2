"""The command line of the operator: ``run`` it, or print its ``crds``."""

import argparse
import asyncio
import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from duplex_kube.client import ConnectError, connect
from duplex_operator.api.crd import crd_files
from duplex_operator.handlers.host import Host
from duplex_operator.reconcile.router_stats import HttpStatsReader
from duplex_operator.runtime.clock import SystemClock
from duplex_operator.runtime.lasting import EndedError
from duplex_operator.runtime.leader import LostLeadershipError
from duplex_operator.runtime.settings import Settings

USER_AGENT = "duplex-operator"

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "crds":
        sys.stdout.write("---\n".join(crd_files().values()))
        return 0
    try:
        settings = _settings(options)
    except ValueError as error:
        parser.error(str(error))
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        asyncio.run(_run(settings))
    except (ConnectError, EndedError, LostLeadershipError, OSError) as error:
        logging.getLogger(USER_AGENT).error("%s", error)  # noqa: TRY400 - the message says it all
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="duplex-operator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("crds", help="print the CustomResourceDefinitions as YAML")
    run = commands.add_parser("run", help="run the operator", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    run.add_argument("--router-image", required=True, help="image of the routers")
    run.add_argument("--connector-image", required=True, help="image whose init container brings the connector")
    run.add_argument("--namespace", action="append", default=[], help="watch this namespace only; may be repeated")
    run.add_argument("--watch-nodes", action="store_true", help="replace and empty engines on cordoned nodes")
    run.add_argument("--lease-namespace", default=None, help="namespace of the Lease; left out: the pod's own")
    run.add_argument("--lease-name", default="duplex-operator", help="name of the Lease")
    run.add_argument("--cluster-domain", default="cluster.local", help="DNS domain of Services")
    run.add_argument("--kubeconfig", type=Path, default=None, help="kubeconfig; left out: in-cluster, then $KUBECONFIG")
    run.add_argument("--health-host", default="127.0.0.1", help="address of /healthz, /readyz and /metrics")
    run.add_argument("--health-port", type=int, default=8080, help="its port")
    run.add_argument("--workers", type=int, default=16, help="servings that are worked on at once")
    run.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"], help="least level")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    own = _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else "default"
    # The host name is the pod's; the rest makes each life of a container a candidate of its own.
    identity = f"{os.environ.get('POD_NAME') or os.uname().nodename}_{uuid.uuid4().hex[:8]}"
    return Settings(
        router_image=options.router_image,
        connector_image=options.connector_image,
        identity=identity,
        lease_namespace=options.lease_namespace or own,
        lease_name=options.lease_name,
        namespaces=tuple(options.namespace),
        watch_nodes=options.watch_nodes,
        cluster_domain=options.cluster_domain,
        kubeconfig=options.kubeconfig,
        health_host=options.health_host,
        health_port=options.health_port,
        workers=options.workers,
    )


async def _run(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    reader = HttpStatsReader()
    async with await connect(settings.kubeconfig, user_agent=USER_AGENT) as client:

        def take_signals() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, host.stop.set)

        host = Host(
            settings=settings,
            api=client,
            credentials=client.credentials,
            stats_reader=reader,
            clock=SystemClock(),
            take_signals=take_signals,
        )
        take_signals()
        try:
            await host.run()
        finally:
            await reader.close()
