from pathlib import Path

import pytest
import yaml

from headwater.errors import SettingsError
from headwater.settings import Settings, load
from tests.conftest import ROOT


def refused(dotenv: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        load(dotenv)
    assert caught.value.exit_code == 2
    return caught.value.message


@pytest.fixture
def dotenv(tmp_path: Path) -> Path:
    return tmp_path / ".env"


def test_defaults_need_nothing(dotenv: Path) -> None:
    settings = load(dotenv)
    assert settings.home == ROOT / ".headwater"
    assert settings.bootstrap_servers == f"127.0.0.1:{settings.kafka_port}"


def test_unknown_variable_is_refused_with_the_nearest_name(
    dotenv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_THRIFT_PRT", "10001")
    message = refused(dotenv)
    assert "HEADWATER_THRIFT_PRT" in message
    assert "did you mean HEADWATER_THRIFT_PORT?" in message


def test_unknown_name_in_dotenv_is_refused_and_says_where(dotenv: Path) -> None:
    dotenv.write_text("HEADWATER_KAFKA_PRT=9\n")
    assert "HEADWATER_KAFKA_PRT (in .env)" in refused(dotenv)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("HEADWATER_KAFKA_PORT", "70000", "from 1 to 65535"),
        ("HEADWATER_THRIFT_PORT", "ten", "from 1 to 65535"),
        ("HEADWATER_CATALOG_TYPE", "hive", "'embedded' or 'rest'"),
        ("HEADWATER_KAFKA_BOOTSTRAP_SERVERS", "broker", "broker-1:9092,broker-2:9092"),
        ("HEADWATER_SPARK_DRIVER_MEMORY", "lots", "2g or 512m"),
        ("HEADWATER_LOG_FORMAT", "xml", "'human' or 'json'"),
    ],
)
def test_value_out_of_range_names_variable_value_and_what_is_allowed(
    dotenv: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    monkeypatch.setenv(name, value)
    message = refused(dotenv)
    assert f"{name} is '{value}'" in message
    assert allowed in message


def test_every_problem_is_reported_at_once(dotenv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_KAFKA_PORT", "0")
    monkeypatch.setenv("HEADWATER_NOPE", "1")
    assert len(refused(dotenv).splitlines()) == 2


def test_rest_catalog_needs_its_address(dotenv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_CATALOG_TYPE", "rest")
    assert "HEADWATER_CATALOG_URI is not set" in refused(dotenv)


def test_environment_wins_over_dotenv_and_empty_means_unset(
    dotenv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dotenv.write_text("HEADWATER_KAFKA_PORT=2000\nHEADWATER_THRIFT_PORT=3000\n")
    monkeypatch.setenv("HEADWATER_KAFKA_PORT", "2001")
    monkeypatch.setenv("HEADWATER_THRIFT_HOST", "")
    settings = load(dotenv)
    assert (settings.kafka_port, settings.thrift_port) == (2001, 3000)
    assert settings.thrift_host is None


def test_dbt_profile_has_the_defaults_of_the_settings() -> None:
    profile = yaml.safe_load((ROOT / "profiles" / "profiles.yml").read_text())
    local = profile["headwater"]["outputs"]["local"]
    default = Settings.model_fields["thrift_port"].default
    assert f"env_var('HEADWATER_THRIFT_PORT', '{default}')" in local["port"]
    assert "env_var('HEADWATER_THRIFT_HOST', '127.0.0.1')" in local["host"]
