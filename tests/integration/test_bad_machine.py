"""What a machine that is not ready gets: one clear message, no stack trace, nothing half made."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HEADWATER, run
from tests.integration.outside import processes_of, wait_for


def test_an_unknown_setting_ends_every_command_with_2(home: dict[str, str]) -> None:
    done = run(HEADWATER, "up", env={**home, "HEADWATER_KAFKA_PRT": "1"})
    assert done.returncode == 2
    assert "did you mean HEADWATER_KAFKA_PORT?" in done.stderr
    assert not Path(home["HEADWATER_HOME"]).exists()


def test_wrong_usage_ends_with_2(home: dict[str, str]) -> None:
    for command in (["produce", "nothing"], ["nonsense"], ["produce", "stocks", "--rows", "-1"]):
        assert run(HEADWATER, *command, env=home).returncode == 2


def test_without_java_the_message_says_what_to_install(home: dict[str, str]) -> None:
    done = run(HEADWATER, "up", env={**home, "PATH": "/nowhere", "JAVA_HOME": ""})
    assert done.returncode == 1
    assert "no Java found" in done.stderr
    assert "JDK 17" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_finds_a_wrong_java_home_and_a_foreign_worker_python(home: dict[str, str]) -> None:
    env = {**home, "JAVA_HOME": "/nowhere", "PYSPARK_PYTHON": "/usr/bin/false", "COLUMNS": "400"}
    done = run(HEADWATER, "doctor", env=env)
    assert done.returncode == 1
    output = " ".join(done.stdout.split())
    assert "no bin/java" in output
    assert "unset PYSPARK_PYTHON" in output
    assert "checks failed" in done.stderr


def test_doctor_finds_an_old_java_and_a_trimmed_one(home: dict[str, str], tmp_path: Path) -> None:
    for version, modules, words in (
        ('"11.0.2"', "java.base@11", "is Java 11"),
        ('"17.0.9"', "java.base@17", "jdk.incubator.vector"),
    ):
        java = tmp_path / "bin" / "java"
        java.parent.mkdir(exist_ok=True)
        java.write_text(
            f"#!/bin/sh\ncase $1 in -version) echo 'openjdk version {version}' >&2;; "
            f"*) echo {modules};; esac\n"
        )
        java.chmod(0o755)
        done = run(HEADWATER, "doctor", env={**home, "JAVA_HOME": str(tmp_path), "COLUMNS": "400"})
        assert done.returncode == 1
        assert words in " ".join(done.stdout.split())


def test_doctor_is_content_with_this_machine(stack: dict[str, str]) -> None:
    done = run(HEADWATER, "doctor", env=stack)
    assert done.returncode == 0, done.stdout
    assert "✗" not in done.stdout


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("only root may mount the small file system that this test fills")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def assert_nothing_runs_in(folder: Path, env: dict[str, str]) -> None:
    """After `down`, no server is left that was started there."""
    assert run(HEADWATER, "down", env=env).returncode == 0
    wait_for(lambda: not processes_of(folder), seconds=20)


@pytest.mark.parametrize("ballast", [150_000, 180_000, 190_000])
def test_a_full_disk_is_named(full_disk: Path, home: dict[str, str], ballast: int) -> None:
    (full_disk / "ballast").write_bytes(bytes(ballast))
    done = run(HEADWATER, "up", env={**home, "HEADWATER_HOME": str(full_disk / "state")})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "HEADWATER_HOME" in done.stderr
    assert_nothing_runs_in(full_disk, {**home, "HEADWATER_HOME": str(full_disk / "state")})


def test_a_state_folder_that_cannot_be_written_is_named(home: dict[str, str]) -> None:
    done = run(HEADWATER, "up", env={**home, "HEADWATER_HOME": "/proc/nowhere"})
    assert done.returncode == 1
    assert "/proc/nowhere" in done.stderr
    assert "Traceback" not in done.stderr
