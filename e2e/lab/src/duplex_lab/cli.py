"""The command duplex-lab: a real Kubernetes on this machine, its images, and faults on demand."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Final

from duplex_lab import faults
from duplex_lab.cluster import open_cluster
from duplex_lab.errors import LabError
from duplex_lab.images import NAMES, build_image
from duplex_lab.local_cluster import LocalCluster
from duplex_lab.programs import ensure_programs
from duplex_lab.progress import Progress

_DEFAULT_NAME: Final = "duplex"
_PASSED_ON: Final = ("kubectl", "helm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. Errors are one text that says what to do."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except LabError as error:
        sys.stderr.write(f"duplex-lab: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("duplex-lab: interrupted; `duplex-lab down` removes what is left\n")
        return 130


def _run(given: list[str]) -> int:
    if given[:1] and given[0] in _PASSED_ON:
        return _client(given[0], given[1:])
    # What follows -- is another program's and none of our options.
    own, words = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    options = _parser().parse_args(own)
    if words and options.command != "exec":
        raise LabError(f"`{options.command}` takes no words after --")
    kind = os.environ.get("CLUSTER") or "local"
    if options.command in ("up", "down"):
        cluster = open_cluster(options.name, kind)
        if options.command == "up":
            cluster.up(options.nodes)
        else:
            cluster.down()
        return 0
    if options.command == "images":
        return _images(options)
    if options.command == "programs":
        ensure_programs(Progress())
        return 0
    if kind != "local":
        raise LabError(f"`{options.command}` is for the local lab; with CLUSTER={kind} use kubectl, helm and kind")
    return _local(options, words, LocalCluster(options.name, Progress()))


def _local(options: argparse.Namespace, words: list[str], lab: LocalCluster) -> int:
    if options.command == "status":
        return _status(lab)
    if options.command == "logs":
        return _logs(lab, options.component)
    if options.command == "exec":
        return _exec(lab, options.node, words)
    if options.command == "forward":
        return _forward(lab, options)
    print(_fault(lab, options))
    return 0


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--name", default=_DEFAULT_NAME, help=f"the lab's name (default {_DEFAULT_NAME})")
    parser = argparse.ArgumentParser(prog="duplex-lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, parents=[shared], help=text, description=text)

    up = command("up", "start the lab; nothing happens when it is up already")
    up.add_argument("--nodes", type=int, default=1, help="how many nodes (default 1)")
    command("down", "end the lab and remove all its traces")
    command("status", "say what runs; exit status 1 when the lab is not up")
    command("logs", "print a component's log, or the names there are").add_argument("component", nargs="?")
    for client in _PASSED_ON:
        words = command(
            client, f"run {client} as the cluster's administrator: duplex-lab {client} [--name NAME] -- ..."
        )
        words.add_argument("words", nargs=argparse.REMAINDER)
    inside = command("exec", "run a program in a node: duplex-lab exec [--name NAME] node1 -- PROGRAM ...")
    inside.add_argument("node")
    forward = command("forward", "lead a port of this machine to HOST:PORT in the lab until interrupted")
    forward.add_argument("target", help="such as router.demo.svc.cluster.local:8000")
    forward.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)")
    images = command("images", "build images into the cache, or build them and give them to the lab's nodes")
    images.add_argument("action", choices=("build", "load"))
    images.add_argument("names", nargs="*", metavar="IMAGE", help=f"default: {' '.join(NAMES[:-1])}; also {NAMES[-1]}")
    command("programs", "build the lab's Go programs into the cache, if they are not there")
    fault = command("fault", "break something: " + " ".join((*faults.WITH_TARGET, *faults.WITHOUT_TARGET)))
    fault.add_argument("fault", choices=(*faults.WITH_TARGET, *faults.WITHOUT_TARGET), metavar="FAULT")
    fault.add_argument("target", nargs="?", help="NAMESPACE/POD[/CONTAINER], an address, or a node")
    fault.add_argument("-9", dest="kill", action="store_true", help="kill-pod: SIGKILL instead of SIGTERM")
    return parser


def _images(options: argparse.Namespace) -> int:
    names = options.names or NAMES[:-1]
    if options.action == "load":
        open_cluster(options.name, os.environ.get("CLUSTER") or "local").load_images(names)
        return 0
    progress = Progress()
    for name in names:
        print(build_image(name, progress).archive)
    return 0


def _status(lab: LocalCluster) -> int:
    status = lab.status()
    print(json.dumps(status, indent=1))
    return 0 if status["up"] else 1


def _logs(lab: LocalCluster, component: str | None) -> int:
    logs = lab.logs()
    if component is None:
        print("\n".join(logs) or f"lab {lab.name} has no logs: it is not up")
        return 0
    if component not in logs:
        raise LabError(f"no log {component!r}; there are {', '.join(logs) or 'none: the lab is not up'}")
    sys.stdout.write(logs[component].read_text(errors="replace"))
    return 0


def _client(program: str, words: list[str]) -> int:
    """Run kubectl or helm in the user's terminal; only a leading --name is ours."""
    name = _DEFAULT_NAME
    if words[:1] == ["--name"] and len(words) > 1:
        name, words = words[1], words[2:]
    elif words[:1] and words[0].startswith("--name="):
        name, words = words[0].partition("=")[2], words[1:]
    command, environment = LocalCluster(name, Progress()).client_command(program, words)
    return subprocess.run(command, env=environment, check=False).returncode


def _exec(lab: LocalCluster, name: str, words: list[str]) -> int:
    if not words:
        raise LabError("give a program after --, such as: duplex-lab exec node1 -- ip addr")
    return subprocess.run([*lab.node(name).prefix, *words], check=False).returncode


def _forward(lab: LocalCluster, options: argparse.Namespace) -> int:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with lab.forward(options.target, options.port) as port:
        print(f"127.0.0.1:{port} leads to {options.target}; interrupt to end", flush=True)
        ended.wait()
    return 0


def _fault(lab: LocalCluster, options: argparse.Namespace) -> str:
    if options.fault in faults.WITHOUT_TARGET:
        return faults.WITHOUT_TARGET[options.fault](lab)
    if not options.target:
        raise LabError(f"fault {options.fault} needs a target: NAMESPACE/POD[/CONTAINER], an address, or a node")
    if options.fault == "kill-pod":
        return faults.kill_pod(lab, options.target, signal.SIGKILL if options.kill else signal.SIGTERM)
    return faults.WITH_TARGET[options.fault](lab, options.target)
