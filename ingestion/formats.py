"""Taking the key or the value of a record apart: JSON, Avro, text.

Each format is a function from rows to rows. For each wanted field it adds the field's value in its
declared type and, where something of another type is there, what that is. It also adds why the
bytes do not parse, if so. Nothing here raises for any bytes.
"""

import json
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ingestion.stream import REGISTRY, Format


class Wanted(NamedTuple):
    """A field to find: its place, the declared type, and the working column that will hold it."""

    name: str
    path: list[str]
    type: str

    @property
    def misfit(self) -> str:
        return f"{self.name}_misfit"


Schemas = Mapping[int, str | None]  # registry id -> Avro schema; None where it has no such id

# Working columns begin with an underscore; a declared column cannot, so they never clash.
BYTES = {"key": "_kafka_key", "value": "_kafka_value"}


def nothing(kind: str = "string") -> Column:
    return F.lit(None).cast(kind)


def unreadable(part: str) -> str:
    """The working column that says why the bytes do not parse; null where they do."""
    return f"_{part}_unreadable"


def misshapen(part: str) -> str:
    """The working column that says why what parses has no fields at all; null where it may."""
    return f"_{part}_misshapen"


def names(part: str) -> str:
    """The working column with the names of all fields, where the record brings them along."""
    return f"_{part}_names"


def take_apart(
    rows: DataFrame, part: str, format_: Format, wanted: list[Wanted], schemas: Schemas
) -> DataFrame:
    if format_.format == "json":
        return _json(rows, part, wanted)
    if format_.format == "text":
        return _text(rows, part, wanted)
    if format_.schema_ == REGISTRY:
        return _avro_by_id(rows, part, wanted, schemas)
    assert format_.schema_ is not None  # noqa: S101
    return _avro(rows, part, wanted, format_.schema_)


# --- text -------------------------------------------------------------------------------------


def _text(rows: DataFrame, part: str, wanted: list[Wanted]) -> DataFrame:
    text = F.col(BYTES[part]).cast("string")
    values = [_from_text(text, one.type).alias(one.name) for one in wanted]
    rows = rows.select(
        "*",
        _not_utf8(text).alias(unreadable(part)),
        nothing().alias(misshapen(part)),
        nothing("array<string>").alias(names(part)),
        *values,
    )
    misfits = {
        one.misfit: F.when(text.isNotNull() & F.col(one.name).isNull(), F.lit("text"))
        for one in wanted
    }
    return rows.withColumns(misfits)


TIMES = ("date", "timestamp")


def _from_text(text: Column, kind: str) -> Column:
    value = text.try_cast(kind)
    # A time must name its day: Spark would take `10:00` for ten o'clock today.
    return F.when(F.substring(text, 5, 1) == "-", value) if kind in TIMES else value


def _not_utf8(text: Column) -> Column:
    return F.when(~F.is_valid_utf8(text), F.lit("not valid UTF-8"))


# --- JSON -------------------------------------------------------------------------------------

# Spark ignores text behind the end of a JSON value. In a wrapper such text makes the whole invalid,
# or closes the wrapper early, so that its last field is not seen. Nobody can know its name.
END = uuid.uuid4().hex


def _json(rows: DataFrame, part: str, wanted: list[Wanted]) -> DataFrame:
    """One parse to a variant; each step then uses the columns of the one before it."""
    text = F.col(BYTES[part]).cast("string")
    parsed, record = f"_{part}_json", f"_{part}_record"
    wrapped = F.concat(F.lit('{"record":'), text, F.lit(f',"{END}":0}}'))
    rows = rows.withColumn(parsed, F.try_parse_json(wrapped))
    is_whole = F.coalesce(F.try_variant_get(parsed, f"$.{END}", "int") == 0, F.lit(False))
    broken = F.when(text.isNotNull() & ~is_whole, F.lit("not valid JSON"))
    rows = rows.select(
        "*",
        F.coalesce(_not_utf8(text), broken).alias(unreadable(part)),
        F.try_variant_get(parsed, "$.record", "map<string,variant>").alias(record),
    )
    rows = rows.select(
        "*",
        F.map_keys(record).alias(names(part)),
        F.when(
            F.col(unreadable(part)).isNull() & text.isNotNull() & F.col(record).isNull(),
            F.lit("not a JSON object"),
        ).alias(misshapen(part)),
        *(_json_value(F.col(record), one.path).alias(f"{one.name}_json") for one in wanted),
    )
    rows = rows.withColumns(
        {f"{one.name}_kind": F.schema_of_variant(f"{one.name}_json") for one in wanted}
    )
    rows = rows.withColumns({one.name: _json_cast(one) for one in wanted})
    return rows.withColumns({one.misfit: _json_misfit(one) for one in wanted})


