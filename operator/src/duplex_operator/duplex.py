"""The command line for people: `duplex lint` checks resources without a cluster, `duplex plan` shows their steps."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from duplex_connector.contract import Role
from duplex_operator.api import DisaggregatedServing
from duplex_operator.lint import ConfigError, Finding, Severity, lint_documents, read_model, stored
from duplex_operator.rehearsal import Cluster, Step, rehearse
from duplex_operator.render import RenderContext

_CONTEXT = RenderContext(router_image="(the chart's)", connector_image="(the chart's)", operator_version="0.1.0")


class InputError(Exception):
    """A file cannot be used; the text says which and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where nothing is wrong, 1 where something is, 2 where the input cannot be read."""
    options = _parser().parse_args(arguments)
    try:
        code = int(options.run(options))
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough, as `| head`; nothing is left to say at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (InputError, ConfigError, OSError, UnicodeError) as problem:
        sys.stderr.write(f"duplex: {problem}\n")
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="duplex", description=__doc__)
    commands = parser.add_subparsers(required=True)
    lint = commands.add_parser("lint", help="say what the cluster would refuse, and what is worth a second look")
    lint.add_argument("files", nargs="+", type=Path, metavar="FILE", help="YAML files with DisaggregatedServings")
    lint.add_argument("--model", type=Path, help="the model's folder or config.json: adds the memory arithmetic")
    lint.add_argument("--strict", action="store_true", help="warnings fail too")
    lint.set_defaults(run=_lint)
    plan = commands.add_parser("plan", help="print the steps that the operator would take")
    plan.add_argument("-f", "--file", required=True, type=Path, help="YAML file with one DisaggregatedServing")
    plan.add_argument("--from", dest="before", type=Path, help="what is applied now; left out: nothing is")
    plan.add_argument(
        "--scale",
        action="append",
        default=[],
        type=_scale,
        metavar="ROLE=N",
        help="what an autoscaler then asks for, of a role whose scaling.mode is External; may be repeated",
    )
    plan.set_defaults(run=_plan)
    return parser


def _lint(options: argparse.Namespace) -> int:
    failing = {Severity.ERROR, Severity.WARNING} if options.strict else {Severity.ERROR}
    model = read_model(options.model) if options.model is not None else None
    worst = 0
    for path in options.files:
        results = lint_documents(_text(path), model)
        for name, findings in results:
            sys.stdout.write("".join(f"{line}\n" for line in _report(path, name, findings)))
            worst = max(worst, int(any(found.severity in failing for found in findings)))
        if not results:
            sys.stdout.write(f"{path}: no DisaggregatedServing in it\n")
    return worst


def _report(path: Path, name: str, findings: Sequence[Finding]) -> list[str]:
    where = f"{path}: {name}" if name else str(path)
    return [f"{where}: {found}" for found in findings] or [f"{where}: ok"]


def _scale(text: str) -> tuple[str, int]:
    role, _, number = text.partition("=")
    if role not in tuple(Role) or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: give prefill=N or decode=N")
    return role, int(number)


def _plan(options: argparse.Namespace) -> int:
    cluster = Cluster()
    if options.before is not None:
        for _ in rehearse(_serving(options.before), cluster, _CONTEXT):
            pass
    cluster.asked = dict(options.scale)
    for number, step in enumerate(rehearse(_serving(options.file), cluster, _CONTEXT), 1):
        sys.stdout.write(_words(number, step))
    return 0


def _words(number: int, step: Step) -> str:
    states = "; ".join(
        f"{name}: prefill {state.prefill[0]}/{state.prefill[1]}, decode {state.decode[0]}/{state.decode[1]}"
        + (", takes new conversations" if state.weight else "")
        for name, state in step.revisions.items()
    )
    actions = [f"     {action}" for action in step.actions] or ["     wait for pods"]
    return "\n".join([f"{number:3}. Ready {step.ready}   [{states}]", *actions]) + "\n"


def _serving(path: Path) -> DisaggregatedServing:
    text = _text(path)
    errors = [found for _, findings in lint_documents(text) for found in findings if found.severity is Severity.ERROR]
    if errors:
        raise InputError(f"{path}: {errors[0]} (`duplex lint {path}` shows all)")
    servings = [
        one for one in yaml.safe_load_all(text) if isinstance(one, dict) and one.get("kind") == "DisaggregatedServing"
    ]
    if len(servings) != 1:
        raise InputError(f"{path}: must hold exactly one DisaggregatedServing, not {len(servings)}")
    return DisaggregatedServing.model_validate(stored(servings[0]))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
