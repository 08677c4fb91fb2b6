"""What Avro and Protobuf share: values whose types their writer declared.

Values arrive in a plain Arrow form of the writer's types: whole numbers as int64, text as its
bytes, a map as a list of its entries. Whole columns of them become columns of the declared types.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.formats import Field, Parsed, Problems
from ingestion.formats.types import UTC_MICROSECONDS, arrow_type, element, from_epoch
from ingestion.formats.values import WHOLE_RANGES, lost

WIDER = {
    "int": ("bigint", "float", "double"),
    "bigint": ("float", "double"),
    "float": ("double",),
}
PLAIN = {
    "boolean": pa.bool_(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.binary(),
    "binary": pa.binary(),
    "null": pa.null(),
    "union": pa.null(),
}


_LARGEST = pa.scalar(2**63 - 1, pa.uint64())


@dataclass(frozen=True)
class Kind:
    """A type of the writer, named as a stream file would; or null, record, union."""

    name: str
    parts: tuple["Kind", ...] = ()  # the element, the fields of a record, the branches of a union
    labels: tuple[str, ...] = ()  # names of the fields, or symbols of an enum
    epoch: str | None = None  # what the number in a timestamp counts
    unsigned: bool = False


def array_of(item: Kind) -> Kind:
    return Kind(f"array<{item.name}>", (item,))


def map_of(item: Kind) -> Kind:
    return Kind(f"map<string,{item.name}>", (item,))


def plain_type(kind: Kind) -> pa.DataType:
    """The Arrow type in which values of a kind arrive."""
    if kind.name.startswith("map"):
        entry = pa.struct([("key", pa.binary()), ("value", plain_type(kind.parts[0]))])
        return pa.list_(entry)
    if kind.name.startswith("array"):
        return pa.list_(plain_type(kind.parts[0]))
    if kind.name.startswith("decimal"):
        return pa.binary()
    if kind.name == "record":
        return pa.struct([])  # no column takes one: that it is there is enough
    if kind.labels or kind.name not in PLAIN:
        return pa.uint64() if kind.unsigned else pa.int64()
    return PLAIN[kind.name]


def fits(kind: Kind, declared: str, epoch: str | None = None) -> bool:
    """Whether values of the writer's kind may stand in a column of the declared type."""
    found = kind.name
    if kind.parts and found not in ("record", "union"):
        same = found.partition("<")[0] == declared.partition("<")[0]
        return same and fits(kind.parts[0], element(declared))
    if found.startswith("decimal") and declared.startswith("decimal"):
        has, wants = arrow_type(found), arrow_type(declared)
        before = has.precision - has.scale <= wants.precision - wants.scale
        return bool(before and has.scale <= wants.scale)
    if declared == "timestamp" and epoch and found in ("int", "bigint"):
        return True
    return found == declared or declared in WIDER.get(found, ())


def misfit(found: str, field: Field) -> str:
    place = f" at {'.'.join(field.path)}" if len(field.path) > 1 else ""
    if field.type == "timestamp" and field.epoch is None and found in ("int", "bigint"):
        return f"number{place}, not timestamp unless epoch is set"
    return f"{found}{place}, not {field.type}"


def column(
    found: Sequence[tuple[pa.Array, Kind]], count: int, field: Field
) -> tuple[pa.Array, Problems]:
    """A field from the values at its place, of which a record has one at most."""
    kind_wanted = arrow_type(field.type)
    columns, misfits = [], Problems()
    for values, kind in found:
        if fits(kind, field.type, field.epoch):
            converted, what = _convert(values, kind, field.type, field.epoch), _unusable(kind)
        else:
            converted, what = pa.nulls(count, kind_wanted), kind.name
        columns.append(converted)
        misfits |= dict.fromkeys(lost(values, converted), misfit(what, field))
    if len(columns) == 1:
        return columns[0], misfits
    return pc.coalesce(*columns, pa.nulls(count, kind_wanted)), misfits


def _unusable(kind: Kind) -> str:
    """What a value is that its own kind should not have."""
    if kind.labels:
        return "unknown symbol"
    if kind.parts:
        return f"{kind.name} with an unusable element"
    return "text that is not UTF-8" if kind.name == "string" else f"{kind.name} out of range"