def _json_value(record: Column, path: list[str]) -> Column:
    value = record[path[0]]
    inner = "".join(f"[{json.dumps(name)}]" for name in path[1:])
    return F.try_variant_get(value, f"${inner}", "variant") if inner else value


def _json_cast(one: Wanted) -> Column:
    """The value in its declared type, where its kind fits; null otherwise."""
    value, kind = F.col(f"{one.name}_json"), F.col(f"{one.name}_kind")
    cast = value.try_cast(one.type)
    if one.type in TIMES:
        from_text = _from_text(value.try_cast("string"), one.type)
        cast = F.when(kind == "STRING", from_text).otherwise(cast)
    return F.when(_fits(kind, one.type), cast)


def _fits(kind: Column, declared: str) -> Column:
    """Whether a JSON value of this kind of variant may become the declared type."""
    number = kind.startswith("BIGINT") | kind.startswith("DECIMAL") | kind.startswith("DOUBLE")
    match declared.split("(")[0].split("<")[0]:
        case "int" | "bigint":
            return (kind == "BIGINT") | (kind.startswith("DECIMAL") & kind.endswith(",0)"))
        case "float" | "double":
            return number
        case "decimal" | "timestamp":
            return (kind == "STRING") | number
        case "map":
            return kind.startswith("OBJECT")
        case "array":
            inner = F.regexp_extract(kind, "^ARRAY<(.*)>$", 1)
            element = declared.removeprefix("array<").removesuffix(">")
            return kind.startswith("ARRAY") & ((inner == "VOID") | _fits(inner, element))
        case "boolean":
            return kind == "BOOLEAN"
        case _:
            return kind == "STRING"


def _json_misfit(one: Wanted) -> Column:
    """The kind of a JSON value that is no value of the declared type, in JSON's own words."""
    kind, value = F.col(f"{one.name}_kind"), F.col(one.name)
    lost = value.isNull()
    if one.type in ("float", "double"):  # 1e999 is a number, but none that this type can hold
        lost = lost | (F.abs(value) == float("inf"))
    if one.type.startswith(("array", "map")):
        lost = lost | _loses_elements(one)
    name = (
        F.when(kind == "STRING", F.lit("string"))
        .when(kind == "BOOLEAN", F.lit("boolean"))
        .when(kind.startswith("OBJECT"), F.lit("object"))
        .when(kind.startswith("ARRAY"), F.lit("array"))
        .otherwise(F.lit("number"))
    )
    return F.when(kind.isNotNull() & (kind != "VOID") & lost, name)


def _loses_elements(one: Wanted) -> Column:
    """Whether an element became null that was not: a number too large, a text that is no date."""
    value, source = F.col(one.name), F.col(f"{one.name}_json")
    if one.type.startswith("map"):
        value, source = F.map_values(value), F.map_values(source.try_cast("map<string,variant>"))
    else:
        source = source.try_cast("array<variant>")
    nulls = F.size(F.filter(value, lambda element: element.isNull()))
    return nulls > F.size(
        F.filter(source, lambda element: element.isNull() | F.is_variant_null(element))
    )


# --- Avro -------------------------------------------------------------------------------------

# Avro has no end mark, so bytes that are cut short or too long can still decode to something. Eight
# bytes set behind the record must come out whole behind it.
AVRO_END = b"\xa7hwater\x9e"


def _from_avro(payload: Column, schema: str) -> Column:
    from pyspark.sql.avro.functions import from_avro

    end = {"name": "end", "type": {"type": "fixed", "name": "_HeadwaterEnd", "size": len(AVRO_END)}}
    fields = [{"name": "record", "type": json.loads(schema)}, end]
    frame = json.dumps({"type": "record", "name": "_HeadwaterFrame", "fields": fields})
    return from_avro(F.concat(payload, F.lit(AVRO_END)), frame, {"mode": "PERMISSIVE"})


def _avro(rows: DataFrame, part: str, wanted: list[Wanted], schema: str) -> DataFrame:
    payload = F.col(BYTES[part])
    parsed = f"_{part}_avro"
    rows = rows.withColumn(parsed, _from_avro(payload, schema))
    kinds = record_type(rows, parsed)
    found = [_avro_field(parsed, kinds, one) for one in wanted]
    return rows.select(
        "*",
        F.when(payload.isNotNull(), _not_avro(parsed)).alias(unreadable(part)),
        nothing().alias(misshapen(part)),
        nothing("array<string>").alias(names(part)),
        *(value.alias(one.name) for one, (value, _) in zip(wanted, found, strict=True)),
        *(misfit.alias(one.misfit) for one, (_, misfit) in zip(wanted, found, strict=True)),
    )


def _not_avro(parsed: str) -> Column:
    ended = F.coalesce(F.col(f"{parsed}.end") == F.lit(AVRO_END), F.lit(False))
    return F.when(~ended, F.lit("not a whole Avro record"))


