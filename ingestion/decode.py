"""Kafka records in, bronze rows out: pure functions on Arrow.

Every record becomes one row. What cannot be decoded or breaks a rule is a row too, with its raw
bytes, an error type and a message. A null value is a tombstone, not an error.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.errors import DESERIALIZATION, SCHEMA, TRANSFORMATION, VALIDATION, StreamFileError
from ingestion.formats import Decoder, Field, Parsed, Payloads, Problems
from ingestion.formats import avro as avro_format
from ingestion.formats.avro import AvroDecoder, RegistryAvroDecoder
from ingestion.formats.json import JsonDecoder
from ingestion.formats.protobuf import RegistryProtobufDecoder
from ingestion.formats.registry import Registry
from ingestion.formats.text import TextDecoder
from ingestion.formats.types import UTC_MICROSECONDS, element, from_epoch
from ingestion.kafka import Record
from ingestion.rules import KAFKA_COLUMNS, Rules, check_rules
from ingestion.stream import REGISTRY, Column, Format, Stream
from ingestion.table import HEADERS

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
EPOCH = date(1970, 1, 1)
BETWEEN = (date(1900, 1, 1), date(2200, 12, 31))  # outside: probably in a wrong unit
JSON = msgspec.json.Encoder(decimal_format="number")
MOST_VALUES = 10_000  # characters of the values that an error message shows

Errors = dict[int, tuple[str, str]]  # number of the record in the block -> type and message


@dataclass
class Records:
    """A block of Kafka records, part by part."""

    topics: pa.Array
    partitions: pa.Array
    offsets: pa.Array
    timestamps: pa.Array
    keys: Payloads
    values: Payloads
    headers: pa.Array | None = None

    @classmethod
    def of(cls, records: Sequence[Record], headers: bool) -> "Records":
        """From the client's messages."""
        first, last, count = records[0], records[-1], len(records)
        message = type(first)  # its methods, mapped, are the fastest way to get at the parts
        is_one_partition = (first.topic(), first.partition()) == (last.topic(), last.partition())
        if is_one_partition:  # they come in order
            topics = pa.repeat(first.topic(), count)
            partitions = pa.repeat(pa.scalar(first.partition(), pa.int32()), count)
        else:
            topics = pa.array(list(map(message.topic, records)), pa.string())
            partitions = pa.array(list(map(message.partition, records)), pa.int32())
        if is_one_partition and last.offset() - first.offset() == count - 1:  # without gaps
            offsets = pa.arange(first.offset(), last.offset() + 1)
        else:
            offsets = pa.array(list(map(message.offset, records)), pa.int64())
        milliseconds = pa.array([time for _, time in map(message.timestamp, records)], pa.int64())
        return cls(
            topics,
            partitions,
            offsets,
            from_epoch(milliseconds, "milliseconds"),  # a producer may send any number
            Payloads.of(list(map(message.key, records))),
            Payloads.of(list(map(message.value, records))),
            pa.array(list(map(_headers, map(message.headers, records))), HEADERS_TYPE)
            if headers
            else None,
        )

    @classmethod
    def joined(cls, parts: Sequence["Records"]) -> "Records":
        """Records that follow each other, as one block."""
        if len(parts) == 1:
            return parts[0]
        headers = [part.headers for part in parts if part.headers is not None]
        return cls(
            pa.concat_arrays([part.topics for part in parts]),
            pa.concat_arrays([part.partitions for part in parts]),
            pa.concat_arrays([part.offsets for part in parts]),
            pa.concat_arrays([part.timestamps for part in parts]),
            Payloads.joined([part.keys for part in parts]),
            Payloads.joined([part.values for part in parts]),
            pa.concat_arrays(headers) if headers else None,
        )

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def from_rows(cls, rows: pa.Table, headers: bool) -> "Records":
        """From rows that have landed."""
        columns = {name: rows[name].combine_chunks() for name in KAFKA_COLUMNS}
        kept = None
        if headers and HEADERS.name in rows.column_names:
            kept = rows[HEADERS.name].combine_chunks().cast(HEADERS_TYPE)
        elif headers:  # the stream had none when these rows landed
            kept = pa.nulls(rows.num_rows, HEADERS_TYPE)
        return cls(
            columns["_kafka_topic"],
            columns["_kafka_partition"],
            columns["_kafka_offset"],
            columns["_kafka_timestamp"],
            Payloads.of(columns["_kafka_key"].to_pylist()),
            Payloads.of(columns["_kafka_value"].to_pylist()),
            kept,
        )


def _headers(headers: Any) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in headers] if headers else None


@dataclass
class Block:
    """Rows of the bronze table, and what was noticed about them."""

    rows: pa.Table
    errors: Counter[str] = field(default_factory=Counter)  # by type
    undeclared: set[str] = field(default_factory=set)


