"""`headwater ingest` as a user runs it: from the command line, through crashes and stops."""

import json
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from headwater.catalog import open_catalog
from headwater.generators import Shares
from headwater.produce import produce
from headwater.settings import Settings
from tests.conftest import HEADWATER, ROOT, clean_environment, run
from tests.integration.outside import assert_table_is_topic, read_table, wait_for

SHARES = Shares(bad=0.05, late=0.05, duplicates=0.05)


def commits(settings: Settings) -> int:
    catalog = open_catalog(settings)
    if not catalog.table_exists("bronze.stocks"):
        return 0
    return len(catalog.load_table("bronze.stocks").snapshots())


def start_ingest(stack: dict[str, str], **extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(HEADWATER), "ingest", "stocks"],
        env={**clean_environment(), **stack, **extra},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_once_lands_exactly_what_the_generator_made(
    stack: dict[str, str], settings: Settings
) -> None:
    made = produce(settings, "stocks", 20_000, None, 11, SHARES, lambda _: None)
    before = _errors(settings)
    done = run(HEADWATER, "ingest", "stocks", "--once", env=stack)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_table_is_topic(settings, "bronze.stocks", "stocks-in")
    errors = {kind: count for kind, count in made.items() if kind.endswith("_error")}
    assert _errors(settings) - before == errors
    assert "bronze.stocks" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def _errors(settings: Settings) -> Counter[str]:
    if not commits(settings):
        return Counter()
    types = read_table(settings, "bronze.stocks", "_error_type")["_error_type"].to_pylist()
    return Counter(kind for kind in types if kind)


def test_sigkill_in_mid_batch_and_a_lost_checkpoint_lose_and_double_nothing(
    stack: dict[str, str], settings: Settings
) -> None:
    produce(settings, "stocks", 100_000, None, 12, SHARES, lambda _: None)
    offsets = settings.home / "checkpoints" / "stocks"
    ingest = start_ingest(stack)
    try:
        # The batch is planned and under way once Spark has written its end offsets.
        wait_for(lambda: any(offsets.glob("*/offsets/0")))
    finally:
        ingest.send_signal(signal.SIGKILL)
        ingest.wait(30)
    shutil.rmtree(offsets)
    done = run(HEADWATER, "ingest", "stocks", "--once", env=stack)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_table_is_topic(settings, "bronze.stocks", "stocks-in")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_the_batch_commit_and_ends_with_a_summary(
    stack: dict[str, str], settings: Settings, number: signal.Signals
) -> None:
    before = commits(settings)
    ingest = start_ingest(stack, HEADWATER_LOG_FORMAT="json")
    wait_for(lambda: any((settings.home / "checkpoints" / "stocks").glob("*/metadata")))
    produce(settings, "stocks", 1_000, None, int(number), SHARES, lambda _: None)
    wait_for(lambda: commits(settings) > before)
    ingest.send_signal(number)
    output, _ = ingest.communicate(timeout=90)
    assert ingest.returncode == 0, output
    summary = json.loads(output.strip().splitlines()[-1])
    assert (summary["event"], summary["stream"]) == ("summary", "stocks")
    assert summary["rows"] >= 1
    assert not list((settings.home / "checkpoints" / "stocks").glob("*/offsets"))


def test_a_missing_topic_is_named_with_the_next_step(
    home: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    """An empty state folder on the running broker: the stream's table is elsewhere."""
    env = {**home, "HEADWATER_KAFKA_BOOTSTRAP_SERVERS": settings.bootstrap_servers}
    streams = ROOT / "ingestion" / "streams"
    done = run(HEADWATER, "ingest", "nothere", "--once", env=env)
    assert done.returncode == 2
    assert "there is no stream 'nothere'" in done.stderr
    assert str(streams) in done.stderr
    assert not tmp_path.joinpath("state").exists()
