"""The longer cases: many crashes in a row, and the demo as a stranger runs it."""

import json
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from headwater.generators import Shares
from headwater.produce import produce
from headwater.settings import Settings
from tests.conftest import HEADWATER, ROOT, run
from tests.integration.outside import assert_table_is_topic, processes_of, wait_for
from tests.integration.test_ingest import start_ingest

pytestmark = pytest.mark.slow

ROUNDS = 6


def test_sigkill_at_random_instants_under_load(stack: dict[str, str], settings: Settings) -> None:
    chance = random.Random(5)  # noqa: S311
    checkpoints = settings.home / "checkpoints" / "stocks"
    for number in range(ROUNDS):
        produce(settings, "stocks", 60_000, None, number, Shares(bad=0.02), lambda _: None)
        shutil.rmtree(checkpoints, ignore_errors=True)
        ingest = start_ingest(stack)
        wait_for(lambda: any(checkpoints.glob("*/offsets/0")))
        time.sleep(chance.uniform(0, 8))  # the instant is the point of the test
        ingest.send_signal(signal.SIGKILL)
        ingest.wait(30)
    shutil.rmtree(checkpoints, ignore_errors=True)
    done = run(HEADWATER, "ingest", "stocks", "--once", env=stack)
    assert done.returncode == 0, done.stdout + done.stderr
    assert assert_table_is_topic(settings, "bronze.stocks", "stocks-in") >= ROUNDS * 60_000


def test_the_demo_ends_well_leaves_nothing_running_and_runs_again(home: dict[str, str]) -> None:
    for rows in ("205,000", "410,000"):
        done = run(HEADWATER, "demo", env=home, timeout=550)
        assert done.returncode == 0, done.stdout + done.stderr
        assert rows in done.stdout
        assert "gold.fct_stock_bars_1m" in done.stdout
        assert "validation_error" in done.stdout
        assert (ROOT / "target" / "static_index.html").exists()
        assert not processes_of(home["HEADWATER_HOME"])
        assert not list(Path(home["HEADWATER_HOME"]).glob("*/pid.json"))
    status = json.loads(run(HEADWATER, "status", "--json", env=home).stdout)
    assert status["streams"]["stocks"]["rows"] == 410_000
