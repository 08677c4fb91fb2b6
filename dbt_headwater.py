"""What macros cannot reach in the Spark adapter. dbt loads this module by its name, as a plugin.

- The docs catalog gets the comments of columns and tables, and the time of the last commit.
- An error of a statement is what Spark says, without the Java stack (that is in dbt's log).
"""

from collections.abc import Callable
from typing import Any

from dbt.adapters.spark.column import SparkColumn
from dbt.adapters.spark.connections import PyhiveConnectionWrapper
from dbt.adapters.spark.impl import SparkAdapter
from dbt.plugins.manager import dbtPlugin
from dbt_common.exceptions import DbtDatabaseError

FACTS = {  # by the names that packages/iceberg/macros/adapter/catalog.sql gives them
    "rows": ("Rows", "Rows of the newest snapshot"),
    "bytes": ("Bytes", "Size of its data files"),
    "files": ("Files", "Data files of the newest snapshot"),
    "snapshots": ("Snapshots", "Versions that time travel can reach"),
}
HIVE = "org.apache.hive.service.cli.HiveSQLException: Error running query: "

Parse = Callable[[SparkAdapter, Any, Any], list[SparkColumn]]
Execute = Callable[..., None]


class SparkAdapterOnIceberg(dbtPlugin):
    def initialize(self) -> None:
        """dbt calls this at each command of a process; the adapter is changed once."""
        patched: Any = SparkAdapter, PyhiveConnectionWrapper
        adapter, connection = patched
        if not hasattr(adapter, "on_iceberg"):
            adapter.on_iceberg = True
            adapter.parse_describe_extended = _with_comments(adapter.parse_describe_extended)
            connection.execute = _without_stack(connection.execute)


def _with_comments(shipped: Parse) -> Parse:
    def parse(adapter: SparkAdapter, relation: Any, rows: Any) -> list[SparkColumn]:
        columns = shipped(adapter, relation, rows)
        comments = {row["col_name"]: row["comment"] for row in rows[: len(columns)]}
        facts = _facts({row["col_name"]: row["data_type"] for row in rows[len(columns) :]})
        for column in columns:
            told = {**(column.table_stats or {}), **facts}
            told["column_comment"] = comments.get(column.column) or None
            for name, (label, description) in FACTS.items():
                if f"stats:{name}:label" in told:
                    told |= {f"stats:{name}:label": label, f"stats:{name}:description": description}
            column.table_stats = told
            if column.table_owner == "None":  # of a view; the adapter makes a text of it
                column.table_owner = None
        return columns

    return parse


def _facts(about: dict[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"table_comment": about.get("Comment")}
    if last_commit := about.get("Last commit"):
        facts |= {
            "stats:last_commit:label": "Last commit",
            "stats:last_commit:value": f"{last_commit} UTC",
            "stats:last_commit:description": "When the newest snapshot was committed",
            "stats:last_commit:include": True,
        }
    return facts


def _without_stack(shipped: Execute) -> Execute:
    def execute(self: PyhiveConnectionWrapper, sql: str, bindings: list[Any] | None = None) -> None:
        try:
            shipped(self, sql, bindings)
        except DbtDatabaseError as error:
            text = str(error.msg).split("\n\tat ")[0]
            raise DbtDatabaseError(text.removeprefix(HIVE)) from None

    return execute


plugins = [SparkAdapterOnIceberg]
