"""Whatever comes in whatever order, increments end in the same tables as a full refresh."""

import io
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pytest

from demo.generators import GENERATORS, Shares, spread_clock
from headwater.rows.replay import replay
from ingestion.catalog import open_catalog
from ingestion.settings import Settings
from ingestion.stream import Stream
from ingestion.stream_file import load_streams
from tests.conftest import ROOT
from tests.integration.lab import run_dbt
from tests.integration.outside import land, read_table, send

Message = tuple[bytes, bytes | None]  # key and value

DAY = timedelta(days=1)
ROWS = 300  # of each stream in a wave
SHARES = Shares(bad=0.05, late=0.2, duplicates=0.2)
AGES = [0, 1, 7]  # days; part of a wave is a week late as a whole
OLDEST = 30  # another part is so late, and a week later with each wave
REBUILT = "_rebuilt"
WAVES = 3
REPLAYED_AFTER = 1  # waves


class Waves:
    """Random records: new, late, sent again, corrected, moved to another day, deleted."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311
        self.seed = seed
        self.oldest = OLDEST
        self.sent: dict[str, list[Message]] = {name: [] for name in GENERATORS}

    def next(self) -> dict[str, list[Message]]:
        self.seed += 1
        wave = {name: list(self._records(name)) for name in GENERATORS}
        self.oldest += 7
        return wave

    def _records(self, name: str) -> Iterator[Message]:
        older = self.chance.sample(self.sent[name], min(20, len(self.sent[name])))
        for age in [*AGES, self.oldest]:
            end = datetime.now(UTC) - age * DAY
            rows = ROWS if age == 0 else ROWS // 10
            clock = spread_clock(rows, end, GENERATORS[name].span)
            made = GENERATORS[name].records(rows, self.seed + age, SHARES, clock)
            fresh = [(record.key, record.value) for record in made]
            self.sent[name] += fresh
            yield from fresh
        yield from older  # sent again: newer by Kafka's time
        yield from filter(None, map(partial(self._changed, name), older))
        if name in ("health", "sensors"):  # whose keys name what they delete
            for key, _ in self.chance.sample(self.sent[name], 5):
                yield key, None

    def _changed(self, name: str, message: Message) -> Message | None:
        key, value = message
        try:
            if name == "health":
                return key, _moved(value or b"", self.chance)
            record = json.loads(value or b"")
        except (ValueError, EOFError, TypeError, IndexError, AssertionError):
            return None  # one of the bad ones
        for column, by in (("temperature", 0.5), ("vehicle_count", 1)):
            if isinstance(record.get(column), int | float):
                record[column] += by
        return key, json.dumps(record).encode()


def _moved(value: bytes, chance: random.Random) -> bytes:
    """The same sample, on another day, perhaps of another person."""
    schema = fastavro.parse_schema(
        json.loads((ROOT / "ingestion" / "schemas" / "health.avsc").read_text())
    )
    sample: Any = fastavro.schemaless_reader(io.BytesIO(value), schema, None)
    days = chance.randrange(-3, 3) * DAY
    for column in ("start_time", "end_time"):
        sample[column] += days
    sample["user_id"] = chance.choice([sample["user_id"], "user-001"])
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, sample)
    return out.getvalue()


def lenient(stream: Stream) -> Stream:
    """As after a change of the stream file: what broke these rules is valid now."""
    kept = list(stream.rules.items())[:2]
    return stream.model_copy(update={"rules": dict(kept)})


def built_tables(settings: Settings) -> list[str]:
    """What dbt's models have made, without seeds and snapshots: these have nothing to rebuild."""
    catalog = open_catalog(settings)
    return [
        f"{layer}.{name}"
        for layer in ("silver", "gold")
        for _, name in catalog.list_tables(layer)
        if name.startswith(("stg_", "int_", "fct_", "dim_", "rpt_", "dead_letters"))
        and not name.endswith("_history")
        and catalog.table_exists(f"{layer}{REBUILT}.{name}")
    ]


def content(settings: Settings, name: str) -> list[str]:
    rows = read_table(settings, name).to_pylist()
    return sorted(json.dumps(row, default=repr, sort_keys=True) for row in rows)


def build(env: dict[str, str], *arguments: str, command: str = "run") -> None:
    done = run_dbt(ROOT, env, command, *arguments)
    assert done.nodes
    assert not {k: one for k, one in done.nodes.items() if not one.startswith("success")}


def check_history(settings: Settings) -> None:
    """One open version for each sensor in use, as it is now; an older one ends before the next."""
    states: dict[str, list[dict[str, Any]]] = {}
    history = read_table(settings, "gold.dim_sensors_history").sort_by("dbt_valid_from")
    for row in history.to_pylist():
        states.setdefault(row["sensor_id"], []).append(row)
    for versions in states.values():
        for version, following in pairwise(versions):
            assert version["dbt_valid_to"] is not None
            assert version["dbt_valid_to"] <= following["dbt_valid_from"]
    current = {
        row["sensor_id"]: (row["site"], row["room"], row["upper_limit"])
        for row in read_table(settings, "gold.dim_sensors").to_pylist()
    }
    open_versions = {
        sensor: (versions[-1]["site"], versions[-1]["room"], versions[-1]["upper_limit"])
        for sensor, versions in states.items()
        if versions[-1]["dbt_valid_to"] is None
    }
    assert open_versions == current


@pytest.fixture
def project_env(stack: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return {
        **stack,
        "DBT_TARGET_PATH": str(tmp_path / "target"),
        "DBT_LOG_PATH": str(tmp_path / "logs"),
    }


@pytest.mark.slow
def test_increments_end_in_the_same_tables_as_a_full_refresh(
    settings: Settings, project_env: dict[str, str]
) -> None:
    streams = load_streams()
    source = Waves(seed=7)
    run_dbt(ROOT, project_env, "seed")
    for number in range(WAVES):
        wave = source.next()
        for stream in streams:
            keys, values = zip(*wave[stream.name], strict=True)
            send(settings, stream.topics[0], *values, keys=keys)
            land(settings, stream)
        build(project_env)
        build(project_env, command="snapshot")
        check_history(settings)
        if number == REPLAYED_AFTER:
            for stream in streams:
                replay(settings, lenient(stream), ["validation_error"], None)
            build(project_env)
    rebuilt = ("--full-refresh", "--vars", f"{{namespace_suffix: {REBUILT}}}")
    run_dbt(ROOT, project_env, "seed", *rebuilt)
    build(project_env, *rebuilt)
    names = built_tables(settings)
    assert len(names) == 21
    for name in names:
        layer, table = name.split(".")
        expected = content(settings, f"{layer}{REBUILT}.{table}")
        assert content(settings, name) == expected, name
        assert expected, name