class StreamDecoder:
    """Turns the records of one stream into rows. Each process makes its own."""

    def __init__(self, stream: Stream, registry: Registry | None = None) -> None:
        self._stream = stream
        # Where each column is looked up: (part of the record, number of the field in that part).
        self._places: dict[str, list[tuple[str, int]]] = {}
        fields: dict[str, list[Field]] = {"key": [], "value": []}
        for name, column in stream.decoded.items():
            self._places[name] = []
            for source in stream.sources(name):
                part, *path = source.split(".")
                self._places[name].append((part, len(fields[part])))
                fields[part].append(Field(tuple(path), column.type, column.epoch))
        formats = {"key": stream.key, "value": stream.value}
        self._decoders: dict[str, Decoder] = {
            part: _decoder(format_, fields[part], registry)
            for part, format_ in formats.items()
            if format_ is not None
        }
        self._rules = Rules(stream)

    def decode(self, records: Records, stamp: datetime) -> Block:
        count = len(records)
        payloads = {"key": records.keys, "value": records.values}
        parsed = {part: decoder.parse(payloads[part]) for part, decoder in self._decoders.items()}
        values = records.values.column
        columns: dict[str, pa.Array] = {
            "_kafka_topic": records.topics,
            "_kafka_partition": records.partitions,
            "_kafka_offset": records.offsets,
            "_kafka_timestamp": records.timestamps,
            "_kafka_key": records.keys.column,
            "_kafka_value": values,
        }
        if records.headers is not None:
            columns[HEADERS.name] = records.headers
        misfits: dict[str, Problems] = {}
        for name, column in self._stream.decoded.items():
            columns[name], misfits[name] = self._find(name, column, parsed)
        errors = self._record_errors(parsed, misfits, columns, values)
        self._apply_rules(columns, errors, values)
        kinds, messages = _error_columns(errors, count)
        columns |= {
            "_ingested_at": pa.repeat(pa.scalar(stamp, UTC_MICROSECONDS), count),
            "_error_type": kinds,
            "_error_message": messages,
            "_resolved_at": pa.nulls(count, UTC_MICROSECONDS),
        }
        return Block(
            pa.table(columns),
            Counter(kind for kind, _ in errors.values()),
            parsed["value"].undeclared,
        )

    def _find(
        self, name: str, column: Column, parsed: dict[str, Parsed]
    ) -> tuple[pa.Array, Problems]:
        """The column, from the first of its places that holds a value."""
        candidates = [parsed[part].columns[number] for part, number in self._places[name]]
        misfits: Problems = {}
        for part, number in reversed(self._places[name]):
            misfits |= parsed[part].misfits[number]
        values = candidates[0] if len(candidates) == 1 else pc.coalesce(*candidates)
        return _within_bounds(values, column, misfits)

    def _record_errors(
        self,
        parsed: dict[str, Parsed],
        misfits: dict[str, Problems],
        columns: dict[str, pa.Array],
        values: pa.Array,
    ) -> Errors:
        """Bytes that do not parse, fields that are missing or of another type."""
        missing: dict[int, list[str]] = {}
        wrong: dict[int, list[str]] = {}
        for name, column in self._stream.decoded.items():
            for row, problem in misfits[name].items():
                wrong.setdefault(row, []).append(f"{name} ({problem})")
            if column.optional or not columns[name].null_count:
                continue
            # A tombstone has no value that could hold it.
            absent = pc.and_(columns[name].is_null(), values.is_valid())
            for row in pc.indices_nonzero(absent).to_pylist():
                if row not in misfits[name]:
                    missing.setdefault(row, []).append(name)
        errors: Errors = {}
        for row in missing.keys() | wrong.keys():
            clauses = [f"missing: {', '.join(missing[row])}"] if row in missing else []
            clauses += [f"of another type: {', '.join(wrong[row])}"] if row in wrong else []
            errors[row] = SCHEMA, "; ".join(clauses)
        for part in reversed(parsed):  # the key counts first
            errors |= {
                row: (SCHEMA, f"{part}: {why}") for row, why in parsed[part].misshapen.items()
            }
        for part in reversed(parsed):
            unreadable = parsed[part].unreadable.items()
            errors |= {row: (DESERIALIZATION, f"{part}: {why}") for row, why in unreadable}
        return errors

    def _apply_rules(self, columns: dict[str, pa.Array], errors: Errors, values: pa.Array) -> None:
        """Adds the derived columns, and the errors of rows that had none."""
        results = self._rules.apply(pa.table(columns))
        failed: dict[int, list[str]] = {}
        has_error = _mask(errors, len(values))
        for name, column in self._stream.derived.items():
            derived, _ = _within_bounds(results[name].combine_chunks(), column, {})
            if errors:
                derived = pc.if_else(has_error, pa.scalar(None, derived.type), derived)
            columns[name] = derived
            if column.optional or not derived.null_count:
                continue
            absent = pc.and_not(derived.is_null(), has_error)
            for source in self._rules.inputs[name]:
                absent = pc.and_(absent, columns[source].is_valid())
            for row in pc.indices_nonzero(absent).to_pylist():
                failed.setdefault(row, []).append(name)
        self._add(errors, failed, columns, TRANSFORMATION, "not computed")
        broken: dict[int, list[str]] = {}
        for rule in self._rules.rules:
            verdicts = results[f"rule {rule}"]
            if pc.all(verdicts).as_py() is not False:
                continue
            for row in pc.indices_nonzero(pc.invert(verdicts)).to_pylist():
                if row not in errors and values[row].is_valid:
                    broken.setdefault(row, []).append(rule)
        self._add(errors, broken, columns, VALIDATION, "rules not met")

    def _add(
        self,
        errors: Errors,
        failed: dict[int, list[str]],
        columns: dict[str, pa.Array],
        kind: str,
        words: str,
    ) -> None:
        """Errors with the values that caused them."""
        if not failed:
            return
        shown = pa.table({name: columns[name] for name in self._stream.columns if name in columns})
        for (row, names), known in zip(
            failed.items(),
            shown.take(list(failed)).to_pylist(maps_as_pydicts="lossy"),
            strict=True,
        ):
            held = {name: value for name, value in known.items() if value is not None}
            text = JSON.encode(held).decode()[:MOST_VALUES]
            errors[row] = kind, f"{words}: {', '.join(names)}; values: {text}"


