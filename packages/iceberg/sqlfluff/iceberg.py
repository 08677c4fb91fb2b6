"""The package's macros for sqlfluff's jinja templater, which knows no packages of dbt.

.sqlfluff names this folder: `library_path = packages/iceberg/sqlfluff`. A call becomes SQL of
the same shape.
"""
# ruff: noqa: ARG001 (the arguments are those of the macros)

from collections.abc import Mapping, Sequence


def rows_to_recompute(
    parent: object, keys: Mapping[str, str], looks_back: str = "", looks_ahead: str = ""
) -> str:
    return str(parent)


def new_rows(source: object) -> str:
    return str(source)


def newest_of(cte: str, key: Sequence[str], newest_by: Sequence[str]) -> str:
    return cte


def read_until(model: object, source: object) -> str:
    return "now()"


def lag_behind(model: object, parent: object, hours: int) -> str:
    return f"select {hours} as hours_behind"


def date(column: str) -> str:
    return f"cast({column} as date)"


def minutes(column: str, length: int) -> str:
    return f"timestamp_seconds(unix_seconds({column}))"


def _truncated(unit: str, column: str) -> str:
    return f"date_trunc('{unit}', {column})"


def minute(column: str) -> str:
    return _truncated("minute", column)


def hour(column: str) -> str:
    return _truncated("hour", column)


def day(column: str) -> str:
    return _truncated("day", column)


def week(column: str) -> str:
    return _truncated("week", column)


def month(column: str) -> str:
    return _truncated("month", column)


def quarter(column: str) -> str:
    return _truncated("quarter", column)


def year(column: str) -> str:
    return _truncated("year", column)
