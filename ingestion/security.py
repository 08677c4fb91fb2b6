"""How the brokers are reached and how we log in, in the words of librdkafka."""

import re
from collections.abc import Callable
from typing import Any

from ingestion.errors import HeadwaterError
from ingestion.settings import Settings, aws_region


def librdkafka_options(settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "security.protocol": _protocol(settings),
        "sasl.mechanism": settings.kafka_sasl_mechanism,
        "sasl.username": settings.kafka_username,
        "sasl.password": settings.kafka_password and settings.kafka_password.get_secret_value(),
        "ssl.ca.location": _text(settings.kafka_ca_file),
        "ssl.certificate.location": _text(settings.kafka_certificate_file),
        "ssl.key.location": _text(settings.kafka_key_file),
        "ssl.key.password": settings.kafka_key_password
        and settings.kafka_key_password.get_secret_value(),
    }
    if settings.uses_msk_iam:
        options |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": _msk_token(settings)}
    return {name: value for name, value in options.items() if value is not None}


def _protocol(settings: Settings) -> str:
    return "SASL_SSL" if settings.uses_msk_iam else settings.kafka_security_protocol


def _text(path: object | None) -> str | None:
    return None if path is None else str(path)


def _msk_token(settings: Settings) -> Callable[[str], tuple[str, float]]:
    """librdkafka has no IAM of its own: Amazon's signer makes a token whenever it asks for one."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError as error:
        raise HeadwaterError(
            "Amazon MSK with IAM needs Amazon's signer, which is not installed here",
            'run: pip install "headwater[msk]"',
        ) from error
    host = settings.bootstrap_servers.split(",")[0].split(":")[0]
    named = re.search(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", host)
    region = named[1] if named else aws_region()
    if region is None:
        raise HeadwaterError(
            f"the AWS region of {host} is not known", "name it in the environment: AWS_REGION"
        )

    def token(_config: str) -> tuple[str, float]:
        text, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return text, expires_ms / 1000

    try:
        token("")  # librdkafka would wait 10 s for it, and then not say why there is none
    except Exception as error:  # each of AWS's places for credentials fails in its own way
        raise HeadwaterError(
            f"AWS gives no credentials for Kafka: {error}",
            "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ) from error
    return token