def _mask(rows: Errors, count: int) -> pa.Array:
    if not rows:
        return pa.repeat(False, count)
    chosen = bytearray(count)
    for row in rows:
        chosen[row] = 1
    return pa.array(chosen, pa.uint8()).cast(pa.bool_())


def _error_columns(errors: Errors, count: int) -> tuple[pa.Array, pa.Array]:
    if not errors:
        return pa.nulls(count, pa.string()), pa.nulls(count, pa.string())
    kinds: list[str | None] = [None] * count
    messages: list[str | None] = [None] * count
    for row, (kind, message) in errors.items():
        kinds[row], messages[row] = kind, message
    return pa.array(kinds, pa.string()), pa.array(messages, pa.string())


def _within_bounds(
    values: pa.Array, column: Column, misfits: Problems
) -> tuple[pa.Array, Problems]:
    """Times outside of what the column allows become misfits, also those in arrays and maps."""
    if element(column.type) not in ("date", "timestamp"):
        return values, misfits
    times = values
    if column.type != element(column.type):
        times = values.items if column.type.startswith("map") else values.values
    first, last = column.between or BETWEEN
    low = pa.scalar((first - EPOCH).days, pa.date32()).cast(times.type)
    high = pa.scalar((last - EPOCH).days + 1, pa.date32()).cast(times.type)
    ends = pc.min_max(times)
    if not ends["min"].is_valid or (
        pc.greater_equal(ends["min"], low).as_py() and pc.less(ends["max"], high).as_py()
    ):
        return values, misfits
    outside = pc.or_(pc.less(times, low), pc.greater_equal(times, high))
    places = pc.indices_nonzero(pc.fill_null(outside, False))
    rows = places
    if times is not values:
        rows = pc.list_parent_indices(pa.ListArray.from_arrays(values.offsets, times)).take(places)
    for place, row in zip(places.to_pylist(), rows.to_pylist(), strict=True):
        misfits.setdefault(row, f"{_day(times[place])}, not between {first} and {last}")
    kept = [None if row in misfits else row for row in range(len(values))]
    return values.take(pa.array(kept, pa.int64())), misfits


def _day(value: pa.Scalar) -> str:
    days = value.value if pa.types.is_date(value.type) else value.value // 86_400_000_000
    try:
        return str(EPOCH + timedelta(days))
    except OverflowError:  # Python knows the years 1 to 9999
        return f"year {1970 + int(days // 365.2425)}"


def _decoder(format_: Format, fields: list[Field], registry: Registry | None) -> Decoder:
    match format_.format:
        case "json":
            return JsonDecoder(fields)
        case "text":
            return TextDecoder(fields)
        case "avro" if format_.schema_ != REGISTRY:
            return AvroDecoder(format_.schema_ or "", fields)
    assert registry is not None  # noqa: S101
    by_id = RegistryAvroDecoder if format_.format == "avro" else RegistryProtobufDecoder
    return by_id(registry, fields)


def check_stream(stream: Stream) -> None:
    """Refuse columns and rules that cannot work, before the first record."""
    for name, column in stream.decoded.items():
        for source in stream.sources(name):
            part, *path = source.split(".")
            format_ = stream.key if part == "key" else stream.value
            if format_ is None or format_.schema_ in (None, REGISTRY):
                continue
            wanted = Field(tuple(path), column.type, column.epoch)
            if problem := avro_format.problem(format_.schema_ or "", wanted):
                raise StreamFileError(
                    f"{stream.file}: the column {name} does not work: {problem}",
                    "correct one of the two",
                )
    check_rules(stream)


def uses_registry(stream: Stream) -> bool:
    formats = (stream.key, stream.value)
    return any(format_ and format_.schema_ == REGISTRY for format_ in formats)
