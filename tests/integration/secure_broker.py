"""A broker with a listener for each way to connect, and the certificates that these need."""

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from headwater.local.services import broker_properties, start_broker
from ingestion.kafka import broker_problem, client_options
from ingestion.settings import Settings
from tests.conftest import free_port
from tests.integration.outside import wait_for

USER = 'an "odd" user'
# Each of these characters means something to JAAS, to Kafka's config providers or to a shell.
PASSWORD = r"""it's a "secret" \n \ $HOME ${env:PATH} {x}; end=1,ü"""  # noqa: S105
KEY_PASSWORD = r'a key\'s "password" ${env:HOME};'  # noqa: S105
PBES1 = bytes.fromhex("060a2a864886f70d010c0103")  # SHA-1 and triple DES
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL", "MUTUAL", "OTHER_HOST")


@dataclass(frozen=True)
class SecureBroker:
    ports: dict[str, int]
    folder: Path

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def settings(self, listener: str, **more: str) -> dict[str, str]:
        """The variables for this listener, as a user would set them."""
        env = {
            "HEADWATER_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{self.ports[listener]}",
            "HEADWATER_KAFKA_SECURITY_PROTOCOL": PROTOCOLS.get(listener, listener),
        }
        if listener.startswith("SASL"):
            env |= {
                "HEADWATER_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
                "HEADWATER_KAFKA_USERNAME": USER,
                "HEADWATER_KAFKA_PASSWORD": PASSWORD,
            }
        if env["HEADWATER_KAFKA_SECURITY_PROTOCOL"].endswith("SSL"):
            env["HEADWATER_KAFKA_CA_FILE"] = self.file("ca.pem")
        if listener == "MUTUAL":
            env |= {
                "HEADWATER_KAFKA_CERTIFICATE_FILE": self.file("client.pem"),
                "HEADWATER_KAFKA_KEY_FILE": self.file("client.key"),
                "HEADWATER_KAFKA_KEY_PASSWORD": KEY_PASSWORD,
            }
        return env | more


PROTOCOLS = {"MUTUAL": "SSL", "OTHER_HOST": "SSL"}


def settings_of(env: dict[str, str]) -> Settings:
    return Settings(**{name.removeprefix("HEADWATER_").lower(): env[name] for name in env})


@contextmanager
def secure_broker(folder: Path) -> Iterator[SecureBroker]:
    ports = {name: free_port() for name in LISTENERS}
    _write_certificates(folder)
    broker = SecureBroker(ports, folder)
    plain = Settings(home=folder / "broker", kafka_port=ports["PLAINTEXT"])
    plain.logs.mkdir(parents=True)
    process = start_broker(plain, plain.home, _properties(broker, plain.home))
    try:
        wait_for(lambda: process.poll() is not None or broker_problem(plain) is None)
        assert process.poll() is None, (plain.logs / "kafka.log").read_text()[-3000:]
        add_scram_user(plain, USER, PASSWORD)
        yield broker
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def add_scram_user(settings: Settings, user: str, password: str) -> None:
    admin = AdminClient(client_options(settings))
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, 4096)
        wish = UserScramCredentialUpsertion(user, info, password.encode())
        admin.alter_user_scram_credentials([wish])[user].result(30)


def _properties(broker: SecureBroker, home: Path) -> dict[str, str]:
    modules = "org.apache.kafka.common.security"
    jaas = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    login = f'{modules}.plain.PlainLoginModule required user_plain="{jaas}";'
    # A backslash is an escape in a properties file, too, which is read as Latin-1.
    login = login.replace("\\", "\\\\").replace("ü", "\\u00fc")
    scram = f"{modules}.scram.ScramLoginModule required;"
    properties = broker_properties(home, broker.ports) | {
        "listener.security.protocol.map": ",".join(
            f"{name}:{PROTOCOLS.get(name, name)}" for name in LISTENERS
        )
        + ",CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": broker.file("broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": broker.file("ca.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.other_host.ssl.keystore.location": broker.file("other.pem"),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        for mechanism, text in {
            "plain": login,
            "scram-sha-256": scram,
            "scram-sha-512": scram,
        }.items():
            properties[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = text
    return properties


def _write_certificates(folder: Path) -> None:
    """Two authorities, certificates of the first for the broker and a client, and an alien one."""
    ca, alien = _Authority("ours"), _Authority("alien")
    here = [x509.IPAddress(ip_address("127.0.0.1"))]
    for name, issuer, names in (
        ("broker", ca, here),
        ("other", ca, [x509.DNSName("elsewhere.example")]),
        ("client", ca, here),
        ("alien-client", alien, here),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = issuer.sign(name, key, names)
        private = _pem(key, None if name in ("broker", "other") else KEY_PASSWORD)
        if name in ("broker", "other"):
            (folder / f"{name}.pem").write_bytes(private + certificate)
        else:
            (folder / f"{name}.pem").write_bytes(certificate)
            (folder / f"{name}.key").write_bytes(private)
    (folder / "ca.pem").write_bytes(ca.pem)
    (folder / "alien-ca.pem").write_bytes(alien.pem)


class _Authority:
    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.pem = self.sign(name, self._key, [], authority=True)

    def sign(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        names: list[x509.GeneralName],
        authority: bool = False,
    ) -> bytes:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)


def with_password(key: Path, password: str) -> bytes:
    """The client's key under another password."""
    opened = serialization.load_pem_private_key(key.read_bytes(), KEY_PASSWORD.encode())
    assert isinstance(opened, ec.EllipticCurvePrivateKey)
    return _pem(opened, password)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(key: ec.EllipticCurvePrivateKey, password: str | None) -> bytes:
    """PKCS#8; with a password in PBES1, the only encryption that Kafka's Java client can open."""
    if password is None:
        return key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    hidden = (
        serialization.PrivateFormat.PKCS12.encryption_builder()
        .key_cert_algorithm(pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC)
        .build(password.encode())
    )
    # Only PKCS#12 is written with it, but the key lies in there as PKCS#8 (with a head of 3 bytes).
    whole = pkcs12.serialize_key_and_certificates(None, key, None, None, hidden)
    start = whole.index(PBES1) - 2 - 3
    body = base64.encodebytes(whole[start : start + 3 + whole[start + 2]]).decode()
    kind = "ENCRYPTED PRIVATE KEY"
    return f"-----BEGIN {kind}-----\n{body}-----END {kind}-----\n".encode()
