"""JSON, strictly: a value of another type than the declared one does not fit.

msgspec decodes each record into a struct of the wanted fields, at full speed. A record that it
refuses is decoded field by field, so that its good fields keep their values and each bad one says
what it holds. Both ways give values in the same form; dates, times and decimals stay text there,
and Arrow converts their columns as a whole.
"""

import functools
import re
from contextlib import suppress
from itertools import accumulate
from operator import attrgetter
from typing import Annotated, Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.formats import Field, Parsed, Payloads, Problems
from ingestion.formats import values as convert
from ingestion.formats.types import arrow_type, element

SAMPLE = 50  # records of a block that are searched for fields nobody wants

# RecursionError: nested deeper than Python's stack allows
REFUSALS = (msgspec.DecodeError, RecursionError, ValueError)
KINDS = {b'"': "string", b"{": "object", b"[": "array", b"t": "boolean", b"f": "boolean"}
ODD = re.compile(r'["\\\x00-\x1f]')  # msgspec wants no such characters in a name of a struct
WHOLE = re.compile(rb"(-?[0-9]+)\.0+")

_any = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])
_string = msgspec.json.Decoder(str)


class MisfitError(Exception):
    """A JSON value is not of the declared type; says what it is instead."""


class JsonDecoder:
    """JSON objects, from which each field takes the value at its path."""

    def __init__(self, fields: list[Field]) -> None:
        self._fields = fields
        self._names = {field.path[0] for field in fields}
        self._places: dict[int, tuple[str, ...]] = {}  # number of the field -> attributes
        self._shared: dict[int, tuple[str, ...]] = {}  # the same -> the path below its attribute
        paths = {number: field.path for number, field in enumerate(fields)}
        plain = {number: path for number, path in paths.items() if not ODD.search("".join(path))}
        struct = self._struct(plain, ())
        self._empty = struct()
        self._read = msgspec.json.Decoder(struct).decode if plain == paths else _refuse

    def _struct(
        self, paths: dict[int, tuple[str, ...]], parent: tuple[str, ...]
    ) -> type[msgspec.Struct]:
        """A struct of the paths below a parent: an attribute for each name that they begin with."""
        attributes: list[tuple[str, Any, Any]] = []
        for position, name in enumerate(dict.fromkeys(path[0] for path in paths.values())):
            place = (*parent, f"a{position}")
            below = {number: path[1:] for number, path in paths.items() if path[0] == name}
            forms = {_form(self._fields[n].type, self._fields[n].epoch) for n in below}
            if all(below.values()):
                form: Any = self._struct(below, place) | None
            else:
                self._places.update(dict.fromkeys(below, place))
                form = forms.pop()
                if forms or any(below.values()):  # fields that want it in different forms
                    self._shared.update(below)
                    form = msgspec.Raw
            attributes.append((place[-1], form, msgspec.field(default=None, name=name)))
        return msgspec.defstruct("Record", attributes, gc=False)

    def parse(self, payloads: Payloads) -> Parsed:
        text, unreadable = convert.texts(payloads)
        objects = payloads.raw
        if text.null_count:  # tombstones, and what is not UTF-8: no fields
            objects = [
                b"{}" if payload is None or index in unreadable else payload
                for index, payload in enumerate(objects)
            ]
        parsed = Parsed([], [{} for _ in self._fields], unreadable)
        records, judged = self._decode(cast(list[bytes], objects), parsed)
        for number, field in enumerate(self._fields):
            values = self._values(records, number, parsed)
            for index, judgement in judged.items():
                values[index] = judgement[number]
            column, misfits = _column(values, field.type, field.epoch)
            parsed.columns.append(column)
            for index, kind in misfits.items():
                parsed.misfits[number][index] = _misfit(kind, field)
        for payload in objects[:SAMPLE]:
            try:
                parsed.undeclared.update(_object.decode(payload or b"").keys() - self._names)
            except REFUSALS:
                continue
        return parsed

    def _decode(
        self, payloads: list[bytes], parsed: Parsed
    ) -> tuple[list[msgspec.Struct], dict[int, list[Any]]]:
        """All records. Those that msgspec refuses are empty, and their values come apart."""
        records: list[msgspec.Struct] = []
        judged: dict[int, list[Any]] = {}
        left = iter(payloads)
        while len(records) < len(payloads):
            try:
                records.extend(map(self._read, left))
            except REFUSALS:  # `records` has all before it, and `left` goes on behind it
                index = len(records)
                if values := self._judge(payloads[index], index, parsed):
                    judged[index] = values
                records.append(self._empty)
        return records, judged

    def _judge(self, payload: bytes, index: int, parsed: Parsed) -> list[Any] | None:
        """The values of a record that the decoder refused, noting what is wrong with it."""
        try:
            _any.decode(payload)
            record = _object.decode(payload)
        except msgspec.ValidationError:
            parsed.misshapen[index] = "not a JSON object"
            return None
        except REFUSALS:
            parsed.unreadable[index] = "not valid JSON"
            return None
        return [
            self._value(record.get(field.path[0]), field.path[1:], number, index, parsed)
            for number, field in enumerate(self._fields)
        ]

    def _value(
        self,
        raw: msgspec.Raw | None,
        path: tuple[str, ...],
        number: int,
        index: int,
        parsed: Parsed,
    ) -> Any:
        """The value of one field of one record, from the JSON that holds it."""
        field = self._fields[number]
        for name in path:
            if raw is None or _kind(raw) != "object":
                return None
            raw = _object.decode(raw).get(name)
        try:
            return None if raw is None else _fit(raw, field.type, field.epoch)
        except MisfitError as misfit:
            parsed.misfits[number][index] = _misfit(str(misfit), field)
            return None

    def _values(self, records: list[Any], number: int, parsed: Parsed) -> list[Any]:
        """The values of one field in all records."""
        if number not in self._places:  # every record is decoded field by field
            return [None] * len(records)
        first, *inner = self._places[number]
        values = list(map(attrgetter(first), records))
        for name in inner:
            values = [None if value is None else getattr(value, name) for value in values]
        if number in self._shared:
            path = self._shared[number]
            values = [
                self._value(raw, path, number, index, parsed) for index, raw in enumerate(values)
            ]
        return values


