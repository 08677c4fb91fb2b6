"""How settings become the options of the Kafka client."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from ingestion.errors import HeadwaterError
from ingestion.kafka import client_options
from ingestion.security import librdkafka_options
from ingestion.settings import Settings

MSK = "b-1.lake.abc.c2.kafka.eu-west-1.amazonaws.com:9098"


def test_without_security_nothing_is_asked_of_the_broker() -> None:
    assert librdkafka_options(Settings()) == {"security.protocol": "PLAINTEXT"}


def test_each_setting_is_an_option_of_the_client() -> None:
    settings = Settings(
        kafka_bootstrap_servers="broker:9093",
        kafka_security_protocol="SASL_SSL",
        kafka_sasl_mechanism="PLAIN",
        kafka_username="me",
        kafka_password=SecretStr("hidden-one"),
        kafka_certificate_file=Path("/a folder/chain.pem"),
        kafka_key_file=Path("/a folder/key.pem"),
        kafka_key_password=SecretStr("hidden-two"),
    )
    assert librdkafka_options(settings) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hidden-one",
        "ssl.certificate.location": "/a folder/chain.pem",
        "ssl.key.location": "/a folder/key.pem",
        "ssl.key.password": "hidden-two",
    }
    assert "hidden" not in repr(settings)


def test_msk_without_the_signer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(HeadwaterError) as caught:
        client_options(Settings(kafka_bootstrap_servers=MSK))
    assert 'pip install "headwater[msk]"' in caught.value.hint


@pytest.mark.parametrize(
    ("server", "region"),
    [
        (MSK, "eu-west-1"),
        ("boot-x.c1.kafka-serverless.us-east-2.amazonaws.com:9098", "us-east-2"),
        ("broker.example.com:9098", "ap-south-1"),
    ],
)
def test_a_token_is_for_the_region_of_the_broker(
    monkeypatch: pytest.MonkeyPatch, server: str, region: str
) -> None:
    """Amazon's signer is a stranger's part, and not installed here: a stand-in takes its place."""
    provider = SimpleNamespace(generate_auth_token=lambda region: (f"for {region}", 5_000))
    signer = SimpleNamespace(MSKAuthTokenProvider=provider)
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    options = librdkafka_options(Settings(kafka_bootstrap_servers=server))
    assert (options["security.protocol"], options["sasl.mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
    assert options["oauth_cb"]("") == (f"for {region}", 5.0)


def test_missing_aws_credentials_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(region: str) -> None:
        raise ValueError(f"no credentials in {region}")

    provider = SimpleNamespace(generate_auth_token=fail)
    signer = SimpleNamespace(MSKAuthTokenProvider=provider)
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    with pytest.raises(HeadwaterError) as caught:
        librdkafka_options(Settings(kafka_bootstrap_servers=MSK))
    assert "no credentials in eu-west-1" in caught.value.message
    assert "AWS_PROFILE" in caught.value.hint


def test_a_region_that_nobody_names_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "aws_msk_iam_sasl_signer", SimpleNamespace(MSKAuthTokenProvider=None)
    )
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(HeadwaterError) as caught:
        librdkafka_options(Settings(kafka_bootstrap_servers="broker.example.com:9098"))
    assert "AWS_REGION" in caught.value.hint
