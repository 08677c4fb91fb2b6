"""The demo, as a stranger runs it."""

import json
from pathlib import Path

import pytest

from tests.conftest import HEADWATER, ROOT, run
from tests.integration.outside import processes_of

pytestmark = pytest.mark.slow


def test_the_demo_ends_well_and_leaves_nothing_running(home: dict[str, str]) -> None:
    done = run(HEADWATER, "demo", env=home, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "205,000" in done.stdout
    assert "gold.fct_stock_bars_1m" in done.stdout
    assert "validation_error" in done.stdout
    assert (ROOT / "target" / "static_index.html").exists()
    assert not processes_of(home["HEADWATER_HOME"])
    assert not list(Path(home["HEADWATER_HOME"]).glob("*/pid.json"))
    status = json.loads(run(HEADWATER, "status", "--json", env=home).stdout)
    rows = {name: stream["rows"] for name, stream in status["streams"].items()}
    assert rows == {"stocks": 205_000, "health": 25_000, "sensors": 25_000, "traffic": 25_000}
