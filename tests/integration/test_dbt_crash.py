"""The Thrift server dies while a model merges: the next run leaves no duplicate and no hole."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from headwater.generators import Shares
from headwater.produce import produce
from headwater.services import running_pid, services
from headwater.settings import Settings
from tests.conftest import DBT, HEADWATER, ROOT, clean_environment, run
from tests.integration.outside import read_table, wait_for

MODELS = ("silver.stg_stocks__prices", "gold.fct_stock_bars_1m")
REBUILT = "_rebuilt"


def content(settings: Settings, name: str) -> list[str]:
    return sorted(map(repr, read_table(settings, name).to_pylist()))


def _says(log: Path, text: str) -> bool:
    return log.exists() and text in log.read_text()


@pytest.mark.slow
def test_the_thrift_server_is_killed_in_mid_merge(home: dict[str, str], tmp_path: Path) -> None:
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

    try:
        ok(HEADWATER, "up")
        for seed in (1, 2):
            shares = Shares(late=0.2, duplicates=0.2)
            produce(settings, "stocks", 50_000, None, seed, shares, lambda _: None)
            ok(HEADWATER, "ingest", "stocks", "--once")
            if seed == 1:
                ok(DBT, "run", *chosen)
        (thrift,) = (one for one in services(settings) if one.name == "thrift")
        log = tmp_path / "logs" / "dbt.log"
        for model in MODELS:
            log.unlink()
            dbt = subprocess.Popen(
                [DBT, "run", *chosen], cwd=ROOT, env={**clean_environment(), **env},
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            merging = f"merge into {model} "
            wait_for(partial(_says, log, merging))
            pid = running_pid(settings, thrift)
            assert pid
            os.kill(pid, signal.SIGKILL)
            assert dbt.wait(120) != 0
            ok(HEADWATER, "up")
        ok(DBT, "run", *chosen)
        rebuilt = ("--full-refresh", "--vars", f"{{namespace_suffix: {REBUILT}}}")
        ok(DBT, "run", *chosen, *rebuilt)
        for name in MODELS:
            layer, table = name.split(".")
            assert content(settings, name) == content(settings, f"{layer}{REBUILT}.{table}")
    finally:
        run(HEADWATER, "down", env=home)
