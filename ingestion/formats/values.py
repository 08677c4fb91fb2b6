"""Text as a declared type, for every format that has text.

Arrow converts a whole block at once and says what a number or a time looks like. It gives up on a
block for a single bad value; then each value is converted by what it looks like, and the few that
remain by themselves. All ways agree on each value.
"""

import math
import re
from collections.abc import Callable
from contextlib import suppress
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.formats import Payloads, Problems
from ingestion.formats.types import UTC_MICROSECONDS, arrow_type

Convert = Callable[[str], Any]

LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
WHOLE_RANGES = {"int": 2**31, "bigint": 2**63}

# These match what Arrow is sure to accept, in the syntax that RE2 and Python share.
_DAY = (
    "^[1-9][0-9]{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    "|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_TIME = r"[ T](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?"
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):?[0-5][0-9])"
_NANOSECONDS = r"(\.[0-9]{6})[0-9]{1,3}([Z+-]|$)"
_PLAIN_NUMBER = r"^-?[0-9]{1,38}(?:\.[0-9]{1,38})?$"

_BEGINS_WITH_A_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE_NUMBER = re.compile(r"([+-]?[0-9]{1,40})(?:\.0+)?")
_WIDE = pa.decimal256(76, 38)
_MOST_DIGITS = Context(prec=200, rounding=ROUND_HALF_UP)
_NO_ZONE = pa.timestamp("us")


def texts(payloads: Payloads) -> tuple[pa.Array, Problems]:
    """The payloads as text; null, and a problem, where they are not UTF-8."""
    try:
        return payloads.column.cast(pa.string()), {}
    except pa.ArrowInvalid:
        problems = {
            index: "not valid UTF-8"
            for index, payload in enumerate(payloads.raw)
            if payload is not None and not _is_utf8(payload)
        }
        kept = [
            None if index in problems else payload for index, payload in enumerate(payloads.raw)
        ]
        return pa.array(kept, pa.binary()).cast(pa.string()), problems


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def from_text(text: pa.Array, kind: str) -> pa.Array:
    """Texts in a declared type; null for a text that is no such value."""
    match kind.split("(")[0]:
        case "date":
            return dates(text)
        case "timestamp":
            return times(text)
        case "decimal":
            return decimals(text, arrow_type(kind))
        case "string" | "binary":
            return text.cast(arrow_type(kind))
        case _:
            read = READERS[kind]
            values = [None if value is None else read(value) for value in text.to_pylist()]
            return pa.array(values, arrow_type(kind))


def lost(before: pa.Array, after: pa.Array) -> list[int]:
    """Where a conversion made a null of something."""
    if before.null_count == after.null_count:
        return []
    places: list[int] = pc.indices_nonzero(pc.and_(before.is_valid(), after.is_null())).to_pylist()
    return places


# --- whole numbers, floats, booleans ----------------------------------------------------------


def _whole(kind: str) -> Convert:
    limit = WHOLE_RANGES[kind]

    def read(text: str) -> int | None:
        match = _WHOLE_NUMBER.fullmatch(text)
        return int(match[1]) if match and -limit <= int(match[1]) < limit else None

    return read


def _float(limit: float) -> Convert:
    def read(text: str) -> float | None:
        value = float(text) if _NUMBER.fullmatch(text) else math.inf
        return value if math.isfinite(value) and abs(value) <= limit else None

    return read


READERS: dict[str, Convert] = {
    "boolean": {"true": True, "false": False}.get,
    "int": _whole("int"),
    "bigint": _whole("bigint"),
    "float": _float(LARGEST_FLOAT),
    "double": _float(math.inf),
}


# --- decimals ---------------------------------------------------------------------------------


