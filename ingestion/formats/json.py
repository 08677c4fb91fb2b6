"""JSON, strictly: a value of another type than the declared one does not fit.

msgspec decodes each record into a struct of the wanted fields, at full speed. A record that it
refuses is looked at again, field by field, so that its good fields keep their values and each bad
one says what it holds. Both ways give values in the same form; dates, times and decimals stay text
there, and Arrow converts their columns as a whole.
"""

import functools
import re
from typing import Annotated, Any, cast

import msgspec

from ingestion.formats import Field, Parsed, Payloads
from ingestion.formats import values as convert
from ingestion.formats.types import element

SAMPLE = 50  # records of a block that are searched for fields nobody wants

# RecursionError: nested deeper than Python's stack allows
REFUSALS = (msgspec.DecodeError, RecursionError, ValueError)
KINDS = {b'"': "string", b"{": "object", b"[": "array", b"t": "boolean", b"f": "boolean"}
WHOLE = re.compile(rb"(-?[0-9]+)\.0+")
SIMPLE_NAME = re.compile(r"[\w.@-]{1,40}")

_any = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])


class Misfit(Exception):
    """A JSON value is not of the declared type; says what it is instead."""


class JsonDecoder:
    """JSON objects, from which each field takes the value at its path."""

    def __init__(self, fields: list[Field]) -> None:
        self._fields = fields
        self._names = {field.path[0] for field in fields}
        self._places: dict[int, tuple[str, ...]] = {}  # number of the field -> attributes
        self._shared: dict[int, tuple[str, ...]] = {}  # the same -> what is left of its path
        struct = self._struct(dict(enumerate(field.path for field in fields)), ())
        self._empty = struct()
        self._decoder = msgspec.json.Decoder(struct)

    def _struct(
        self, paths: dict[int, tuple[str, ...]], parent: tuple[str, ...]
    ) -> type[msgspec.Struct]:
        """A struct of the paths below a parent: an attribute for each name that they begin with."""
        attributes: list[tuple[str, Any, Any]] = []
        for position, name in enumerate(dict.fromkeys(path[0] for path in paths.values())):
            attribute = f"a{position}"
            place = (*parent, attribute)
            below = {number: path[1:] for number, path in paths.items() if path[0] == name}
            forms = {_form(self._fields[number]) for number, rest in below.items() if not rest}
            if not forms:
                form: Any = self._struct(below, place)
            else:
                self._places.update(dict.fromkeys(below, place))
                form = forms.pop()
                if forms or any(below.values()):  # fields that want it in different forms
                    self._shared.update(below)
                    form = msgspec.Raw
            attributes.append((attribute, form | None, msgspec.field(default=None, name=name)))
        return msgspec.defstruct("Record", attributes, gc=False)

    def parse(self, payloads: Payloads) -> Parsed:
        text, unreadable = convert.texts(payloads)
        if (
            text.null_count
        ):  # tombstones, and what is not UTF-8: without fields, and no problem here
            payloads = [
                b"{}" if one is None or index in unreadable else one
                for index, one in enumerate(payloads)
            ]
        del text
        parsed = Parsed([], [{} for _ in self._fields], unreadable)
        records, judged = self._decode(cast(list[bytes], payloads), parsed)
        for number, field in enumerate(self._fields):
            values = self._values(records, number, parsed)
            for index, found in judged.items():
                values[index] = found[number]
            column, misfits = _column(values, field.type, field.epoch)
            parsed.columns.append(column)
            for index, kind in misfits.items():
                parsed.misfits[number][index] = _misfit(kind, field)
        return parsed

    def _decode(
        self, payloads: list[bytes], parsed: Parsed
    ) -> tuple[list[msgspec.Struct], dict[int, list[Any]]]:
        """All records; those that the decoder refused are empty, and their values come apart."""
        records: list[msgspec.Struct] = []
        judged: dict[int, list[Any]] = {}
        left = iter(payloads)
        while True:
            try:
                records.extend(map(self._decoder.decode, left))
            except REFUSALS:  # `records` has all before it, and `left` goes on behind it
                index = len(records)
                if found := self._judge(payloads[index], index, parsed):
                    judged[index] = found
                records.append(self._empty)
            else:
                break
        for payload in payloads[:SAMPLE]:
            try:
                parsed.undeclared.update(_object.decode(payload).keys() - self._names)
            except REFUSALS:
                continue
        return records, judged

    def _judge(self, payload: bytes, index: int, parsed: Parsed) -> list[Any] | None:
        """The values of a record that the decoder refused, noting what is wrong with it."""
        try:
            whole = _any.decode(payload)
            record = _object.decode(whole)
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
        self, raw: Any, path: tuple[str, ...], number: int, index: int, parsed: Parsed
    ) -> Any:
        """The value of one field of one record, from the JSON in which it is."""
        field = self._fields[number]
        try:
            for name in path:
                if raw is None or _kind(raw) != "object":
                    return None
                raw = _object.decode(raw).get(name)
            return None if raw is None else _judge(bytes(raw), field.type, field.epoch)
        except Misfit as misfit:
            parsed.misfits[number][index] = _misfit(str(misfit), field)
            return None

    def _values(self, records: list[Any], number: int, parsed: Parsed) -> list[Any]:
        values = records
        for depth, name in enumerate(self._places[number]):
            if depth == 0:
                values = [getattr(one, name) for one in values]
            else:
                values = [None if one is None else getattr(one, name) for one in values]
        if number in self._shared:
            path = self._shared[number]
            return [
                self._value(raw, path, number, index, parsed) for index, raw in enumerate(values)
            ]
        return values


def _misfit(found: str, field: Field) -> str:
    place = f" at {'.'.join(field.path)}" if len(field.path) > 1 else ""
    hint = ""
    if found == "number" and field.type == "timestamp" and field.epoch is None:
        hint = " unless epoch is set"
    return f"{found}{place}, not {field.type}{hint}"


# --- one value --------------------------------------------------------------------------------


def _form(field: Field) -> Any:
    return _form_of(field.type, field.epoch)


def _form_of(kind: str, epoch: str | None = None) -> Any:
    """What msgspec makes of a value that fits. Raw keeps a number's digits."""
    match kind.split("(")[0].split("<")[0]:
        case "map":
            return dict[str, _form_of(element(kind)) | None]
        case "array":
            return list[_form_of(element(kind)) | None]
        case "decimal":
            return msgspec.Raw
        case "timestamp" if epoch:
            return msgspec.Raw
        case "boolean":
            return bool
        case "int" | "bigint":
            limit = convert.WHOLE_RANGES[kind]
            return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
        case "float":
            limit = convert.LARGEST_FLOAT
            return Annotated[float, msgspec.Meta(ge=-limit, le=limit)]
        case "double":
            return float
        case _:
            return str


@functools.cache
def _decoder(kind: str, epoch: str | None) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_form_of(kind, epoch))


def _kind(raw: Any) -> str:
    """What a JSON value is, in JSON's own words."""
    return KINDS.get(bytes(raw[:1]), "number")


def _judge(raw: bytes, kind: str, epoch: str | None = None) -> Any:
    """A JSON value in its form for the declared type."""
    ...
