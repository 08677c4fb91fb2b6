from pathlib import Path

import pytest

from headwater.local import jars
from ingestion.errors import HeadwaterError
from ingestion.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", cache=tmp_path / "cache")


def fake_ivy(*names: str, fail: Exception | None = None):  # type: ignore[no-untyped-def]
    """Stands in for the download alone; everything around it is the real code."""

    def run(_settings: object, _name: object, _work: object, made: Path, _report: object) -> None:
        made.mkdir()
        for name in names:
            (made / name).write_text(name)
        if fail:
            raise fail

    return run


def test_an_interrupted_download_leaves_no_folder(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "_run_ivy", fake_ivy("a.jar", fail=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        jars.resolve(settings, "spark", lambda *_: None)
    assert list((settings.cache / "jars").iterdir()) == []


def test_a_damaged_folder_is_not_whole_and_is_fetched_anew(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "_run_ivy", fake_ivy("a.jar", "b.jar"))
    jars.resolve(settings, "spark", lambda *_: None)
    folder = jars.jar_folder(settings, "spark")
    assert jars.is_whole(folder)
    (folder / "b.jar").write_text("half")
    assert not jars.is_whole(folder)
    jars.resolve(settings, "spark", lambda *_: None)
    assert jars.is_whole(folder)


def test_two_processes_that_fetch_at_once_agree(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fake_ivy("a.jar")

    def slower(*arguments) -> None:  # type: ignore[no-untyped-def]
        monkeypatch.setattr(jars, "_run_ivy", first)
        jars.resolve(settings, "spark", lambda *_: None)  # the other process wins the race
        first(*arguments)

    monkeypatch.setattr(jars, "_run_ivy", slower)
    jars.resolve(settings, "spark", lambda *_: None)
    assert jars.is_whole(jars.jar_folder(settings, "spark"))


def test_an_unreachable_mirror_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path / "home", cache=tmp_path / "cache", maven_mirror="http://127.0.0.1:9/m2"
    )
    with pytest.raises(HeadwaterError) as caught:
        jars.resolve(settings, "spark", lambda *_: None)
    assert "could not be fetched" in caught.value.message
    assert "HEADWATER_MAVEN_MIRROR" in caught.value.hint
    assert list((settings.cache / "jars").iterdir()) == []


def test_only_the_sets_that_the_settings_call_for_are_needed(tmp_path: Path) -> None:
    assert jars.needed_sets(Settings(home=tmp_path)) == ["spark", "kafka"]
    outside = Settings(
        home=tmp_path, kafka_bootstrap_servers="broker:9092", warehouse="s3://bucket/lake"
    )
    assert jars.needed_sets(outside) == ["spark", "s3"]
