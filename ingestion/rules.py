"""The SQL of a stream file: derived columns and rules, run by DuckDB on a block of rows.

Expressions are DuckDB SQL on the columns of one row. Each runs inside `try`, which turns an error
such as a bad cast into null. Nothing else of the database is within reach of a stream file: no
subquery, no file, no network, no setting.
"""

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from ingestion.errors import StreamFileError
from ingestion.formats.types import arrow_type, element
from ingestion.stream import Stream

NAIVE = pa.timestamp("us")  # times are UTC, and without a zone in SQL
LOCKED = (
    "set enable_external_access = false",
    "set autoload_known_extensions = false",
    "set autoinstall_known_extensions = false",
    "set allow_community_extensions = false",
    "set python_enable_replacements = false",
    "set threads = 1",  # a task has one core
    "set lock_configuration = true",
)
REFUSED_CLASSES = {"SUBQUERY": "a subquery", "WINDOW": "a window function", "STAR": "a star"}
REFUSED_FUNCTIONS = {"current_setting", "getvariable", "unnest"}

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
        self.derived = {
            name: f"try(cast(({one.expression}\n) as {sql_type(one.type)}))"
            for name, one in stream.derived.items()
        }
        self.inputs = {
            name: references(one.expression or "") for name, one in stream.derived.items()
        }
        self.rules = list(stream.rules)
        self._types = {name: arrow_type(one.type) for name, one in stream.derived.items()}
        self._connection = locked_connection()
        verdicts = {
            f"rule {name}": f"coalesce(try(({rule}\n)), false)"
            for name, rule in stream.rules.items()
        }
        used = set().union(
            *(references(text) for text in (*self.derived.values(), *stream.rules.values())), ()
        )
        known = [*KAFKA_COLUMNS, *stream.decoded]
        self._columns = [name for name in known if name in used]
        self._query = _query(self.derived, verdicts)

    def apply(self, rows: pa.Table) -> pa.Table:
        """The derived columns, then a column of verdicts a rule, named `rule <name>`."""
        if not self.derived and not self.rules:
            return pa.table({})
        columns = {name: _naive(rows[name]) for name in self._columns}
        # Without a column, a table has no rows.
        block = pa.table(columns or {"_": pa.nulls(rows.num_rows)})
        self._connection.register("block", block)
        try:
            found = self._connection.sql(self._query).to_arrow_table()
        finally:
            self._connection.unregister("block")
        for name, kind in self._types.items():
            index = found.column_names.index(name)
            column = found[name]
            if column.type != kind:
                found = found.set_column(index, name, column.cast(kind))
        return found


def _query(derived: dict[str, str], verdicts: dict[str, str]) -> str:
    """A derived column may use those above it, so each has a query around the one before."""
    source = "block"
    for name, expression in derived.items():
        source = f'(select *, {expression} as "{name}" from {source})'  # noqa: S608
    wanted = [f'"{name}"' for name in derived]
    wanted += [f'{expression} as "{name}"' for name, expression in verdicts.items()]
    return f"select {', '.join(wanted)} from {source}"  # noqa: S608


def _naive(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(NAIVE) if pa.types.is_timestamp(column.type) else column


def locked_connection() -> duckdb.DuckDBPyConnection:
    """A database in memory that reaches nothing outside of it."""
    connection = duckdb.connect(":memory:")
    for statement in LOCKED:
        connection.execute(statement)
    return connection


SQL_TYPES = {"string": "varchar", "binary": "blob"}


def sql_type(kind: str) -> str:
    """The DuckDB type of a type in a stream file."""
    if kind.startswith("map<"):
        return f"map(varchar, {sql_type(element(kind))})"
    if kind.startswith("array<"):
        return f"{sql_type(element(kind))}[]"
    return SQL_TYPES.get(kind, kind)


def check_rules(stream: Stream) -> None:
    """Refuse, by name and before the first record, what DuckDB cannot run."""
    columns = KAFKA_COLUMNS | {name: one.type for name, one in stream.decoded.items()}
    for name, column in stream.derived.items():
        _check(stream, f"the column {name}", column.expression or "", columns, None)
        cast = f"cast(({column.expression}\n) as {sql_type(column.type)})"
        _check(stream, f"the column {name}", cast, columns, None)
        columns[name] = column.type
    for name, rule in stream.rules.items():
        _check(stream, f"the rule {name}", rule, columns, "BOOLEAN")
    Rules(stream).apply(
        pa.table({name: pa.nulls(1, arrow_type(kind)) for name, kind in columns.items()})
    )


def _check(
    stream: Stream, what: str, text: str, columns: dict[str, str], wanted: str | None
) -> None:
    hint = f"it is a DuckDB SQL expression on the columns {', '.join(stream.columns)}"
    problem = _refusal(text)
    if problem is None:
        nulls = ", ".join(f'cast(null as {sql_type(kind)}) as "{n}"' for n, kind in columns.items())
        # The star makes an aggregate an error: it would need a `group by`.
        query = f"describe select *, ({text}\n) as _found, try(({text}\n)) from (select {nulls})"  # noqa: S608
        try:
            described = locked_connection().execute(query).fetchall()
        except duckdb.Error as error:
            problem = str(error).split("\n")[0]
        else:
            kind = next(row[1] for row in described if row[0] == "_found")
            if wanted and kind != wanted:
                problem = f"it gives {kind.lower()}, not true or false"
    if problem:
        raise StreamFileError(f"{stream.file}: {what} does not work: {text}: {problem}", hint)


def _refusal(text: str) -> str | None:
    """Why an expression is refused before it is run at all."""
    try:
        tree = _syntax(text)
    except ValueError as error:
        return str(error)
    for node in _nodes(tree):
        if found := REFUSED_CLASSES.get(node.get("class", "")):
            return f"{found} is not allowed: an expression sees one row"
        if (name := str(node.get("function_name", "")).lower()) in REFUSED_FUNCTIONS:
            return f"{name} is not allowed"
    return None


def references(text: str) -> set[str]:
    """The columns that an expression reads."""
    return {
        node["column_names"][0].lower()
        for node in _nodes(_syntax(text))
        if node.get("class") == "COLUMN_REF"
    }


def _syntax(text: str) -> Any:
    """The syntax tree of one expression."""
    connection = locked_connection()
    query = "select json_serialize_sql(?)"
    found = json.loads(connection.execute(query, [f"select ({text}\n)"]).fetchall()[0][0])
    if found["error"]:
        raise ValueError(found["error_message"].split("\n")[0])
    if len(found["statements"]) != 1:
        raise ValueError("it is more than one expression")
    node = found["statements"][0]["node"]
    is_bare = node["type"] == "SELECT_NODE" and node["from_table"]["type"] == "EMPTY"
    if not is_bare or len(node["select_list"]) != 1 or node["where_clause"] or node["modifiers"]:
        raise ValueError("it is more than one expression")
    return node["select_list"][0]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)