def record_type(rows: DataFrame, parsed: str) -> T.DataType:
    frame = rows.schema[parsed].dataType
    assert isinstance(frame, T.StructType)  # noqa: S101
    return frame["record"].dataType


def avro_problem(rows: DataFrame, format_: Format | None, path: list[str], kind: str) -> str | None:
    """Why a schema file does not give this field in this type; None when it does."""
    if format_ is None or format_.schema_ in (None, REGISTRY):
        return None
    parsed = rows.select(_from_avro(F.lit(b""), format_.schema_ or "").alias("parsed"))
    found = _avro_kind(record_type(parsed, "parsed"), path)
    if found is None:
        return f"the Avro schema has no field {'.'.join(path)}"
    return None if widens(found, kind) else f"the Avro schema has {found}, the column is {kind}"


def _avro_kind(kinds: T.DataType, path: list[str]) -> str | None:
    for name in path:
        if not isinstance(kinds, T.StructType) or name not in kinds.names:
            return None
        kinds = kinds[name].dataType
    return kinds.simpleString()


def _avro_field(parsed: str, kinds: T.DataType, one: Wanted) -> tuple[Column, Column]:
    """A field as the writer's schema has it, and what it has instead."""
    found = _avro_kind(kinds, one.path)
    if found is None:
        return nothing(one.type), nothing()
    place = F.col(".".join([parsed, "record", *(f"`{name}`" for name in one.path)]))
    if not widens(found, one.type):
        return nothing(one.type), F.when(place.isNotNull(), F.lit(found))
    return place.cast(one.type), nothing()


WIDER = {
    "int": ("bigint", "float", "double"),
    "bigint": ("float", "double"),
    "float": ("double",),
    "timestamp_ntz": ("timestamp",),
}


def widens(found: str, declared: str) -> bool:
    """Whether a value of the one type may stand for the other, as Avro sees it."""
    if found == declared or declared in WIDER.get(found, ()):
        return True
    if found.startswith("decimal") and declared.startswith("decimal"):
        (digits, scale), (more_digits, more_scale) = _decimal(found), _decimal(declared)
        return more_scale >= scale and more_digits - more_scale >= digits - scale
    return False


def _decimal(kind: str) -> tuple[int, int]:
    digits, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
    return int(digits), int(scale)


# --- Avro with the id of its schema in front --------------------------------------------------


def schema_id(raw: Column) -> Column:
    """The id behind the magic byte; null where the bytes are not framed."""
    is_framed = (F.octet_length(raw) >= 5) & (F.substring(raw, 1, 1) == F.lit(b"\0"))
    return F.when(is_framed, F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("bigint"))


def _avro_by_id(rows: DataFrame, part: str, wanted: list[Wanted], schemas: Schemas) -> DataFrame:
    """Each record by the schema that it was written with."""
    raw, number = F.col(BYTES[part]), F.col(f"_{part}_schema_id")
    payload = F.substring(raw, 6, 2**31 - 1)
    rows = rows.withColumn(f"_{part}_schema_id", schema_id(raw))
    unframed = F.lit("not framed: expected a zero byte and a schema id of four bytes")
    reason = F.when(raw.isNull(), nothing()).when(number.isNull(), unframed)
    values = {one.name: F.when(F.lit(False), nothing(one.type)) for one in wanted}
    misfits = {one.misfit: F.when(F.lit(False), nothing()) for one in wanted}
    all_names = F.when(F.lit(False), nothing("array<string>"))
    for key, schema in schemas.items():
        if schema is None:
            continue
        parsed = f"_{part}_avro_{key}"
        try:
            rows = rows.withColumn(parsed, F.when(number == key, _from_avro(payload, schema)))
            kinds = record_type(rows, parsed)
        except Exception as error:  # Spark has limits of its own, on recursion for one
            problem = f"schema {key} cannot be read: {str(error).splitlines()[0][:200]}"
            reason = reason.when(number == key, F.lit(problem))
            continue
        reason = reason.when(number == key, _not_avro(parsed))
        if isinstance(kinds, T.StructType):
            all_names = all_names.when(number == key, F.array(*map(F.lit, kinds.names)))
        for one in wanted:
            value, misfit = _avro_field(parsed, kinds, one)
            values[one.name] = values[one.name].when(number == key, value)
            misfits[one.misfit] = misfits[one.misfit].when(number == key, misfit)
    unknown = F.concat(F.lit("the registry has no schema "), number)
    return rows.select(
        "*",
        reason.otherwise(unknown).alias(unreadable(part)),
        nothing().alias(misshapen(part)),
        all_names.alias(names(part)),
        *(column.alias(name) for name, column in (values | misfits).items()),
    )
