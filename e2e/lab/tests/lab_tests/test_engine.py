"""The real engine's environment: made once, under a name made from its sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from duplex_lab import engine


def test_what_is_made_is_found_again(tmp_path: Path) -> None:
    place = tmp_path / "environment"
    with engine._made_once(place) as missing:
        assert missing
        place.mkdir()
    with engine._made_once(place) as missing:
        assert not missing


def test_what_an_interrupted_run_left_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "environment"

    def interrupted() -> None:
        with engine._made_once(place):
            place.mkdir()
            (place / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with engine._made_once(place) as missing:
        assert missing
        assert not place.exists()


def test_a_removed_environment_is_made_again(tmp_path: Path) -> None:
    place = tmp_path / "environment"
    with engine._made_once(place):
        place.mkdir()
    place.rmdir()
    with engine._made_once(place) as missing:
        assert missing


def test_the_name_follows_the_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "pins"
    pins.write_text("first")
    monkeypatch.setattr(engine, "REQUIREMENTS", pins)
    before = engine.environment_key()
    assert engine.environment_key() == before
    pins.write_text("second")
    assert engine.environment_key() != before


def test_a_changed_shim_is_laid_into_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    shim = tmp_path / "image" / "shim"
    (shim / "plugin-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(engine, "IMAGE_FOLDER", tmp_path / "image")
    for text in ("first", "second"):
        (shim / "plugin.py").write_text(text)
        (shim / "plugin-1.0.dist-info" / "METADATA").write_text(text)
        engine._lay_shim(tmp_path / "venv")
        assert (site / "plugin.py").read_text() == text
        assert (site / "plugin-1.0.dist-info" / "METADATA").read_text() == text
    assert not list(site.glob(".*"))


def test_the_models_follow_their_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "make_models.py"
    script.write_text("first")
    monkeypatch.setattr(engine, "IMAGE_FOLDER", tmp_path)
    before = engine.models_key()
    script.write_text("second")
    assert engine.models_key() != before


def test_compiled_files_are_no_part_of_the_shim() -> None:
    assert {path.suffix for path in engine._shim_files()} <= {".py", ".txt", ""}
