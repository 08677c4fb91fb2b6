"""The long faults: processes killed and paused under load. Each ends with the verifier."""

import random
import shutil
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

import psutil
import pytest

from demo.generators import Shares
from demo.produce import produce
from ingestion.catalog import open_catalog
from ingestion.settings import Settings
from ingestion.stream import Stream
from ingestion.stream_file import load_streams
from tests.conftest import HEADWATER, run
from tests.integration.outside import (
    behind,
    is_whole,
    locked_catalog,
    meanwhile,
    row_count,
    start_ingest,
    verified,
    wait_for,
)
from tests.integration.test_faults import restart_broker

pytestmark = pytest.mark.slow

ROUNDS = 20
RATE = 1_000


@pytest.fixture
def stocks() -> Stream:
    return load_streams(["stocks"])[0]


def steady_load(settings: Settings) -> AbstractContextManager[None]:
    """A thousand stock prices a second, some of them bad."""
    seeds = count(1)
    return meanwhile(
        lambda: produce(
            settings, "stocks", RATE, RATE, next(seeds), Shares(bad=0.02), lambda _: None
        ),
        every=0,
    )


def catch_up(stack: dict[str, str]) -> None:
    done = run(HEADWATER, "ingest", "stocks", "--once", env=stack)
    assert done.returncode == 0, done.stdout + done.stderr


def process_tree(ingest: subprocess.Popen[str]) -> list[psutil.Process]:
    me = psutil.Process(ingest.pid)
    return [me, *me.children(recursive=True)]


def test_sigkill_at_random_instants_under_load(
    stack: dict[str, str], settings: Settings, stocks: Stream
) -> None:
    """Python, Java or both, with a new checkpoint each time."""
    chance = random.Random(5)  # noqa: S311
    checkpoints = settings.home / "checkpoints" / "stocks"
    catch_up_before = 0
    with steady_load(settings):
        for _ in range(ROUNDS):
            shutil.rmtree(checkpoints, ignore_errors=True)
            ingest = start_ingest(stack)
            wait_for(lambda: any(checkpoints.glob("*/offsets/0")))
            time.sleep(chance.uniform(0, 6))  # the instant is the point of the test
            tree = process_tree(ingest)
            victims = chance.choice([tree[:1], tree[1:], tree])
            for victim in victims:
                victim.kill()
            output, _ = ingest.communicate(timeout=90)
            if victims == tree[1:]:
                assert ingest.returncode == 1, output
                assert "Spark's process ended" in output
                catch_up_before += 1
            psutil.wait_procs(tree, timeout=60)
            assert not any(one.is_running() for one in tree)
    assert catch_up_before > 0
    shutil.rmtree(checkpoints, ignore_errors=True)
    # The lease of the last one, which was killed, is not in the way: its process is gone.
    catch_up(stack)
    assert verified(settings, stocks) > ROUNDS * RATE


def test_a_paused_writer_that_wakes_up_is_refused(
    stack: dict[str, str], settings: Settings, stocks: Stream
) -> None:
    """It sleeps with its files written and its commit under way, and another one takes over."""
    with steady_load(settings):
        zombie = start_ingest(stack)
        before = row_count(settings, stocks)
        wait_for(lambda: row_count(settings, stocks) > before)
        table = open_catalog(settings).load_table(stocks.table)
        folder = Path(table.location().removeprefix("file://")) / "data"
        with locked_catalog(settings):
            files = set(folder.rglob("*.parquet"))
            wait_for(lambda: any(map(is_whole, set(folder.rglob("*.parquet")) - files)))
            tree = process_tree(zombie)
            for one in tree:
                one.suspend()
        early = run(HEADWATER, "ingest", "stocks", "--once", env=stack)
        assert early.returncode == 1
        assert f"with pid {zombie.pid}" in early.stderr  # its lease still holds
        time.sleep(31)
        heir = start_ingest(stack)
        before = row_count(settings, stocks)
        wait_for(lambda: row_count(settings, stocks) > before)
        for one in tree:
            one.resume()
        output, _ = zombie.communicate(timeout=120)
        assert zombie.returncode == 1, output
        assert "its commit was refused" in output.replace("\n", " ")
        assert f"with pid {heir.pid}" in output
        before = row_count(settings, stocks)
        wait_for(lambda: row_count(settings, stocks) > before)
    heir.send_signal(signal.SIGTERM)
    output, _ = heir.communicate(timeout=120)
    assert heir.returncode == 0, output
    catch_up(stack)
    verified(settings, stocks)


def test_a_broker_that_restarts_again_and_again(
    stack: dict[str, str], settings: Settings, stocks: Stream
) -> None:
    ingest = start_ingest(stack)
    try:
        for number in range(4):
            produce(settings, "stocks", 50_000, None, number, Shares(), lambda _: None)
            time.sleep(2)  # somewhere in the batch
            restart_broker(stack, settings, away_seconds=number * 5)

        wait_for(lambda: behind(settings, stocks) == 0, 180)
        assert ingest.poll() is None
    finally:
        ingest.send_signal(signal.SIGTERM)
        output, _ = ingest.communicate(timeout=120)
    assert ingest.returncode == 0, output
    verified(settings, stocks)
