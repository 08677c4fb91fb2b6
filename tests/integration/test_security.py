"""Every way to reach a secured broker, what a refusal says, and where secrets do not stand."""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
import requests

from ingestion.catalog import open_catalog
from ingestion.kafka import broker_trouble
from ingestion.settings import Settings
from tests.conftest import HEADWATER, free_port, run
from tests.integration.outside import (
    assert_table_is_topic,
    read_topic,
    send,
    start_ingest,
    wait_for,
)
from tests.integration.secure_broker import (
    KEY_PASSWORD,
    PASSWORD,
    SecureBroker,
    add_scram_user,
    secure_broker,
    settings_of,
    with_password,
)

STREAM = """\
description: Lines of text.
topic: {name}
value: {{format: text}}
forward: {{topic: {name}-out}}
batch: {{min_records: 1}}
columns:
  line: {{type: string, description: One line.}}
"""
PLAIN = {"HEADWATER_KAFKA_SASL_MECHANISM": "PLAIN", "HEADWATER_KAFKA_USERNAME": "plain"}
SHA_256 = {"HEADWATER_KAFKA_SASL_MECHANISM": "SCRAM-SHA-256"}
WAYS = {
    "tls": ("SSL", {}),
    "mutual tls": ("MUTUAL", {}),
    "plain": ("SASL_PLAINTEXT", PLAIN),
    "scram-256": ("SASL_PLAINTEXT", SHA_256),
    "scram-512": ("SASL_PLAINTEXT", {}),
    "plain over tls": ("SASL_SSL", PLAIN),
    "scram-256 over tls": ("SASL_SSL", SHA_256),
    "scram-512 over tls": ("SASL_SSL", {}),
}
# The others are slow tests, and the search for secrets is a run of the last one.
WITH_SPARK = ("mutual tls",)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("secured broker")) as running:
        yield running


@pytest.fixture
def name(tmp_path: Path) -> str:
    """A stream in a folder of its own."""
    made = f"s_{uuid4().hex[:8]}"
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / f"{made}.yml").write_text(STREAM.format(name=made))
    return made


