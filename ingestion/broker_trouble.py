"""Why a broker does not answer: what librdkafka reports, in words that help."""

import re
import socket
import ssl
from typing import NamedTuple

from ingestion.settings import Settings

PROBE_SECONDS = 2
HUNG_UP = re.compile("brokers are down|Broken pipe|reset by peer")
CERTIFICATE = (
    "HEADWATER_KAFKA_CERTIFICATE_FILE, HEADWATER_KAFKA_KEY_FILE and HEADWATER_KAFKA_KEY_PASSWORD"
)
LOGIN = "HEADWATER_KAFKA_USERNAME, HEADWATER_KAFKA_PASSWORD and HEADWATER_KAFKA_SASL_MECHANISM"
PROTOCOL = (
    "check HEADWATER_KAFKA_SECURITY_PROTOCOL and the port in HEADWATER_KAFKA_BOOTSTRAP_SERVERS"
)


class Trouble(NamedTuple):
    problem: str
    hint: str  # the next step


def explain(settings: Settings, errors: list[str], failure: str) -> Trouble:
    """The reason why a call failed, in the errors of its connections, the newest first."""
    for error in errors:
        if trouble := _security(settings, error):
            return trouble
    servers = settings.bootstrap_servers
    reasons = [error for error in errors if not HUNG_UP.search(error)]
    if errors and not reasons and settings.kafka_bootstrap_servers:
        # Brokers silently drop clients that use the wrong protocol.
        plain = settings.kafka_security_protocol.endswith("PLAINTEXT")
        wish = "speaks TLS" if plain and _tls_answer(settings) else "may want a login"
        return Trouble(f"the Kafka broker at {servers} drops the connection: it {wish}", PROTOCOL)
    hint = "check HEADWATER_KAFKA_BOOTSTRAP_SERVERS and that the broker runs"
    return Trouble(
        f"no Kafka broker answers at {servers} ({_short((reasons or [failure])[0])})",
        hint if settings.kafka_bootstrap_servers else "run: headwater up",
    )


def _security(settings: Settings, error: str) -> Trouble | None:
    """What a broker, or a file of ours, refused."""
    broker = f"the Kafka broker at {settings.bootstrap_servers}"
    if found := re.search(r"ssl\.(key|certificate|ca)\.location failed", error):
        if "mismatch" in error:
            return Trouble("the certificate and the key do not fit", f"check {CERTIFICATE}")
        name = f"HEADWATER_KAFKA_{found[1].upper()}_FILE"
        more = " and HEADWATER_KAFKA_KEY_PASSWORD" if found[1] == "key" else ""
        return Trouble(f"the file in {name} cannot be opened", f"check {name}{more}")
    if "mechanism handshake failed" in error:
        if offered := re.search(r"supported mechanisms: ([\w,-]+)", error):
            hint = "set HEADWATER_KAFKA_SASL_MECHANISM to one of these"
            return Trouble(f"{broker} offers other mechanisms: {offered[1]}", hint)
        return Trouble(f"{broker} takes no login on this port", PROTOCOL)
    if re.search("SASL authentication error|OAUTHBEARER token", error):
        if settings.uses_msk_iam:
            hint = "check this process's AWS credentials and their kafka-cluster:Connect permission"
            return Trouble(f"{broker} gets no valid AWS credentials: {_short(error)}", hint)
        return Trouble(f"{broker} refuses the user name or the password", f"check {LOGIN}")
    if "certificate verify failed" in error:
        reason = _tls_answer(settings) or "certificate verify failed"
        if "mismatch" in reason:
            hint = "name it as its certificate does, in HEADWATER_KAFKA_BOOTSTRAP_SERVERS"
            return Trouble(f"{broker} has a certificate for another name: {reason}", hint)
        hint = "set HEADWATER_KAFKA_CA_FILE to the PEM file of the authority that signed it"
        return Trouble(f"the certificate of {broker} is not trusted ({reason})", hint)
    if re.search(r"SSL alert number (4[0-8]|116)\b", error):
        if settings.kafka_certificate_file:
            return Trouble(f"{broker} refuses the client certificate", f"check {CERTIFICATE}")
        return Trouble(f"{broker} wants a client certificate (mutual TLS)", f"set {CERTIFICATE}")
    if re.search(r"PLAINTEXT broker listener|wrong version number", error):
        return Trouble(f"{broker} speaks no TLS on this port", PROTOCOL)
    return None


def _short(error: str) -> str:
    """Without librdkafka's own words around it."""
    return re.sub(r"^\S+/(bootstrap|\d+): | \(after .*\)$", "", error)


def _tls_answer(settings: Settings) -> str | None:
    """What Python thinks of the first broker's certificate; None when that speaks no TLS.

    librdkafka has one text for every certificate that it does not accept.
    """
    host, port = settings.bootstrap_servers.split(",")[0].split(":")
    context = ssl.create_default_context(cafile=settings.kafka_ca_file)
    try:
        with (
            socket.create_connection((host, int(port)), PROBE_SECONDS) as raw,
            context.wrap_socket(raw, server_hostname=host),
        ):
            return "librdkafka refuses it"
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except OSError:
        return None
