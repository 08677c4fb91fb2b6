"""A build breaks while a model merges: the next run leaves no duplicate and no hole."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from demo.generators import Shares
from demo.produce import produce
from headwater.local.services import running_pid, services
from ingestion.catalog import open_catalog
from ingestion.settings import Settings
from tests.conftest import DBT, HEADWATER, ROOT, clean_environment, run
from tests.integration.outside import read_table, wait_for

MODELS = ("silver.stg_stocks__prices", "gold.fct_stock_bars_1m")
REBUILT = "_rebuilt"


def content(settings: Settings, name: str) -> list[str]:
    return sorted(map(repr, read_table(settings, name).to_pylist()))


def newest_snapshot(settings: Settings, name: str) -> int | None:
    return open_catalog(settings).load_table(name).metadata.current_snapshot_id


def _says(log: Path, text: str) -> bool:
    return log.exists() and text in log.read_text()


@pytest.mark.slow
def test_the_thrift_server_or_dbt_is_killed_in_mid_merge(
    home: dict[str, str], tmp_path: Path
) -> None:
    settings = Settings(
        home=Path(home["HEADWATER_HOME"]),
        kafka_port=int(home["HEADWATER_KAFKA_PORT"]),
        thrift_port=int(home["HEADWATER_THRIFT_PORT"]),
    )
    env = {
        **home,
        "DBT_TARGET_PATH": str(tmp_path / "target"),
        "DBT_LOG_PATH": str(tmp_path / "logs"),
    }
    chosen = ("--select", "stg_stocks__prices", "fct_stock_bars_1m")

    def ok(*command: str | Path) -> None:
        done = run(*command, env=env, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr

    def wave(seed: int) -> None:
        shares = Shares(late=0.2, duplicates=0.2)
        produce(settings, "stocks", 50_000, None, seed, shares, lambda _: None)
        ok(HEADWATER, "ingest", "stocks", "--once")

    def dbt_in_merge_of(model: str) -> subprocess.Popen[bytes]:
        log = tmp_path / "logs" / "dbt.log"
        log.unlink()
        dbt = subprocess.Popen(
            [DBT, "run", *chosen], cwd=ROOT, env={**clean_environment(), **env},
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(partial(_says, log, f"merge into {model} "))
        return dbt

    (thrift,) = (one for one in services(settings) if one.name == "thrift")
    try:
        ok(HEADWATER, "up")
        wave(1)
        ok(DBT, "run", *chosen)
        wave(2)
        for model in MODELS:
            before = newest_snapshot(settings, model)
            dbt = dbt_in_merge_of(model)
            pid = running_pid(settings, thrift)
            assert pid
            os.kill(pid, signal.SIGKILL)
            assert dbt.wait(120) != 0
            assert newest_snapshot(settings, model) == before, "it was over before the kill"
            ok(HEADWATER, "up")
        ok(DBT, "run", *chosen)
        # The statement of a lost connection goes on in the server, and the next run sends it again.
        wave(3)
        dbt = dbt_in_merge_of(MODELS[0])
        dbt.kill()
        dbt.wait()
        run(DBT, "run", *chosen, env=env, timeout=500)  # may be refused: the other one was quicker
        ok(DBT, "run", *chosen)
        rebuilt = ("--full-refresh", "--vars", f"{{namespace_suffix: {REBUILT}}}")
        ok(DBT, "run", *chosen, *rebuilt)
        for name in MODELS:
            layer, table = name.split(".")
            assert content(settings, name) == content(settings, f"{layer}{REBUILT}.{table}")
    finally:
        run(HEADWATER, "down", env=home)
