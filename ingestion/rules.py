"""The SQL of a stream file: derived columns and rules, run by DuckDB on a block of rows.

An expression is DuckDB SQL on the columns of one row. It runs inside `try`, which turns an error
such as a bad cast into null, and allows neither subqueries nor functions that give another result
each time. Files, the network and settings are out of reach.
"""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from ingestion.errors import StreamFileError
from ingestion.formats.types import arrow_type, element
from ingestion.stream import Stream

NAIVE = pa.timestamp("us")  # times are UTC, and without a zone in SQL
LOCKED = (
    "set global enable_external_access = false",  # no files, no network, no extensions
    "set global threads = 1",  # a task has one core
    "set global timezone = 'UTC'",
    "set global lock_configuration = true",
)
REFUSED_CLASSES = {"SUBQUERY": "a subquery", "WINDOW": "a window function", "STAR": "a star"}
REFUSED_FUNCTIONS = {"current_setting", "getvariable"}
SQL_TYPES = {"string": "varchar", "binary": "blob"}

# Columns of every row that an expression may use, beside the declared ones.
KAFKA_COLUMNS = {
    "_kafka_topic": "string",
    "_kafka_partition": "int",
    "_kafka_offset": "bigint",
    "_kafka_timestamp": "timestamp",
    "_kafka_key": "binary",
    "_kafka_value": "binary",
}


class Rules:
    """The expressions of one stream, ready to run."""

    def __init__(self, stream: Stream) -> None:
        self.rules = list(stream.rules)
        self._types = {name: column.type for name, column in stream.derived.items()}
        derived = {name: column.expression or "" for name, column in stream.derived.items()}
        known = [*KAFKA_COLUMNS, *stream.columns]
        used = {name: references(text) for name, text in derived.items()}
        self.inputs = {name: [each for each in known if each in used[name]] for name in derived}
        every = set().union(*used.values(), *map(references, stream.rules.values()))
        self._columns = [name for name in known if name in every and name not in derived]
        self._query = _query(
            {
                name: f"cast(({text}\n) as {sql_type(self._types[name])})"
                for name, text in derived.items()
            },
            stream.rules,
        )
        self._connection = locked_connection()

    def apply(self, rows: pa.Table) -> pa.Table:
        """The derived columns, then a column of verdicts a rule, named `rule <name>`."""
        if not self._types and not self.rules:
            return pa.table({})
        columns = {name: _naive(rows[name]) for name in self._columns}
        # Without a column, a table has no rows.
        block = pa.table(columns or {"_": pa.nulls(rows.num_rows)})
        self._connection.register("block", block)
        try:
            results = self._connection.sql(self._query).to_arrow_table()
        finally:
            self._connection.unregister("block")
        for index, (name, kind) in enumerate(self._types.items()):
            results = results.set_column(index, name, results[name].cast(arrow_type(kind)))
        return results


def _query(derived: dict[str, str], rules: dict[str, str]) -> str:
    """A derived column may use those above it, so each has a query around the one before."""
    source = "block"
    for name, expression in derived.items():
        source = f'(select *, try({expression}) as "{name}" from {source})'  # noqa: S608
    results = [f'"{name}"' for name in derived]
    results += [
        f'coalesce(try(({rule}\n)), false) as "rule {name}"' for name, rule in rules.items()
    ]
    return f"select {', '.join(results)} from {source}"  # noqa: S608


def _naive(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(NAIVE) if pa.types.is_timestamp(column.type) else column


def locked_connection() -> duckdb.DuckDBPyConnection:
    """A connection to a database in memory that reaches nothing outside of it."""
    return _database().cursor()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(":memory:")
    for statement in LOCKED:
        database.execute(statement)
    return database


def sql_type(kind: str) -> str:
    """The DuckDB type of a type in a stream file."""
    if kind.startswith("map<"):
        return f"map(varchar, {sql_type(element(kind))})"
    if kind.startswith("array<"):
        return f"{sql_type(element(kind))}[]"
    return SQL_TYPES.get(kind, kind)


# --- checking a stream file -------------------------------------------------------------------


def check_rules(stream: Stream) -> None:
    """Refuse, by name and before the first record, what DuckDB cannot run."""
    columns = KAFKA_COLUMNS | {name: column.type for name, column in stream.decoded.items()}
    problems: dict[str, str] = {}
    for name, column in stream.derived.items():
        text = column.expression or ""
        if problem := _problem(text, columns, column.type):
            problems[f"the column {name} does not work: {text}"] = problem
        columns[name] = column.type
    for name, rule in stream.rules.items():
        if problem := _problem(rule, columns, None):
            problems[f"the rule {name} does not work: {rule}"] = problem
    if problems:
        raise StreamFileError(
            "\n".join(f"{stream.file}: {what}: {problem}" for what, problem in problems.items()),
            f"it is a DuckDB SQL expression on the columns {', '.join(stream.columns)}",
        )


def _problem(text: str, columns: dict[str, str], kind: str | None) -> str | None:
    """Why an expression cannot give this type; no type: it is a rule."""
    nulls = ", ".join(f'cast(null as {sql_type(k)}) as "{name}"' for name, k in columns.items())
    try:
        if refusal := _refusal(text):
            return refusal
        query = f"describe select ({text}\n), try(({text}\n)) from (select {nulls})"  # noqa: S608
        actual = locked_connection().execute(query).fetchall()[0][1]
    except duckdb.Error as error:
        return str(error).split("\n")[0]
    if kind is None and actual != "BOOLEAN":
        return f"it gives {actual.lower()}, not true or false"
    is_nested = actual.endswith("[]") or actual.startswith(("MAP(", "STRUCT("))
    if kind and is_nested and kind != "string" and "<" not in kind:
        return f"it gives {actual.lower()}, not {kind}"
    return None


def _refusal(text: str) -> str | None:
    """What `try` would let pass, or refuse in words that do not help."""
    for node in _nodes(_syntax(text)):
        if refused := REFUSED_CLASSES.get(node.get("class", "")):
            return f"{refused} is not allowed: an expression sees one row"
        if (name := str(node.get("function_name", "")).lower()) in REFUSED_FUNCTIONS:
            return f"{name} is not allowed"
    return None


def references(text: str) -> set[str]:
    """The names that an expression uses: columns, and parameters of its lambdas."""
    nodes = _nodes(_syntax(text))
    return {node["column_names"][0].lower() for node in nodes if node.get("class") == "COLUMN_REF"}


def _syntax(text: str) -> Any:
    """The syntax tree of an expression."""
    query = "select json_serialize_sql(?)"
    (result,) = locked_connection().execute(query, [f"select try(({text}\n))"]).fetchall()[0]
    tree = json.loads(result)
    if tree["error"]:
        raise duckdb.ParserException(tree["error_message"])
    return tree["statements"]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for branch in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(branch, dict | list):
            yield from _nodes(branch)