def _refuse(_payload: bytes) -> Any:
    raise msgspec.DecodeError


def _misfit(kind: str, field: Field) -> str:
    place = f" at {'.'.join(field.path)}" if len(field.path) > 1 else ""
    is_plain_number = kind == "number" and field.type == "timestamp" and field.epoch is None
    hint = " unless epoch is set" if is_plain_number else ""
    return f"{kind}{place}, not {field.type}{hint}"


# --- one value --------------------------------------------------------------------------------


def _form(kind: str, epoch: str | None = None) -> Any:
    """What msgspec makes of a value that fits. Raw keeps a number's digits."""
    match kind.split("(")[0].split("<")[0]:
        case "map":
            return dict[str, _form(element(kind))] | None  # type: ignore[misc]
        case "array":
            return list[_form(element(kind))] | None  # type: ignore[misc]
        case "decimal":
            return msgspec.Raw
        case "timestamp" if epoch:
            return msgspec.Raw
        case "boolean":
            return bool | None
        case "int" | "bigint":
            limit = convert.WHOLE_RANGES[kind]
            return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)] | None
        case "float":
            largest = convert.LARGEST_FLOAT
            return Annotated[float, msgspec.Meta(ge=-largest, le=largest)] | None
        case "double":
            return float | None
        case _:
            return str | None


@functools.cache
def _decoder(kind: str, epoch: str | None) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_form(kind, epoch))


def _kind(raw: Any) -> str:
    """What a JSON value is, in JSON's own words."""
    return KINDS.get(bytes(raw)[:1], "number")


