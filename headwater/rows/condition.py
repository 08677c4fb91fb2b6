"""Whose rows are meant: a condition on the columns of a stream, understood alike everywhere.

Spark gets it as SQL, pyarrow as an expression on the rows of a file, and a failed record, whose
columns are null, is judged by its bytes. So the grammar is small, and what would mean different
things in the three places is refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ingestion.errors import ConditionError
from ingestion.stream import Stream

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema

GRAMMAR = "write =, in, <, <=, >, >=, between, like 'x%', is null, is not null, and, or"


@dataclass(frozen=True)
class Condition:
    """A condition as it was read, before it meets the columns of a table."""

    expression: "BooleanExpression"
    bronze: "Schema"

    @cached_property
    def columns(self) -> list[str]:
        return sorted({one.term.name for one in _predicates(self.expression)})

    def bind(self, schema: "Schema") -> "BooleanExpression | None":
        """On the columns of a table; None when it lacks one, or has it as another kind of value."""
        from pyiceberg.expressions.visitors import bind

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


def read_condition(text: str, stream: Stream, bronze: "Schema") -> Condition:
    """Check a condition against the columns that the stream declares."""
    from pyiceberg.expressions.parser import parse
    from pyparsing import ParseException

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
    from pyiceberg import expressions as E

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
    from pyiceberg.expressions import And, Or

    if isinstance(expression, And):
        return {}
    if isinstance(expression, Or):
        left, right = _alone(expression.left), _alone(expression.right)
        return {name: left.get(name, set()) | right.get(name, set()) for name in left | right}
    equals = _equals(expression)
    return {expression.term.ref().field.name: equals} if equals else {}


def _equals(predicate: Any) -> set[Any] | None:
    from pyiceberg.expressions import BoundEqualTo, BoundIn

    if isinstance(predicate, BoundEqualTo):
        return {predicate.literal.value}
    return set(predicate.value_set) if isinstance(predicate, BoundIn) else None


# --- as SQL ---------------------------------------------------------------------------------------

OPERATORS = {
    "BoundEqualTo": "=",
    "BoundLessThan": "<",
    "BoundLessThanOrEqual": "<=",
    "BoundGreaterThan": ">",
    "BoundGreaterThanOrEqual": ">=",
}


def as_sql(expression: Any) -> str:
    """A bound condition for Spark. Values stand in it as bytes, so none can end its quotes."""
    from pyiceberg import expressions as E

    if isinstance(expression, E.And | E.Or):
        word = "and" if isinstance(expression, E.And) else "or"
        return f"({as_sql(expression.left)} {word} {as_sql(expression.right)})"
    field = expression.term.ref().field
    column = f"`{field.name}`"
    match expression:
        case E.BoundIsNull():
            return f"{column} is null"
        case E.BoundNotNull():
            return f"{column} is not null"
        case E.BoundIn():
            values = [_sql_value(one.value, field.field_type) for one in expression.literals]
            return f"{column} in ({', '.join(values)})"
        case E.BoundStartsWith():
            return f"startswith({column}, {_sql_value(expression.literal.value, field.field_type)})"
    operator = OPERATORS[type(expression).__name__]
    return f"{column} {operator} {_sql_value(expression.literal.value, field.field_type)}"


def _sql_value(value: Any, kind: Any) -> str:
    from pyiceberg import types as I

    match kind:
        case I.StringType():
            return f"cast(X'{value.encode().hex()}' as string)"
        case I.BinaryType():
            return f"X'{value.hex()}'"
        case I.DateType():
            return f"date_from_unix_date({value})"
        case I.TimestamptzType():
            return f"timestamp_micros({value})"
        case I.TimestampType():
            return f"cast(timestamp_micros({value}) as timestamp_ntz)"
        case I.DecimalType():
            return f"cast('{value}' as decimal({kind.precision},{kind.scale}))"
        case I.FloatType() | I.DoubleType():
            return f"cast('{value!r}' as {kind})"
    return str(value).lower()  # a whole number or a boolean


# --- by the bytes of a failed record --------------------------------------------------------------


def judge(expression: Any, row: dict[str, Any], raw: bytes, by_text: bool) -> bool | None:
    """Whether a failed record fulfils a bound condition; None where it cannot be told.

    A column that was decoded counts. For one that is null, its value is looked for in the bytes:
    a text as a whole word, a whole number too where the record is text.
    """
    from pyiceberg import expressions as E

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
    import pyarrow as pa
    from pyiceberg.io.pyarrow import expression_to_pyarrow, schema_to_pyarrow

    field = expression.term.ref().field
    column = pa.array([value], schema_to_pyarrow(field.field_type))
    return bool(pa.table({field.name: column}).filter(expression_to_pyarrow(expression)).num_rows)


SHORT_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r"}
# The letter of an escape such as \n is no part of the word behind it.
WORD_BEGINS = rb"(?:(?<![0-9A-Za-z_])|(?<=\\[bfnrt]))"
WORD_ENDS = rb"(?![0-9A-Za-z_])"


def _pattern(value: str | int, whole: bool = True) -> re.Pattern[bytes]:
    """The value in UTF-8, or escaped as JSON may, or behind its length as in Avro."""
    if isinstance(value, int):
        return re.compile(rb"(?<![0-9.])" + str(value).encode() + rb"(?![0-9.])")
    body = b"".join(_character(one) for one in value)
    found = WORD_BEGINS + body + (WORD_ENDS if whole else b"")
    if whole:
        found += b"|" + re.escape(_avro_length(len(value.encode())) + value.encode())
    return re.compile(found, re.DOTALL)


def _character(one: str) -> bytes:
    plain = [re.escape(one.encode())]
    if one in SHORT_ESCAPES:
        plain.append(re.escape(b"\\" + SHORT_ESCAPES[one].encode()))
    units = one.encode("utf-16-be").hex()
    code = b"".join(rb"\\u" + units[at : at + 4].encode() for at in range(0, len(units), 4))
    digits = re.sub(rb"(?<!\\)[a-f]", lambda hit: b"[" + hit[0] + hit[0].upper() + b"]", code)
    return b"(?:" + b"|".join([*plain, digits]) + b")"


def _avro_length(size: int) -> bytes:
    """The length of a string as Avro writes it in front: zigzag, seven bits a byte."""
    number, found = size * 2, b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])
