"""The copy that the init container makes for an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from duplex_connector import install


def test_the_copy_is_imported_without_anything_else(tmp_path: Path) -> None:
    install.install(tmp_path)
    code = "import duplex_connector, duplex_connector.proof as p; print(duplex_connector.__file__, p.SHORT_STEP)"
    # -S and -I would hide it; no site-packages and only the copy on the path is what an engine image has.
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [str(tmp_path / "duplex_connector" / "__init__.py"), "64"]


def test_a_second_run_replaces_the_first(tmp_path: Path) -> None:
    place = install.install(tmp_path)
    (place / "gone.py").write_text("")
    install.install(tmp_path)
    assert not (place / "gone.py").exists()


def test_no_compiled_file_goes_along(tmp_path: Path) -> None:
    place = install.install(tmp_path)
    assert not list(place.rglob("*.pyc"))
    assert (place / "nixl.py").is_file()


def test_a_missing_folder_is_an_error_that_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main([str(tmp_path / "absent")]) == 1
    assert "mount the volume" in capsys.readouterr().err