@pytest.fixture
def place(home: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return {**home, "HEADWATER_STREAMS": str(tmp_path / "streams")}


@pytest.mark.parametrize("way", WAYS)
def test_records_are_sent_and_read(broker: SecureBroker, way: str, name: str) -> None:
    listener, more = WAYS[way]
    settings = settings_of(broker.settings(listener, **more))
    send(settings, name, b"one", b"two")
    assert sorted(read_topic(settings, name).values()) == [b"one", b"two"]


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[] if way in WITH_SPARK else pytest.mark.slow) for way in WAYS],
)
def test_ingest_lands_and_forwards(
    broker: SecureBroker, place: dict[str, str], way: str, name: str
) -> None:
    listener, more = WAYS[way]
    env = place | broker.settings(listener, **more)
    settings = settings_of(env)
    send(settings, name, *(b"%d" % number for number in range(100)))
    done = run(HEADWATER, "ingest", name, "--once", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert assert_table_is_topic(settings, f"bronze.{name}", name) == 100
    forwarded = read_topic(settings, f"{name}-out").values()
    assert sorted(forwarded) == sorted(read_topic(settings, name).values())


REFUSALS = {
    "wrong password": (
        "SASL_SSL",
        {"HEADWATER_KAFKA_PASSWORD": "not-this"},
        "refuses the user name or the password",
        "HEADWATER_KAFKA_PASSWORD",
    ),
    "wrong password, PLAIN": (
        "SASL_PLAINTEXT",
        {**PLAIN, "HEADWATER_KAFKA_PASSWORD": "not-this"},
        "refuses the user name or the password",
        "HEADWATER_KAFKA_PASSWORD",
    ),
    "unknown user": (
        "SASL_PLAINTEXT",
        {"HEADWATER_KAFKA_USERNAME": "nobody"},
        "refuses the user name or the password",
        "HEADWATER_KAFKA_USERNAME",
    ),
    "untrusted authority": (
        "SSL",
        {"HEADWATER_KAFKA_CA_FILE": "alien-ca.pem"},
        "is not trusted",
        "HEADWATER_KAFKA_CA_FILE",
    ),
    "no authority": ("SSL", {"HEADWATER_KAFKA_CA_FILE": ""}, "is not trusted", "_CA_FILE"),
    "another host's certificate": (
        "OTHER_HOST",
        {},
        "has a certificate for another name",
        "HEADWATER_KAFKA_BOOTSTRAP_SERVERS",
    ),
    "no client certificate": (
        "MUTUAL",
        {
            "HEADWATER_KAFKA_CERTIFICATE_FILE": "",
            "HEADWATER_KAFKA_KEY_FILE": "",
            "HEADWATER_KAFKA_KEY_PASSWORD": "",
        },
        "wants a client certificate",
        "HEADWATER_KAFKA_CERTIFICATE_FILE",
    ),
    "alien client certificate": (
        "MUTUAL",
        {
            "HEADWATER_KAFKA_CERTIFICATE_FILE": "alien-client.pem",
            "HEADWATER_KAFKA_KEY_FILE": "alien-client.key",
        },
        "refuses the client certificate",
        "HEADWATER_KAFKA_CERTIFICATE_FILE",
    ),
    "another key": (
        "MUTUAL",
        {"HEADWATER_KAFKA_KEY_FILE": "alien-client.key"},
        "the certificate and the key do not fit",
        "HEADWATER_KAFKA_KEY_FILE",
    ),
    "wrong key password": (
        "MUTUAL",
        {"HEADWATER_KAFKA_KEY_PASSWORD": "not-this"},
        "the file in HEADWATER_KAFKA_KEY_FILE cannot be opened",
        "HEADWATER_KAFKA_KEY_PASSWORD",
    ),
    "plaintext to a TLS port": (
        "PLAINTEXT",
        {"port": "SSL"},
        "drops the connection: it speaks TLS",
        "HEADWATER_KAFKA_SECURITY_PROTOCOL",
    ),
    "plaintext to a login port": (
        "PLAINTEXT",
        {"port": "SASL_PLAINTEXT"},
        "drops the connection: it may want a login",
        "HEADWATER_KAFKA_SECURITY_PROTOCOL",
    ),
    "TLS to a login port": (
        "SSL",
        {"port": "SASL_SSL"},
        "drops the connection: it may want a login",
        "HEADWATER_KAFKA_SECURITY_PROTOCOL",
    ),
    "TLS to a plaintext port": (
        "SSL",
        {"port": "PLAINTEXT"},
        "speaks no TLS on this port",
        "HEADWATER_KAFKA_SECURITY_PROTOCOL",
    ),
    "a login where none is asked for": (
        "SASL_SSL",
        {"port": "SSL"},
        "takes no login on this port",
        "HEADWATER_KAFKA_SECURITY_PROTOCOL",
    ),
    "nobody there": (
        "SASL_SSL",
        {"port": "nobody"},
        "no Kafka broker answers at",
        "HEADWATER_KAFKA_BOOTSTRAP_SERVERS",
    ),
}
# As a user sees them; what the others say is looked at without the command around it.
WITH_COMMAND = (
    "wrong password",
    "unknown user",
    "untrusted authority",
    "no client certificate",
    "plaintext to a TLS port",
)


def refused(broker: SecureBroker, case: str) -> tuple[dict[str, str], str, str]:
    listener, changes, message, variable = REFUSALS[case]
    env = broker.settings(listener)
    for key, value in changes.items():
        if key == "port":
            port = broker.ports.get(value) or free_port()
            env["HEADWATER_KAFKA_BOOTSTRAP_SERVERS"] = f"127.0.0.1:{port}"
        else:
            env[key] = broker.file(value) if re.search(r"\.(pem|key)$", value) else value
    return {key: value for key, value in env.items() if value}, message, variable


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_says_what_is_wrong_and_what_to_check(broker: SecureBroker, case: str) -> None:
    env, message, variable = refused(broker, case)
    began = time.monotonic()
    trouble = broker_trouble(settings_of(env), timeout=1)
    assert trouble is not None
    assert time.monotonic() - began < 5
    assert message in trouble.problem
    assert variable in trouble.hint
    for secret in (PASSWORD, KEY_PASSWORD, "not-this"):
        assert secret not in str(trouble)


@pytest.mark.parametrize("case", WITH_COMMAND)
def test_a_refused_command_ends_with_one_message(
    broker: SecureBroker, place: dict[str, str], name: str, case: str
) -> None:
    env, message, variable = refused(broker, case)
    done = run(HEADWATER, "ingest", name, "--once", env=place | env, timeout=30)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert message in said
    assert variable in said
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 4
    assert "not-this" not in done.stdout + done.stderr


def test_a_wrong_password_is_told_in_seconds(broker: SecureBroker) -> None:
    """Not when the time to wait for an answer is over."""
    env, _, _ = refused(broker, "wrong password")
    began = time.monotonic()
    settings = settings_of(env | {"HEADWATER_KAFKA_USERNAME": "someone else"})
    trouble = broker_trouble(settings, timeout=60)
    assert trouble is not None
    assert "refuses the user name or the password" in trouble.problem
    assert time.monotonic() - began < 30


UI_PAGES = (
    "environment/",
    "SQL/",
    "StreamingQuery/",
    "jobs/",
    "stages/",
    "executors/",
    "api/v1/applications",
    "api/v1/applications/{app}/environment",
    "api/v1/applications/{app}/sql?details=true&planDescription=true",
)


def test_no_secret_shows_anywhere_while_ingestion_runs(
    broker: SecureBroker, place: dict[str, str], name: str, tmp_path: Path
) -> None:
    password, key_password = f"pw-{uuid4().hex}", f"key-{uuid4().hex}"
    add_scram_user(settings_of(broker.settings("PLAINTEXT")), "marked", password + PASSWORD)
    key = tmp_path / "marked.key"
    key.write_bytes(with_password(Path(broker.file("client.key")), key_password))
    env = place | broker.settings(
        "SASL_SSL",
        HEADWATER_KAFKA_USERNAME="marked",
        HEADWATER_KAFKA_PASSWORD=password + PASSWORD,
        HEADWATER_KAFKA_CERTIFICATE_FILE=broker.file("client.pem"),
        HEADWATER_KAFKA_KEY_FILE=str(key),
        HEADWATER_KAFKA_KEY_PASSWORD=key_password,
        HEADWATER_METRICS_PORT=str(free_port()),
    )
    settings = settings_of(env)
    send(settings, name, b"one")
    ingest = start_ingest(env, name)
    seen: dict[str, str] = {}
    try:
        wait_for(lambda: ingest.poll() is not None or _has_rows(settings, name))
        assert ingest.poll() is None
        seen["status"] = run(HEADWATER, "status", "--json", env=env).stdout
        seen |= _ui(ingest.pid)
        seen["metrics"] = requests.get(
            f"http://127.0.0.1:{env['HEADWATER_METRICS_PORT']}/metrics", timeout=10
        ).text
        seen |= _files(settings.home)  # the checkpoint is there only while it runs
        seen["processes"] = "\n".join(
            " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])
        )
    finally:
        ingest.send_signal(signal.SIGINT)
        seen["output"], _ = ingest.communicate(timeout=60)
    assert ingest.returncode == 0, seen["output"]
    assert_table_is_topic(settings, f"bronze.{name}", name)
    for wrong, command in (("PASSWORD", ("ingest", name)), ("KEY_PASSWORD", ("status",))):
        variable = f"HEADWATER_KAFKA_{wrong}"
        done = run(HEADWATER, *command, env=env | {variable: env[variable] + "-wrong"})
        seen[f"{command}, {wrong}"] = done.stdout + done.stderr
    seen |= {f"{file}, afterwards": text for file, text in _files(settings.home).items()}
    # The search sees what it shall see.
    assert '"running": true' in seen["status"]
    assert name in seen["StreamingQuery/"]
    assert name in seen["metrics"]
    assert "headwater ingest" in seen["environment/"]
    assert str(settings.home) in seen["processes"]
    assert "ingest/spark.properties" in seen
    assert "logs/ingest.log" in seen
    assert any(where.startswith("checkpoints/") for where in seen)
    shown = [where for where, text in seen.items() if password in text or key_password in text]
    assert shown == []


def _has_rows(settings: Settings, name: str) -> bool:
    catalog = open_catalog(settings)
    table = f"bronze.{name}"
    return catalog.table_exists(table) and bool(catalog.load_table(table).snapshots())


def _files(folder: Path) -> dict[str, str]:
    found = {}
    for file in folder.rglob("*"):
        with suppress(OSError):  # a folder, or a file that is gone by now
            found[str(file.relative_to(folder))] = file.read_text(errors="replace")
    return found


def _ui(pid: int) -> dict[str, str]:
    """The pages of the Spark UI that this process has started."""
    ports = [
        connection.laddr.port
        for child in psutil.Process(pid).children(recursive=True)
        for connection in child.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and 4040 <= connection.laddr.port < 4140
    ]
    assert len(ports) == 1
    address = f"http://127.0.0.1:{ports[0]}"
    app = requests.get(f"{address}/api/v1/applications", timeout=10).json()[0]["id"]
    pages = {}
    for page in UI_PAGES:
        answer = requests.get(f"{address}/{page.format(app=app)}", timeout=10)
        assert answer.status_code == 200, page
        pages[page] = answer.text
    return pages