def _convert(values: pa.Array, kind: Kind, declared: str, epoch: str | None = None) -> pa.Array:
    """Values as the declared type; null where one is none, or holds one that is none."""
    wanted = arrow_type(declared)
    if kind.name.startswith(("array", "map")):
        return _convert_elements(values, kind, declared)
    if kind.name.startswith("decimal"):
        return _decimals(values, arrow_type(kind.name)).cast(wanted)
    if kind.labels:
        return pa.array(kind.labels, pa.string()).take(_within(values, 0, len(kind.labels)))
    if kind.unsigned:
        values = pc.if_else(pc.less_equal(values, _LARGEST), values, None).cast(pa.int64())
    match declared:
        case "string":
            return _texts(values.cast(pa.binary()))
        case "timestamp" if kind.epoch == "nanoseconds":
            times = values.cast(pa.timestamp("ns", "UTC"))
            return times.cast(UTC_MICROSECONDS, safe=False)
        case "timestamp":
            return from_epoch(values, kind.epoch or epoch or "")
        case "int" | "date":
            limit = WHOLE_RANGES["int"]
            return _within(values, -limit, limit).cast(pa.int32()).cast(wanted)
        case _:
            return values.cast(wanted, safe=False)


def _within(numbers: pa.Array, low: int, high: int) -> pa.Array:
    inside = pc.and_(pc.greater_equal(numbers, low), pc.less(numbers, high))
    return pc.if_else(inside, numbers, pa.scalar(None, numbers.type))


def _texts(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in values.to_pylist()], pa.string())


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _decimals(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decimals from the big-endian bytes of their digits."""
    end = 10**kind.precision
    numbers = [
        None if raw is None else int.from_bytes(raw, "big", signed=True)
        for raw in values.cast(pa.binary()).to_pylist()
    ]
    valid = pa.array([number is not None and -end < number < end for number in numbers])
    digits = b"".join(
        (number if number is not None and -end < number < end else 0).to_bytes(
            16, "little", signed=True
        )
        for number in numbers
    )
    whole = pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(digits)])
    return pc.if_else(valid, whole, pa.scalar(None, kind))


def _convert_elements(values: pa.Array, kind: Kind, declared: str) -> pa.Array:
    is_map = declared.startswith("map")
    entries = values.values
    items = entries.field("value") if is_map else entries
    converted = _convert(items, kind.parts[0], element(declared))
    places = lost(items, converted)
    if is_map:
        keys = _texts(entries.field("key").cast(pa.binary()))
        places += pc.indices_nonzero(keys.is_null()).to_pylist()
        keys = keys.fill_null("")
    absent = values.is_null()
    if places:
        rows = set(pc.list_parent_indices(values).take(pa.array(places)).to_pylist())
        broken = pa.array([row in rows for row in range(len(values))])
        absent = pc.or_(absent, broken)
    if not is_map:
        return pa.ListArray.from_arrays(values.offsets, converted, mask=absent)
    offsets = values.offsets
    if (pc.max(pc.list_value_length(values)).as_py() or 0) > 1:
        kept = _last_of_keys(values, keys)
        if len(kept) < len(keys):
            counts = Counter(pc.list_parent_indices(values).take(kept).to_pylist())
            lengths = (counts[row] for row in range(len(values)))
            offsets = pa.array(accumulate(lengths, initial=0), pa.int32())
            keys, converted = keys.take(kept), converted.take(kept)
    return pa.MapArray.from_arrays(offsets, keys, converted, mask=absent)


def _last_of_keys(values: pa.Array, keys: pa.Array) -> pa.Array:
    """The entries of maps without those whose key comes again: the last counts."""
    coded = keys.dictionary_encode()
    rows = pc.list_parent_indices(values).cast(pa.int64())
    places = pc.add(pc.multiply(rows, len(coded.dictionary)), coded.indices.cast(pa.int64()))
    if pc.count_distinct(places).as_py() == len(keys):
        return pa.array(range(len(keys)))
    last = {place: index for index, place in enumerate(places.to_pylist())}
    return pa.array(sorted(last.values()))


def merge(parts: list[tuple[Sequence[int], Parsed]], fields: list[Field], count: int) -> Parsed:
    """Parts of a block, each with the numbers of its records in ascending order, as one."""
    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    merged = Parsed([], [{} for _ in fields])
    places: list[int | None] = [None] * count
    total = 0
    for rows, parsed in parts:
        for place, row in enumerate(rows, total):
            places[row] = place
        total += len(rows)
        merged.undeclared |= parsed.undeclared
        merged.unreadable |= {rows[index]: why for index, why in parsed.unreadable.items()}
        for number, misfits in enumerate(parsed.misfits):
            merged.misfits[number] |= {rows[index]: why for index, why in misfits.items()}
    taken = pa.array(places, pa.int64())
    for number, field in enumerate(fields):
        pieces = [parsed.columns[number] for _, parsed in parts]
        pieces.append(pa.nulls(0, arrow_type(field.type)))
        merged.columns.append(pa.concat_arrays(pieces).take(taken))
    return merged
