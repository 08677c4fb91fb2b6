"""The types of a stream file as Arrow types, and the conversions that all formats share."""

import re

import pyarrow as pa
import pyarrow.compute as pc

UTC_MICROSECONDS = pa.timestamp("us", "UTC")
SIMPLE = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": UTC_MICROSECONDS,
    "binary": pa.binary(),
}


def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of a type in a stream file."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    if decimal := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if kind.startswith("map<"):
        return pa.map_(pa.string(), arrow_type(element(kind)))
    return pa.list_(arrow_type(element(kind)))


def element(kind: str) -> str:
    """The type inside a map or an array."""
    return kind.removeprefix("array<").removeprefix("map<string,").removesuffix(">")


def from_epoch(numbers: pa.Array, epoch: str) -> pa.Array:
    """Times from whole numbers since 1970; null for one beyond what a timestamp can hold."""
    factor = {"seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1}[epoch]
    most = (2**63 - 1) // factor
    fits = pc.and_(pc.greater_equal(numbers, -most), pc.less_equal(numbers, most))
    kept = pc.if_else(fits, numbers, pa.scalar(None, pa.int64()))
    return pc.multiply(kept, factor).cast(UTC_MICROSECONDS)
