"""The command line: what it prints, and what it says when it cannot run."""

from pathlib import Path

import pytest

from duplex_operator.cli import main

CRDS = Path(__file__).resolve().parents[4] / "crds"
IMAGES = ("--router-image=r:1", "--connector-image=c:1")


def test_crds_prints_what_stands_in_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crds"]) == 0
    assert capsys.readouterr().out == "---\n".join(path.read_text() for path in sorted(CRDS.glob("*.yaml")))


@pytest.mark.parametrize("arguments", [[], ["run"], ["run", *IMAGES, "--log-level=loud"], ["walk"]])
def test_a_wrong_command_line_is_refused_with_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: duplex-operator" in capsys.readouterr().err


def test_without_a_cluster_it_says_what_was_tried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["run", *IMAGES, f"--kubeconfig={tmp_path / 'absent'}"]) == 1
    assert "give a kubeconfig, or run inside a pod" in caplog.text


@pytest.mark.parametrize("wrong", [["--workers=0"], ["--lease-name=x", "--router-image="]])
def test_values_that_cannot_work_are_refused_by_name(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", *IMAGES, f"--kubeconfig={tmp_path / 'absent'}", *wrong])
    assert caught.value.code == 2
    assert "must" in capsys.readouterr().err
