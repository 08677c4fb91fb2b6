from pathlib import Path

import pytest
import yaml

from ingestion.errors import SettingsError
from ingestion.settings import Settings, load
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


BROKERS = {"KAFKA_BOOTSTRAP_SERVERS": "broker:9093"}
LOGIN = {"KAFKA_USERNAME": "me", "KAFKA_PASSWORD": "hidden-one"}
SCRAM = {"KAFKA_SASL_MECHANISM": "SCRAM-SHA-512", **LOGIN}
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMAo=\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nMAo=\n-----END PRIVATE KEY-----\n"


def set_all(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"HEADWATER_{name}", value)


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    """A folder of files as the settings want them."""
    for name, text in {"ca": CERTIFICATE, "key": KEY}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("values", "named", "step"),
    [
        ({"KAFKA_SECURITY_PROTOCOL": "SASL_SSL"}, "SASL_MECHANISM is not set", "SCRAM-SHA-512"),
        (SCRAM, "SASL_MECHANISM is SCRAM-SHA-512", "SASL_SSL"),
        (LOGIN, "KAFKA_PASSWORD is set", "KAFKA_SECURITY_PROTOCOL is PLAINTEXT"),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "KAFKA_SASL_MECHANISM": "PLAIN"},
            "KAFKA_USERNAME is not set",
            "KAFKA_PASSWORD is not set",
        ),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_SASL_MECHANISM": "AWS_MSK_IAM"},
            "KAFKA_SECURITY_PROTOCOL is SSL",
            "needs SASL_SSL",
        ),
        ({"KAFKA_SASL_MECHANISM": "AWS_MSK_IAM", **LOGIN}, "KAFKA_USERNAME is set", "unset it"),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_CERTIFICATE_FILE": "{pem}/ca"},
            "KAFKA_CERTIFICATE_FILE is set",
            "KAFKA_KEY_FILE is not",
        ),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_KEY_PASSWORD": "hidden-two"},
            "KAFKA_KEY_PASSWORD is set",
            "KAFKA_KEY_FILE is not",
        ),
        ({"KAFKA_CA_FILE": "{pem}/ca"}, "KAFKA_CA_FILE is set", "set that to SSL or SASL_SSL"),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_CA_FILE": "{pem}/gone"},
            "/gone, which cannot be read (No such file",
            "correct the path",
        ),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_CA_FILE": "{pem}/key"},
            "holds no PEM certificate",
            "openssl x509",
        ),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_KEY_FILE": "{pem}/ca"},
            "holds no private key",
            "openssl pkcs8 -topk8",
        ),
    ],
)
def test_half_a_security_is_refused_with_the_next_step(
    dotenv: Path,
    monkeypatch: pytest.MonkeyPatch,
    pem: Path,
    values: dict[str, str],
    named: str,
    step: str,
) -> None:
    set_all(monkeypatch, BROKERS | {name: text.format(pem=pem) for name, text in values.items()})
    message = refused(dotenv)
    assert named in message
    assert step in message
    assert "hidden" not in message


def test_the_local_broker_takes_no_security(dotenv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"KAFKA_SECURITY_PROTOCOL": "SASL_SSL", **SCRAM})
    message = refused(dotenv)
    assert "HEADWATER_KAFKA_BOOTSTRAP_SERVERS is not" in message
    assert "hidden-one" not in message


def test_whole_combinations_are_taken(
    dotenv: Path, monkeypatch: pytest.MonkeyPatch, pem: Path
) -> None:
    files = {"CERTIFICATE_FILE": pem / "ca", "KEY_FILE": pem / "key", "CA_FILE": pem / "ca"}
    tls = {f"KAFKA_{name}": str(file) for name, file in files.items()}
    set_all(monkeypatch, BROKERS | {"KAFKA_SECURITY_PROTOCOL": "SASL_SSL", **SCRAM, **tls})
    settings = load(dotenv)
    assert settings.kafka_key_file == pem / "key"
    assert "hidden-one" not in repr(settings)


def test_a_message_never_shows_a_secret(dotenv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(
        monkeypatch,
        {
            "KAFKA_PASSWORD": "hidden-one\n",
            "SCHEMA_REGISTRY_URL": "https://me:hidden-two@registry.example.com",
            "KAFKA_BOOTSTRAP_SERVERS": "me:hidden-three@broker:9092",
        },
    )
    message = refused(dotenv)
    assert "HEADWATER_KAFKA_PASSWORD is a secret, but must be one line" in message
    assert "registry.example.com" in message
    assert "hidden" not in message


def test_a_password_in_dotenv_is_refused(dotenv: Path) -> None:
    dotenv.write_text("HEADWATER_KAFKA_PASSWORD=hidden-one\n")
    message = refused(dotenv)
    assert "HEADWATER_KAFKA_PASSWORD (in .env) is a secret" in message
    assert "hidden-one" not in message


@pytest.mark.parametrize(
    ("values", "iam"),
    [
        ({"KAFKA_BOOTSTRAP_SERVERS": "b-1:9098,b-2:9098"}, True),
        ({"KAFKA_BOOTSTRAP_SERVERS": "b-1:9098,b-2:9092"}, False),
        ({"KAFKA_BOOTSTRAP_SERVERS": "b-1:9098", "KAFKA_SECURITY_PROTOCOL": "PLAINTEXT"}, False),
        ({"KAFKA_BOOTSTRAP_SERVERS": "b-1:9092", "KAFKA_SASL_MECHANISM": "AWS_MSK_IAM"}, True),
        ({}, False),
    ],
)
def test_iam_is_told_by_its_name_or_its_port(
    dotenv: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, str], iam: bool
) -> None:
    set_all(monkeypatch, values)
    assert load(dotenv).uses_msk_iam is iam
