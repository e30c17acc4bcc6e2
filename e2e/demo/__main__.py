"""`make demo`: from nothing to a conversation whose KV comes back to prefill, on a real Kubernetes."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from dataclasses import dataclass, field

from rich.console import Console

from duplex_lab.cluster import Cluster, open_cluster
from harness.conversation import Script, Turn
from harness.installation import CONTROL_IMAGES, ROOT, install_operator, operator_log
from harness.reference import await_reference, start_reference
from harness.serving import NotReadyError, Serving, merged, read_manifest, served_name
from harness.talk import ConversationFailedError, talk

from .plans import PLANS, EnginePlan
from .report import Report, Row, print_table, rows

REPORT = ROOT / "build/demo/report.json"
NAMESPACE = "default"
REFERENCE = "reference"
LIVE_EDIT_SECONDS = 2.0


@dataclass
class Demo:
    """One run: the cluster, the serving in it, and the console that tells what happens."""

    plan: EnginePlan
    cluster: Cluster
    console: Console
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.manifest = read_manifest(self.plan.example)
        self.serving = Serving(self.cluster, NAMESPACE, self.manifest["metadata"]["name"])
        self.model = served_name(self.manifest)
        self.plain_url = ""

    def say(self, text: str) -> None:
        """Print a line of progress with the seconds since the start."""
        self.console.print(f"[dim]{time.monotonic() - self.started:6.1f} s[/dim]  {text}", highlight=False)

    def bring_up(self) -> None:
        """Cluster, images, operator, serving, reference engine; returns when the serving is Ready."""
        self.say(f"cluster ({self.cluster.kind}): starting")
        self.cluster.up()
        self.say("images: building and loading " + ", ".join((*CONTROL_IMAGES, self.plan.image)))
        self.cluster.load_images([*CONTROL_IMAGES, self.plan.image])
        self.say("helm upgrade --install duplex charts/duplex-operator")
        install_operator(self.cluster)
        self.say(f"kubectl apply -f {self.plan.example.relative_to(ROOT)}")
        additions = self.cluster.pod_additions(self.plan.image)
        if additions:
            self.say("  with the lab's additions to spec.prefill|decode.podTemplate (engine environment by hostPath)")
        self.serving.apply(merged(self.manifest, additions))
        self.say("one plain engine beside it, to compare answers with")
        self.plain_url = start_reference(self.serving, REFERENCE, seconds=self.plan.ready_seconds)
        self.serving.wait_ready(seconds=self.plan.ready_seconds, say=self.say)
        await_reference(self.serving, REFERENCE, seconds=self.plan.ready_seconds)
        self.console.print(self.serving.kubectl("get", "dsv", self.serving.name), highlight=False)

    def script(self, url: str, nonce: str, turns: int) -> Script:
        """Return the conversation of this demo against a URL."""
        return Script(
            base_url=url,
            model=self.model,
            nonce=nonce,
            turns=turns,
            first_words=self.plan.first_words,
            next_words=self.plan.next_words,
            max_tokens=self.plan.max_tokens,
        )

    def set_reuse(self, *, enabled: bool) -> None:
        """Switch bidirectional transfer live: no pod restarts; it acts from the next turn on."""
        self.serving.patch({"kvTransfer": {"bidirectional": {"enabled": enabled}}})
        time.sleep(LIVE_EDIT_SECONDS)

    def compare(self, turns: int) -> tuple[list[Row], bool]:
        """Converse with reuse on and off; return its rows and whether all answers were the plain engine's."""
        runs: dict[bool, list[Turn]] = {}
        identical = True
        for enabled in (True, False):
            nonce = secrets.token_hex(8)
            self.set_reuse(enabled=enabled)
            self.say(f"{turns} turns with reuse {'on' if enabled else 'off'}, nonce {nonce}")
            runs[enabled] = talk(self.cluster, self.script(self.serving.url, nonce, turns))
            plain = talk(self.cluster, self.script(self.plain_url, nonce, turns))
            for ours, reference in zip(runs[enabled], plain, strict=True):
                if ours.text != reference.text or not ours.text:
                    identical = False
                    self.say(f"[red]turn {ours.turn} differs[/red]: {ours.text[:90]!r} / plain {reference.text[:90]!r}")
        self.set_reuse(enabled=True)
        return rows(runs[True], runs[False]), identical

    def prefix_caching_on(self) -> None:
        """Take --no-enable-prefix-caching out of prefill's flags: a new revision, rolled out beside the old one."""
        arguments = [a for a in self.manifest["spec"]["prefill"].get("args", []) if a != "--no-enable-prefix-caching"]
        before = self.serving.get()["status"]["revision"]
        self.serving.patch({"prefill": {"args": arguments}})

        def rolled() -> bool | None:
            return True if self.serving.get()["status"].get("revision") != before else None

        self.serving.wait(rolled, seconds=self.plan.ready_seconds, what="new revision")
        self.serving.wait_ready(seconds=self.plan.ready_seconds, say=self.say)

    def run(self) -> Report:
        """Do it all and return what was found."""
        self.bring_up()
        self.console.rule("prefill's prefix cache off, as in the published study")
        found, identical = self.compare(self.plan.turns)
        self.console.rule("prefill's prefix cache on (a new revision)")
        self.prefix_caching_on()
        self.say("prefill now has old turns itself; what is left to pull are replies, where they reach the threshold")
        cached, cached_identical = self.compare(self.plan.cached_turns)
        return Report(
            engine=self.plan.engine,
            cluster=self.cluster.kind,
            turns=found,
            cached=cached,
            identical=identical and cached_identical,
            seconds=round(time.monotonic() - self.started, 1),
        )

    def tell_how_to_go_on(self) -> None:
        """Print how to reach what KEEP=1 left running."""
        lab = f".venv/bin/duplex-lab {{}} --name {self.cluster.name}"
        router = self.serving.url.removeprefix("http://")
        self.say(f"left running (KEEP=1); end it with: {lab.format('down')}")
        self.say(f"  router:  {lab.format('forward')} {router} --port 8000   then http://127.0.0.1:8000/v1")
        for pod in self.serving.list("pods"):
            port = 9100 if pod["metadata"]["labels"]["duplex.dev/role"] == "router" else 8000
            url = f"http://{pod['status'].get('podIP')}:{port}/metrics"
            self.say(f"  metrics: {lab.format('exec')} node1 -- curl {url}   ({pod['metadata']['name']})")


def main() -> int:
    """Run the demo; exit 0 only when reuse was seen and every answer was the plain engine's."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--engine", choices=sorted(PLANS), default="simulator")
    plan = PLANS[parser.parse_args().engine]
    console = Console(width=120 if not sys.stdout.isatty() else None)
    keep = bool(os.environ.get("KEEP"))
    cluster = open_cluster(name="demo", kind=os.environ.get("CLUSTER") or "local")
    demo = Demo(plan, cluster, console)
    try:
        report = demo.run()
    except (NotReadyError, ConversationFailedError) as error:
        console.print(f"[red]the demo failed:[/red] {error}", highlight=False)
        console.print(operator_log(cluster), highlight=False, markup=False)
        return 1
    else:
        report.write(REPORT)
        if keep:
            demo.tell_how_to_go_on()
        print_table(console, "prefill's prefix cache on", report.cached)
        print_table(console, f"prefill's prefix cache off ({plan.engine})", report.turns)
        console.print(report.last_line(), highlight=False)
        return 0 if report.identical and all(row.pulled_tokens for row in report.turns[1:]) else 1
    finally:
        if not keep:
            cluster.down()


if __name__ == "__main__":
    sys.exit(main())
