"""Whose rows are meant: a condition on the columns of a stream, understood alike everywhere.

Rows are told by their columns, and a failed record, whose columns are null, by its bytes. So the
grammar is small, and what would mean different things in the two places is refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as E
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyparsing import ParseException

from ingestion.errors import ERASED, ConditionError
from ingestion.stream import Stream

GRAMMAR = "write =, in, <, <=, >, >=, between, like 'x%', is null, is not null, and, or"


@dataclass(frozen=True)
class Condition:
    """A condition as it was read, before it meets the columns of a table."""

    expression: BooleanExpression
    bronze: Schema

    @cached_property
    def columns(self) -> list[str]:
        return sorted({one.term.name for one in _predicates(self.expression)})

    def bind(self, schema: Schema) -> BooleanExpression | None:
        """On the columns of a table; None when it lacks one, or has it as another kind of value."""
        try:
            return bind(schema, self.expression, case_sensitive=True)
        except (ValueError, TypeError):
            return None

    @cached_property
    def values(self) -> dict[str, set[Any]]:
        """Column -> the values that fulfil the condition by themselves.

        Parts of an `and` do not: someone else may have the same value.
        """
        return _alone(self.bind(self.bronze))

    @cached_property
    def words(self) -> list[re.Pattern[bytes]]:
        """What a search for the values in bytes looks for."""
        return [
            _pattern(value)
            for values in self.values.values()
            for value in values
            if isinstance(value, str)
        ]


def read_condition(text: str, stream: Stream, bronze: Schema) -> Condition:
    """Check a condition against the columns that the stream declares."""
    hint = f"the columns are {', '.join(stream.columns)}; {GRAMMAR}"
    try:
        expression = parse(text)
    except (ParseException, ValueError, TypeError) as error:
        where = f" at character {error.loc + 1}" if isinstance(error, ParseException) else ""
        raise ConditionError(f"the condition cannot be read{where}", hint) from error
    for one in _predicates(expression):
        name = one.term.name
        if name not in stream.columns:
            raise ConditionError(f"{name} is not a column of stream {stream.name}", hint)
        if not bronze.find_field(name).field_type.is_primitive:
            raise ConditionError(
                f"{name} is {stream.columns[name].type}: it has no one value", hint
            )
    condition = Condition(expression, bronze)
    bound = condition.bind(bronze)
    if bound is None:
        types = ", ".join(f"{name} is {stream.columns[name].type}" for name in condition.columns)
        raise ConditionError(f"a value does not fit its column: {types}", hint)
    if not list(_predicates(bound)):  # such as a number beyond its column
        raise ConditionError("the condition is true of all rows, or of none", hint)
    return condition


def _predicates(expression: Any) -> Iterator[Any]:
    """Each comparison in it; anything but comparisons, `and` and `or` is refused."""
    equal, compared = E.EqualTo | E.In, E.LessThan | E.GreaterThan
    known = equal | compared | E.LessThanOrEqual | E.GreaterThanOrEqual | E.StartsWith | E.IsNull
    if isinstance(expression, E.And | E.Or):
        yield from _predicates(expression.left)
        yield from _predicates(expression.right)
    elif isinstance(expression, known | E.NotNull | E.BoundPredicate):
        yield expression
    elif isinstance(expression, E.AlwaysTrue | E.AlwaysFalse):
        raise ConditionError(
            "the condition names no column, so it says nothing about anyone", GRAMMAR
        )
    else:
        raise ConditionError(
            "a condition says whose rows go, not whose rows stay: it has no `not` and no `<>`",
            GRAMMAR,
        )


def _alone(expression: Any) -> dict[str, set[Any]]:
    if isinstance(expression, E.And):
        return {}
    if isinstance(expression, E.Or):
        left, right = _alone(expression.left), _alone(expression.right)
        return {name: left.get(name, set()) | right.get(name, set()) for name in left | right}
    equals = _equals(expression)
    return {expression.term.ref().field.name: equals} if equals else {}


def _equals(predicate: Any) -> set[Any] | None:
    if isinstance(predicate, E.BoundEqualTo):
        return {predicate.literal.value}
    return set(predicate.value_set) if isinstance(predicate, E.BoundIn) else None


# --- by columns -----------------------------------------------------------------------------------


def fulfils(rows: pa.Table, bound: BooleanExpression | None) -> pa.Array:
    """Which rows fulfil a bound condition; none where there is none."""
    numbers = pa.array(range(rows.num_rows), pa.int64())
    if bound is None:
        return pc.less(numbers, 0)
    wanted = rows.append_column("_row", numbers).filter(expression_to_pyarrow(bound))
    return pc.is_in(numbers, wanted["_row"].combine_chunks())


def is_kept(rows: pa.Table) -> pa.Array:
    """Rows that were not emptied."""
    if "_error_type" not in rows.column_names:
        return pa.repeat(pa.scalar(True), rows.num_rows)
    return pc.fill_null(pc.not_equal(rows["_error_type"], ERASED), True)


# --- by the bytes of a failed record --------------------------------------------------------------


def judge(expression: Any, row: dict[str, Any], raw: bytes, by_text: bool) -> bool | None:
    """Whether a failed record fulfils a bound condition; None where it cannot be told.

    A column that was decoded counts. For one that is null, its value is looked for in the bytes:
    a text as a whole word, a whole number too where the record is text.
    """
    if isinstance(expression, E.And | E.Or):
        decides = isinstance(expression, E.Or)  # true decides an `or`, false an `and`
        found = [judge(one, row, raw, by_text) for one in (expression.left, expression.right)]
        if decides in found:
            return decides
        return None if None in found else not decides
    value = row[expression.term.ref().field.name]
    if value is not None:
        return _holds(expression, value)
    wanted = _equals(expression)
    if isinstance(expression, E.BoundStartsWith):
        return _pattern(expression.literal.value, whole=False).search(raw) is not None
    if wanted is None:
        return None
    if not all(isinstance(one, str) or (by_text and type(one) is int) for one in wanted):
        return None
    return any(_pattern(one).search(raw) for one in wanted)


def _holds(expression: Any, value: Any) -> bool:
    """A comparison on a value that is there, by the same code as on the rows of files."""
    field = expression.term.ref().field
    column = pa.array([value], schema_to_pyarrow(field.field_type))
    return bool(pa.table({field.name: column}).filter(expression_to_pyarrow(expression)).num_rows)


SHORT_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r"}
# The letter of an escape such as \n is no part of the word behind it.
WORD_BEGINS = rb"(?:(?<![0-9A-Za-z_])|(?<=\\[bfnrt]))"
WORD_ENDS = rb"(?![0-9A-Za-z_])"


def _pattern(value: str | int, whole: bool = True) -> re.Pattern[bytes]:
    """The value in UTF-8, or escaped as JSON may, or behind its length as in Avro and Protobuf."""
    if isinstance(value, int):
        return re.compile(rb"(?<![0-9.])" + str(value).encode() + rb"(?![0-9.])")
    body = b"".join(_character(one) for one in value)
    found = WORD_BEGINS + body + (WORD_ENDS if whole else b"")
    if whole:
        raw = value.encode()
        for length in (2 * len(raw), len(raw)):  # Avro's zigzag number, and Protobuf's plain one
            found += b"|" + re.escape(_varint(length) + raw)
    return re.compile(found, re.DOTALL)


def _character(one: str) -> bytes:
    plain = [re.escape(one.encode())]
    if one in SHORT_ESCAPES:
        plain.append(re.escape(b"\\" + SHORT_ESCAPES[one].encode()))
    units = one.encode("utf-16-be").hex()
    code = b"".join(rb"\\u" + units[at : at + 4].encode() for at in range(0, len(units), 4))
    digits = re.sub(rb"(?<!\\)[a-f]", lambda hit: b"[" + hit[0] + hit[0].upper() + b"]", code)
    return b"(?:" + b"|".join([*plain, digits]) + b")"


def _varint(number: int) -> bytes:
    """A whole number as Avro and Protobuf write it: seven bits a byte, the lowest first."""
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])
