"""One broker and one Thrift server for the whole run, on free ports, with a state of their own."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.scans import REPORTING

ROOT = Path(__file__).resolve().parent.parent
HEADWATER = Path(sys.executable).with_name("headwater")
DBT = Path(sys.executable).with_name("dbt")

Run = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--as-shipped",
        action="store_true",
        help="Leave out packages/iceberg: what does the Spark adapter do by itself?",
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment() -> dict[str, str]:
    """The environment without anyone's Headwater settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}


def run(
    *command: str | Path,
    env: dict[str, str] | None = None,
    cwd: Path = ROOT,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env={**clean_environment(), **(env or {})},
    )


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("HEADWATER_"):
            monkeypatch.delenv(name)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Settings of an empty state folder on free ports; nothing runs there yet."""
    return {
        "HEADWATER_HOME": str(tmp_path / "state"),
        "HEADWATER_KAFKA_PORT": str(free_port()),
        "HEADWATER_THRIFT_PORT": str(free_port()),
    }


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The settings of the running stack that the integration tests share."""
    state = tmp_path_factory.mktemp("a stack")  # people have blanks in their paths
    env = {
        "HEADWATER_HOME": str(state),
        "HEADWATER_KAFKA_PORT": str(free_port()),
        "HEADWATER_THRIFT_PORT": str(free_port()),
    }
    done = run(HEADWATER, "up", env=env | REPORTING)
    assert done.returncode == 0, done.stdout + done.stderr
    yield env
    run(HEADWATER, "down", env=env)
    shutil.rmtree(state, ignore_errors=True)
