"""The local stack: started once, stopped alone, and clear about what went wrong."""

import json
import socket
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import HEADWATER, run


def pids(state: str) -> dict[str, int]:
    return {
        file.parent.name: json.loads(file.read_text())["pid"]
        for file in Path(state).glob("*/pid.json")
    }


def test_up_twice_changes_nothing(stack: dict[str, str]) -> None:
    before = pids(stack["HEADWATER_HOME"])
    done = run(HEADWATER, "up", env=stack)
    assert done.returncode == 0
    assert pids(stack["HEADWATER_HOME"]) == before
    assert len(before) == 2


def test_all_servers_listen_on_loopback_only(stack: dict[str, str]) -> None:
    for pid in pids(stack["HEADWATER_HOME"]).values():
        listening = [
            connection.laddr.ip.removeprefix("::ffff:")
            for connection in psutil.Process(pid).net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening
        assert set(listening) <= {"127.0.0.1"}


def test_status_answers_in_under_three_seconds_with_no_jvm(stack: dict[str, str]) -> None:
    run(HEADWATER, "status", env=stack)  # warms the file cache
    began = time.monotonic()
    done = run(HEADWATER, "status", "--json", env={**stack, "JAVA_HOME": "/nowhere", "PATH": ""})
    seconds = time.monotonic() - began
    found = json.loads(done.stdout)
    assert found["services"]["kafka"]["bootstrap_servers"].endswith(stack["HEADWATER_KAFKA_PORT"])
    assert found["services"]["thrift"]["host"] == "127.0.0.1"
    assert found["services"]["thrift"]["port"] == int(stack["HEADWATER_THRIFT_PORT"])
    assert set(found["streams"]["stocks"]) >= {"lag", "rows", "errors", "last_commit"}
    assert seconds < 10  # the goal is 3 s; a busy machine gets some room


def test_status_works_before_anything_was_started(home: dict[str, str]) -> None:
    done = run(HEADWATER, "status", env=home)
    assert done.returncode == 0, done.stderr
    assert "headwater up" in done.stdout
    assert not Path(home["HEADWATER_HOME"]).exists()


def test_down_ends_only_what_up_started(home: dict[str, str]) -> None:
    """A pid file whose pid now belongs to someone else ends nobody."""
    folder = Path(home["HEADWATER_HOME"]) / "kafka"
    folder.mkdir(parents=True)
    me = psutil.Process()
    (folder / "pid.json").write_text(json.dumps({"pid": me.pid, "started": me.create_time() - 9}))
    done = run(HEADWATER, "down", env=home)
    assert done.returncode == 0
    assert "Kafka broker: not running" in done.stdout
    assert not (folder / "pid.json").exists()


def test_a_taken_port_names_the_port_and_the_setting(home: dict[str, str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(home["HEADWATER_KAFKA_PORT"])))
        other.listen()
        done = run(HEADWATER, "up", env=home)
    assert done.returncode == 1
    assert f"port {home['HEADWATER_KAFKA_PORT']} for the Kafka broker is taken" in done.stderr
    assert "HEADWATER_KAFKA_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_dies_during_start_shows_its_log_and_leaves_the_other_stoppable(
    home: dict[str, str],
) -> None:
    """A broken data folder ends the broker; a stale pid file before that is no obstacle."""
    data = Path(home["HEADWATER_HOME"]) / "kafka" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=other\n")
    (data.parent / "pid.json").write_text(json.dumps({"pid": 2**22 + 1, "started": 0}))
    try:
        done = run(HEADWATER, "up", env=home)
        assert done.returncode == 1
        assert "the Kafka broker ended while it started" in done.stderr
        assert "node.id" in done.stderr or "node ID" in done.stderr or "Exception" in done.stderr
        assert "Traceback" not in done.stderr
    finally:
        assert run(HEADWATER, "down", env=home).returncode == 0
    assert not pids(home["HEADWATER_HOME"])


def test_a_broker_from_outside_is_used_and_none_is_started(
    stack: dict[str, str], home: dict[str, str]
) -> None:
    env = {
        **home,
        "HEADWATER_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{stack['HEADWATER_KAFKA_PORT']}",
        "HEADWATER_THRIFT_HOST": "127.0.0.1",
        "HEADWATER_THRIFT_PORT": stack["HEADWATER_THRIFT_PORT"],
    }
    done = run(HEADWATER, "up", env=env)
    assert done.returncode == 0, done.stderr
    assert "yours, from HEADWATER_KAFKA_BOOTSTRAP_SERVERS" in done.stdout
    assert not pids(home["HEADWATER_HOME"])


@pytest.mark.parametrize("command", [["produce", "stocks"], ["ingest", "--once"]])
def test_a_broker_that_is_away_is_named_with_the_next_step(
    home: dict[str, str], command: list[str]
) -> None:
    done = run(HEADWATER, *command, env=home)
    assert done.returncode == 1
    assert f"no Kafka broker answers at 127.0.0.1:{home['HEADWATER_KAFKA_PORT']}" in done.stderr
    assert "headwater up" in done.stderr
    assert "Traceback" not in done.stderr
