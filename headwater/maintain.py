"""Table care: the macro `iceberg_maintenance`, run table by table, so that each fails alone."""

import json
from dataclasses import dataclass
from typing import Any

from headwater.dbt import run_operation
from headwater.local.services import thrift_away
from ingestion.errors import ServiceError
from ingestion.settings import Settings


@dataclass(frozen=True)
class Size:
    files: int
    bytes: int
    snapshots: int


@dataclass(frozen=True)
class Cared:
    """What was done for one table, or would be."""

    table: str
    before: Size
    after: Size
    done: str


def cared_tables(settings: Settings, names: list[str]) -> list[str]:
    """These tables, or all; raises when one is not there or a policy is wrong."""
    if problem := thrift_away(settings):
        raise ServiceError(f"no Spark Thrift server: {problem}", "run: headwater up")
    said = run_operation(settings, "iceberg_maintenance_tables", table=names)
    found: list[str] = _told(said, "iceberg.maintenance.tables")
    return found


def care(settings: Settings, table: str, dry_run: bool) -> Cared:
    said = run_operation(settings, "iceberg_maintenance", table=table, dry_run=dry_run)
    row = _told(said, "iceberg.maintenance")
    before, after = (
        Size(row[when]["files"], row[when]["bytes"], row[when]["snapshots"])
        for when in ("before", "after")
    )
    return Cared(row["table"], before, after, row["done"])


def _told(said: list[str], key: str) -> Any:
    """The macro hands over its result as one line of JSON in dbt's debug log."""
    return next(json.loads(line)[key] for line in said if line.startswith(f'{{"{key}":'))