def decimals(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decimals, rounded half up to the scale; null where too many digits stand in front."""
    # Arrow crashes on exponents such as 1e-999999999.
    plain = pc.match_substring_regex(text, _PLAIN_NUMBER)
    if pc.all(plain).as_py() is not False:
        with suppress(pa.ArrowInvalid):
            return text.cast(kind)
    exact = _only(plain, text).cast(_WIDE)
    rounded = pc.round(exact, kind.scale, "half_towards_infinity")
    largest = Decimal((0, (9,) * kind.precision, -kind.scale))
    fits = pc.less_equal(pc.abs(rounded), pa.scalar(largest, _WIDE))
    return _convert_others(_only(fits, rounded).cast(kind), text, plain, _decimal(kind))


def _decimal(kind: pa.DataType) -> Convert:
    unit, end = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)

    def read(text: str) -> Decimal | None:
        if not _NUMBER.fullmatch(text):
            return None
        try:
            value = Decimal(text).quantize(unit, context=_MOST_DIGITS)
        except InvalidOperation:  # hundreds of digits, or an exponent beyond all bounds
            return None
        return value if abs(value) < end else None

    return read


# --- dates and times --------------------------------------------------------------------------


def dates(text: pa.Array) -> pa.Array:
    try:
        return text.cast(pa.date32())
    except pa.ArrowInvalid:
        sure = pc.match_substring_regex(text, _DAY + "$")
    return _convert_others(_only(sure, text).cast(pa.date32()), text, sure, _arrow(pa.date32()))


def times(text: pa.Array) -> pa.Array:
    """Times from ISO 8601, in UTC where the text names no zone."""
    for kind in (_NO_ZONE, UTC_MICROSECONDS):  # most often all texts of a topic look alike
        try:
            text[:50].cast(kind)  # Arrow takes its time to refuse all of a block
            return text.cast(kind).cast(UTC_MICROSECONDS)
        except pa.ArrowInvalid:
            continue
    without_zone = pc.match_substring_regex(text, f"{_DAY}(?:{_TIME})?$")
    with_zone = pc.match_substring_regex(text, f"{_DAY}{_TIME}{_ZONE}$")
    cut = pc.replace_substring_regex(text, _NANOSECONDS, r"\1\2")
    sure = pc.coalesce(
        _only(without_zone, cut).cast(_NO_ZONE).cast(UTC_MICROSECONDS),
        _only(with_zone, cut).cast(UTC_MICROSECONDS),
    )
    return _convert_others(sure, text, pc.or_(without_zone, with_zone), _time)


def _time(text: str) -> pa.Scalar | None:
    text = re.sub(_NANOSECONDS, r"\1\2", text)
    without_zone = _arrow(_NO_ZONE)(text)
    if without_zone is not None:
        return without_zone.cast(UTC_MICROSECONDS)
    return _arrow(UTC_MICROSECONDS)(text)


def times_from_epoch(text: pa.Array, epoch: str) -> pa.Array:
    """Times from numbers, rounded half up to microseconds; null beyond what a timestamp can be."""
    scale = {"seconds": 6, "milliseconds": 3, "microseconds": 0}[epoch]
    numbers = decimals(text, pa.decimal128(19, scale))
    most = pa.scalar(Decimal(2**63 - 1).scaleb(-scale), numbers.type)
    kept = _only(pc.less_equal(pc.abs(numbers), most), numbers)
    return pc.multiply(kept, pa.scalar(Decimal(10**scale))).cast(pa.int64()).cast(UTC_MICROSECONDS)


# --- parts of a block -------------------------------------------------------------------------


def _arrow(kind: pa.DataType) -> Convert:
    def read(text: str) -> pa.Scalar | None:
        if not _BEGINS_WITH_A_DAY.match(text):  # a refusal by Arrow is slow
            return None
        try:
            return pa.scalar(text, pa.string()).cast(kind)
        except pa.ArrowInvalid:
            return None

    return read


def _only(where: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(where, values, pa.scalar(None, values.type))


def _convert_others(done: pa.Array, text: pa.Array, sure: pa.Array, convert: Convert) -> pa.Array:
    """Convert one by one the texts that were not sure to fit."""
    others = pc.fill_null(pc.invert(sure), False)
    if not pc.any(others).as_py():
        return done
    values = [convert(value) for value in text.filter(others).to_pylist()]
    return pc.replace_with_mask(done, others, pa.array(values, done.type))
