"""How Kafka is reached, in the words of its two clients: librdkafka, and Java inside Spark.

What Spark is told shows in its plans and its UI. So the Java client gets no secret, but the name of
a variable or a file, and looks there itself.
"""

import re
from collections.abc import Callable
from typing import Any

from headwater.errors import HeadwaterError
from headwater.settings import Settings, aws_region

# Variables of Spark's process, for Kafka's EnvVarConfigProvider.
JAAS_CONFIG, KEY_PASSWORD = "KAFKA_JAAS_CONFIG", "KAFKA_KEY_PASSWORD"
IAM = "software.amazon.msk.auth.iam"
PROVIDERS = "org.apache.kafka.common.config.provider"
LOGIN_MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM": "scram.ScramLoginModule"}


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


def spark_options(settings: Settings) -> dict[str, str]:
    """Options of Spark's reader and writer: where Kafka is, and how it is reached."""
    options = {"bootstrap.servers": settings.bootstrap_servers} | java_options(settings)
    return {f"kafka.{name}": value for name, value in options.items()}


def java_options(settings: Settings) -> dict[str, str]:
    """Properties of a Kafka client in Java; none of them is a secret."""
    protocol = _protocol(settings)
    if protocol == "PLAINTEXT":
        return {}
    options = {"security.protocol": protocol}
    if settings.uses_msk_iam:
        options |= {
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": f"{IAM}.IAMLoginModule required;",
            "sasl.client.callback.handler.class": f"{IAM}.IAMClientCallbackHandler",
        }
    elif settings.kafka_sasl_mechanism:
        options |= {
            "sasl.mechanism": settings.kafka_sasl_mechanism,
            "sasl.jaas.config": f"${{env:{JAAS_CONFIG}}}",
        }
    if settings.kafka_ca_file:
        options |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(settings.kafka_ca_file),
        }
    if (chain := settings.kafka_certificate_file) and (key := settings.kafka_key_file):
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": f"${{dir:{chain.parent}:{chain.name}}}",
            "ssl.keystore.key": f"${{dir:{key.parent}:{key.name}}}",
        }
    if settings.kafka_key_password:
        options["ssl.key.password"] = f"${{env:{KEY_PASSWORD}}}"
    if any(value.startswith("${") for value in options.values()):
        options |= {
            "config.providers": "env,dir",
            "config.providers.env.class": f"{PROVIDERS}.EnvVarConfigProvider",
            "config.providers.dir.class": f"{PROVIDERS}.DirectoryConfigProvider",
        }
    return options


def java_environment(settings: Settings) -> dict[str, str]:
    """What `java_options` refers to, for the environment of Spark's process."""
    environment = {}
    if settings.kafka_password and settings.kafka_sasl_mechanism:
        module = LOGIN_MODULES[settings.kafka_sasl_mechanism.split("-")[0]]
        user, password = settings.kafka_username or "", settings.kafka_password.get_secret_value()
        environment[JAAS_CONFIG] = (
            f"org.apache.kafka.common.security.{module} required "
            f"username={_quoted(user)} password={_quoted(password)};"
        )
    if settings.kafka_key_password:
        environment[KEY_PASSWORD] = settings.kafka_key_password.get_secret_value()
    return environment


def _quoted(text: str) -> str:
    """A JAAS string. Octal for Latin-1 letters, too: Java may read the environment as ASCII."""
    escaped = re.sub(r'[\x00-\x1f"\\\x7f-\xff]', lambda found: f"\\{ord(found[0]):03o}", text)
    return f'"{escaped}"'


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
