"""`duplex plan`: the planner's own steps, and what must hold in each of them whatever is changed into what."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_operator.duplex import main
from duplex_operator.rehearsal import Cluster, Step, rehearse
from duplex_operator.render import RenderContext, revision_of
from operator_tests.api.objects import serving, serving_object

CONTEXT = RenderContext(router_image="router:1", connector_image="connector:1", operator_version="0.1.0")
IMAGES = ("vllm/vllm-openai:v0.32.0", "vllm/vllm-openai:v0.33.0")

EXAMPLE = str(Path(__file__).parents[4] / "examples" / "qwen3-32b-p5en.yaml")

SIZES = st.integers(min_value=1, max_value=4)
SPECS = st.tuples(st.sampled_from(IMAGES), SIZES, SIZES)


def spec(image: str, prefill: int, decode: int) -> dict[str, Any]:
    return {"engine": {"image": image}, "prefill": {"replicas": prefill}, "decode": {"replicas": decode}}


def serves(step: Step) -> bool:
    return any(state.prefill[0] and state.decode[0] for state in step.revisions.values())


@settings(max_examples=25, deadline=None)
@given(st.lists(SPECS, min_size=2, max_size=4))
def test_a_pair_always_serves_and_new_conversations_always_have_one(specs: list[tuple[str, int, int]]) -> None:
    cluster = Cluster()
    first, *rest = (serving("chat", **spec(*one)) for one in specs)
    *_, last = rehearse(first, cluster, CONTEXT)
    for following in rest:
        for step in rehearse(following, cluster, CONTEXT):
            assert serves(step)
            taking = [state for state in step.revisions.values() if state.weight]
            assert all(state.prefill[0] and state.decode[0] for state in taking)
            assert taking
            last = step
    assert len(last.revisions) == 1
    (state,) = last.revisions.values()
    assert (state.prefill, state.decode) == ((specs[-1][1],) * 2, (specs[-1][2],) * 2)


def test_the_command_prints_the_steps_of_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text(yaml.safe_dump(serving_object("chat", **spec(IMAGES[0], 1, 2))))
    after.write_text(yaml.safe_dump(serving_object("chat", **spec(IMAGES[1], 1, 2))))
    assert main(["plan", "-f", str(after), "--from", str(before)]) == 0
    printed = capsys.readouterr().out
    old, new = (revision_of(serving("chat", **spec(image, 1, 2)).spec) for image in IMAGES)
    steps = [
        f"create Deployment chat-decode-{new} with 2 pod(s)",
        f"tell routers of {new} and {old}: new conversations begin on {new}",
        f"delete Deployment chat-decode-{old}",
        f"tell routers of {new}: new conversations begin on {new}",
    ]
    places = [printed.index(step) for step in steps]
    assert places == sorted(places)
    assert "Ready False" not in printed


def printed_steps(
    capsys: pytest.CaptureFixture[str], folder: Path, before: dict[str, Any], after: dict[str, Any], *more: str
) -> str:
    files = []
    for name, spec_of in (("before", before), ("after", after)):
        files.append(folder / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump(serving_object("chat", **spec_of)))
    assert main(["plan", "-f", str(files[1]), "--from", str(files[0]), *more]) == 0
    return capsys.readouterr().out


def in_order(printed: str, steps: list[str]) -> None:
    places = [printed.index(step) for step in steps]
    assert places == sorted(places), printed


def test_a_scale_down_is_printed_with_what_is_drained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = spec(IMAGES[1], 1, 3), spec(IMAGES[1], 1, 2)
    after["decode"] |= {"drainSeconds": 300}
    printed = printed_steps(capsys, tmp_path, before, after)
    name = f"chat-decode-{revision_of(serving('chat', **after).spec)}"
    steps = [
        f"take pod {name}-1 out of use: at most 300 s for what it holds",
        f"no new turns on {name}-1",
        f"let pod {name}-1 be deleted",
        f"scale Deployment {name} from 3 to 2",
    ]
    in_order(printed, steps)
    assert printed.rindex("tell routers") > printed.index(steps[-1]), "what is gone is named no longer"


def test_what_an_autoscaler_asks_for_is_printed_within_the_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    external = {"scaling": {"mode": "External", "maxReplicas": 8}}
    scaled = spec(IMAGES[1], 1, 2) | {"scaling": {"ratio": {"min": "1:4", "max": "1:1"}}}
    for role in ("prefill", "decode"):
        scaled[role] |= external
    printed = printed_steps(capsys, tmp_path, scaled, scaled, "--scale", "decode=6")
    revision = revision_of(serving("chat", **scaled).spec)
    assert f"scale Deployment chat-decode-{revision} from 2 to 6" in printed
    assert f"scale Deployment chat-prefill-{revision} from 1 to 2" in printed
    fixed = printed_steps(capsys, tmp_path, spec(IMAGES[1], 1, 2), spec(IMAGES[1], 1, 2), "--scale", "decode=6")
    assert "set ServingRole chat-decode to 2" in fixed
    assert "scale Deployment" not in fixed


def test_a_wrong_scale_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "-f", "x", "--scale", "router=2"])
    assert "prefill=N or decode=N" in capsys.readouterr().err


def test_equal_specs_need_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(yaml.safe_dump(serving_object("chat")))
    assert main(["plan", "-f", str(file), "--from", str(file)]) == 0
    assert "create" not in capsys.readouterr().out


def test_a_bad_file_is_not_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump(serving_object("chat", decode={"replicas": -1})))
    assert main(["plan", "-f", str(file)]) == 2
    assert "spec.decode.replicas" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from duplex_operator.duplex import main; sys.exit(main())",
        "plan",
        "-f",
        EXAMPLE,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 128 + signal.SIGPIPE
