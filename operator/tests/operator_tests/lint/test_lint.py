"""Lint gives the cluster's verdicts without a cluster: every rule, every bad file, every example."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from duplex_operator.duplex import main
from duplex_operator.lint import Severity, lint_documents, lint_object
from operator_tests.api.cel_cases import CASES, Case
from operator_tests.api.objects import serving_object
from operator_tests.api.test_rules_on_api_server import OUT_OF_BOUNDS
from operator_tests.render.test_examples import EXAMPLES

BAD = sorted((Path(__file__).parents[4] / "e2e/bad").glob("*.yaml"))
MARK = "# lint: "


def expected(path: Path) -> str:
    return next(line.removeprefix(MARK) for line in path.read_text().splitlines() if line.startswith(MARK))


def errors(obj: dict[str, Any]) -> list[str]:
    return [str(found) for found in lint_object(obj) if found.severity is Severity.ERROR]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_each_rule_accepts_and_refuses(case: Case) -> None:
    assert not any(case.rule in line for line in errors(serving_object(case.name, **case.accepted)))
    assert any(case.rule in line for line in errors(serving_object(case.refused_name, **case.refused)))


@pytest.mark.parametrize(("field", "change"), OUT_OF_BOUNDS, ids=[field for field, _ in OUT_OF_BOUNDS])
def test_bounds_are_those_of_the_schema(field: str, change: dict[str, Any]) -> None:
    assert any(line.startswith(f"error: {field}: ") for line in errors(serving_object("chat", **change)))


def test_there_are_enough_bad_files() -> None:
    assert len(BAD) >= 20


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_each_bad_file_gets_the_message_in_its_comment(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(path)]) == 1
    assert expected(path) in capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_pass(path: Path) -> None:
    assert main(["lint", str(path)]) == 0


def test_warnings_fail_only_when_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text(yaml.safe_dump(serving_object(kvTransfer={"bidirectional": {"enabled": False}})))
    assert main(["lint", str(file)]) == 0
    assert "warning: spec.kvTransfer.bidirectional.enabled: off" in capsys.readouterr().out
    assert main(["lint", "--strict", str(file)]) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": {"connector": "Stock"}}, "Stock proves nothing"),
        ({"engine": {"image": "vllm/vllm-openai:v0.32.0"}}, "only turns that are not streamed"),
        ({"kvTransfer": {"backend": "UCX", "allowSlowTransport": True}}, "a hundred times slower"),
    ],
)
def test_what_is_allowed_and_may_not_be_meant(change: dict[str, Any], words: str) -> None:
    assert words in " ".join(str(found) for found in lint_object(serving_object(**change)))


@pytest.mark.parametrize("text", ["- 1", "a: [", "kind: ConfigMap\napiVersion: v1"])
def test_other_documents_are_told_apart(text: str) -> None:
    findings = [found for _, each in lint_documents(text) for found in each]
    assert bool(findings) == ("ConfigMap" not in text)


def test_a_file_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "no-such-file.yaml"]) == 2
    assert "no-such-file.yaml" in capsys.readouterr().err
