"""Hold conversations from inside the cluster's network, each in a process of its own, with the openai client."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from duplex_lab.cluster import Cluster

from .conversation import Script, Turn, parse_turns

PROGRAM = Path(__file__).with_name("conversation.py")


class ConversationFailedError(Exception):
    """The client ended with an error; the text holds the turns before it and the error itself."""


def start(cluster: Cluster, script: Script) -> subprocess.Popen[str]:
    """Start a conversation and return its process; `finish` reads its turns."""
    process: subprocess.Popen[str] = cluster.start_in_network(
        [sys.executable, str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if process.stdin is None:
        raise ConversationFailedError("the conversation's process has no standard input")
    process.stdin.write(json.dumps(asdict(script)))
    process.stdin.close()
    process.stdin = None
    return process


def finish(process: subprocess.Popen[str], script: Script) -> list[Turn]:
    """Wait for a conversation to end and return its turns."""
    output, errors = process.communicate(timeout=script.turns * script.timeout_seconds)
    if process.returncode:
        raise ConversationFailedError(f"{output}\n{errors[-3000:]}")
    return parse_turns(output)


def talk(cluster: Cluster, script: Script) -> list[Turn]:
    """Hold one conversation and return its turns."""
    return finish(start(cluster, script), script)