def _fit(raw: Any, kind: str, epoch: str | None = None) -> Any:
    """A JSON value in its form for the declared type."""
    try:
        return _decoder(kind, epoch).decode(raw)
    except REFUSALS:
        actual = _kind(raw)
    if (actual, kind.partition("<")[0]) in (("array", "array"), ("object", "map")):
        try:
            if actual == "array":
                return [_fit(inner, element(kind)) for inner in _array.decode(raw)]
            return {name: _fit(inner, element(kind)) for name, inner in _object.decode(raw).items()}
        except MisfitError as misfit:
            raise MisfitError(f"{misfit} in {actual}") from None
    if kind in convert.WHOLE_RANGES and (whole := WHOLE.fullmatch(raw)):  # 5.0
        return _fit(whole[1], kind)
    raise MisfitError(actual)


# --- a column ---------------------------------------------------------------------------------


def _column(values: list[Any], kind: str, epoch: str | None = None) -> tuple[pa.Array, Problems]:
    """The values of a field as Arrow, and the kinds of those that do not fit after all."""
    if "<" in kind:
        return _nested(values, kind)
    if epoch or kind.startswith("decimal"):
        text, is_string = _texts(values)
        if epoch:
            column = pc.coalesce(
                convert.times(pc.if_else(is_string, text, None)),
                convert.times_from_epoch(pc.if_else(is_string, None, text), epoch),
            )
        else:
            column = convert.decimals(text, arrow_type(kind))
        return column, {index: _kind(values[index]) for index in convert.lost(text, column)}
    if kind in ("date", "timestamp"):
        text = pa.array(values, pa.string())
        column = convert.from_text(text, kind)
        return column, dict.fromkeys(convert.lost(text, column), "string")
    return pa.array(values, arrow_type(kind)), {}


def _texts(values: list[Any]) -> tuple[pa.Array, pa.Array]:
    """JSON numbers and strings as text, and which of them are strings."""
    text = _lines(values)
    text = pc.if_else(pc.equal(text, "null"), None, text)
    is_string = pc.starts_with(text, '"')
    if pc.any(is_string).as_py():
        strings = [_string.decode(raw) for raw in text.filter(is_string).to_pylist()]
        text = pc.replace_with_mask(text, is_string, pa.array(strings, pa.string()))
    return text, is_string


def _lines(values: list[Any]) -> pa.Array:
    """JSON as it was written. Joined and split again, values need no object of their own."""
    with suppress(TypeError):  # some are missing
        whole = pa.array([b"\n".join(values)], pa.string())
        lines = pc.split_pattern(whole, "\n").values
        if len(lines) == len(values):  # no object or array of several lines is among them
            return lines
    return pa.array([None if raw is None else bytes(raw) for raw in values], pa.string())


def _nested(values: list[Any], kind: str) -> tuple[pa.Array, Problems]:
    """Maps and arrays. All their elements are one column."""
    is_map = kind.startswith("map")
    rows = [value or () for value in values]
    elements = [item for row in rows for item in (row.values() if row and is_map else row)]
    column, problems = _column(elements, element(kind))
    if problems:
        owners = [index for index, row in enumerate(rows) for _ in row]
        whole = "object" if is_map else "array"
        misfits = {owners[place]: f"{inner} in {whole}" for place, inner in problems.items()}
        kept = [None if index in misfits else value for index, value in enumerate(values)]
        return _nested(kept, kind)[0], misfits
    offsets = pa.array(accumulate(map(len, rows), initial=0), pa.int32())
    mask = pa.array([value is None for value in values])
    if is_map:
        names = pa.array([name for row in rows for name in row], pa.string())
        return pa.MapArray.from_arrays(offsets, names, column, arrow_type(kind), mask=mask), {}
    return pa.ListArray.from_arrays(offsets, column, arrow_type(kind), mask=mask), {}
