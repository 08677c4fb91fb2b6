"""A declared stream: its topics, formats, columns and rules. `stream_file` reads it from YAML."""

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ingestion.offsets import Offsets

REGISTRY = "registry"
SCALAR = r"string|boolean|int|bigint|float|double|date|timestamp|binary|decimal\(\d{1,2},\d{1,2}\)"
MOST_DIGITS = 38
TYPE = re.compile(rf"{SCALAR}|map<string,({SCALAR})>|array<({SCALAR})>")
SOURCE = re.compile(r"(key|value)(\.[^.`]+)*")
PARTITION = re.compile(
    r"(?P<identity>\w+)|(years|months|days|hours)\(\w+\)|(bucket|truncate)\(\d+,\w+\)"
)


def _known_type(text: str) -> str:
    kind = text.replace(" ", "")
    if not TYPE.fullmatch(kind):
        raise ValueError(
            f"{text!r} is not a column type; known are string, boolean, int, bigint, float, "
            "double, date, timestamp, binary, decimal(precision,scale), map<string,TYPE> and "
            "array<TYPE>"
        )
    for digits, scale in re.findall(r"decimal\((\d+),(\d+)\)", kind):
        if not int(scale) <= int(digits) <= MOST_DIGITS or digits == "0":
            raise ValueError(f"{text!r}: a decimal has 1 to 38 digits, and a scale within them")
    return kind


def _known_partition(text: str) -> str:
    field = text.replace(" ", "")
    if not PARTITION.fullmatch(field):
        raise ValueError(
            f"{text!r} is not a partition field; write a column, or years(c), months(c), days(c), "
            "hours(c), bucket(16, c) or truncate(4, c)"
        )
    return field


def _known_source(text: str) -> str:
    if not SOURCE.fullmatch(text):
        raise ValueError(f"{text!r} is no place in a record; write key, value or value.<field>")
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
    return text


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Start = Literal["earliest", "latest"] | datetime | Offsets


def _start(value: Any) -> Start:
    match value:
        case "earliest" | "latest":
            return value
        case datetime():
            return value if value.tzinfo else value.replace(tzinfo=UTC)
        case date():
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        case dict() if value and all(_is_partitions(partitions) for partitions in value.values()):
            return Offsets(
                {
                    (str(topic), number): offset
                    for topic, partitions in value.items()
                    for number, offset in partitions.items()
                }
            )
        case _:
            raise ValueError(
                f"{value!r} is no place to start; write earliest, latest, a time such as "
                "2026-01-31T00:00:00Z, or offsets such as {my-topic: {0: 1500, 1: 1700}}"
            )


def _is_partitions(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(partition, int) and isinstance(offset, int) and min(partition, offset) >= 0
        for partition, offset in value.items()
    )


def _days(value: Any) -> Any:
    match value:
        case [date() as first, date() as last] if first < last:
            return first, last
        case None:
            return None
        case _:
            raise ValueError(
                f"{value!r} is no range; write two days such as [1900-01-01, 2200-01-01]"
            )


Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Topic = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Column(_Declared):
    """One declared column: found in the record, or derived from other columns."""

    type: Annotated[str, AfterValidator(_known_type)]
    description: Text
    sources: Annotated[
        list[Annotated[str, AfterValidator(_known_source)]] | None,
        BeforeValidator(_listed),
        Field(alias="from", min_length=1),
    ] = None
    expression: Text | None = None
    optional: bool = False
    epoch: Literal["seconds", "milliseconds", "microseconds"] | None = None
    between: Annotated[tuple[date, date] | None, BeforeValidator(_days)] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.sources and self.expression:
            raise ValueError("a column has `from` or `expression`, not both")
        if self.epoch and (self.type != "timestamp" or self.expression):
            raise ValueError("epoch says what a number means in a timestamp from the record")
        if self.between and self.type not in ("date", "timestamp"):
            raise ValueError(f"between bounds a date or a timestamp, and this is {self.type}")
        return self


class Format(_Declared):
    """How the key or the value of a record is written."""

    format: Literal["json", "avro", "protobuf", "text"]
    schema_: Annotated[str | None, Field(alias="schema", validate_default=True)] = None

    @field_validator("schema_")
    @classmethod
    def _schema(cls, value: str | None, info: ValidationInfo) -> str | None:
        """The Avro schema itself, read from its file, or the word `registry`."""
        if info.data.get("format") == "protobuf":
            if value != REGISTRY:
                raise ValueError("the format protobuf needs `schema: registry`")
            return value
        if info.data.get("format") != "avro":
            if value is not None:
                raise ValueError("only the formats avro and protobuf have a schema")
            return None
        if value is None:
            raise ValueError("the format avro needs a schema: an .avsc file, or registry")
        return value if value == REGISTRY or info.context is None else _avro_schema(value, info)


def _avro_schema(value: str, info: ValidationInfo) -> str:
    import fastavro

    assert info.context is not None  # noqa: S101
    file = Path(info.context["folder"]) / value
    try:
        text = file.read_text()
        fastavro.parse_schema(json.loads(text))
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}; the path starts at this file") from error
    except (ValueError, fastavro.schema.SchemaParseException) as error:
        raise ValueError(f"{file} is not an Avro schema: {error}") from error
    return text


class Batch(_Declared):
    """When records are committed: at `min_records` or after `max_seconds`, whichever is first."""

    min_records: int = Field(1_000, ge=1)
    max_seconds: int = Field(10, ge=1)
    max_records: int = Field(1_000_000, ge=1)


class Forward(_Declared):
    """Where valid records are sent on to."""

    topic: Topic


class TableOptions(_Declared):
    """How the bronze table is written."""

    target_file_mb: int = Field(256, ge=1)
    row_group_mb: int = Field(128, ge=1)
    page_mb: int = Field(1, ge=1)
    compression: Literal["zstd", "snappy", "gzip", "lz4", "uncompressed"] = "zstd"
    commit_retries: int = Field(3, ge=0)
    commit_retry_wait_ms: int = Field(100, ge=1)
    every_commit_hours: int = Field(1, ge=1)  # older: one an hour, for time_travel_days
    properties: dict[
        Annotated[str, StringConstraints(pattern=r"^(write|read|commit|history|gc)\.[\w.-]+$")], str
    ] = {}

    @field_validator("properties")
    @classmethod
    def _not_ours(cls, value: dict[str, str]) -> dict[str, str]:
        if ours := [key for key in value if ".column._" in key]:
            raise ValueError(f"{', '.join(ours)} is Headwater's own: it finds its position by it")
        if value.get("write.format.default", "parquet") != "parquet":
            raise ValueError("write.format.default must be parquet: ingestion writes nothing else")
        return value


class Maintenance(_Declared):
    """What table care does otherwise than by default. The defaults and their reasons are in
    packages/iceberg/macros/care/maintenance_policy.sql, which knows the same keys.
    """

    compact: bool | None = None
    target_file_mb: int | None = Field(None, ge=1)
    min_files: int | None = Field(None, ge=2)
    sort_by: list[Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*$")]] | None = None
    closed_after: int | None = Field(None, ge=0)
    time_travel_days: int | None = Field(None, ge=1)
    keep_snapshots: int | None = Field(None, ge=1)
    orphan_days: int | None = Field(None, ge=1)


class Retention(_Declared):
    """How long rows stay in the table, counted from their arrival."""

    days: int = Field(ge=1)


class Stream(_Declared):
    """One declared stream. Its name is the name of its file and of its bronze table."""

    name: Name
    file: Path
    description: Text
    topics: Annotated[
        list[Topic], BeforeValidator(_listed), Field(alias="topic", validate_default=True)
    ] = []
    topic_pattern: Annotated[str, AfterValidator(_pattern)] | None = None
    start: Annotated[Any, AfterValidator(_start)] = "earliest"
    key: Format | None = None
    value: Format
    columns: Annotated[dict[Name, Column], Field(min_length=1)]
    rules: dict[Name, Text] = {}
    headers: bool = False
    forward: Forward | None = None
    partition_by: list[Annotated[str, AfterValidator(_known_partition)]] = []
    batch: Batch = Batch()
    table_options: Annotated[TableOptions, Field(alias="table")] = TableOptions()
    maintenance: Maintenance = Maintenance()
    retention: Retention | None = None

    @property
    def table(self) -> str:
        return f"bronze.{self.name}"

    @property
    def topic_text(self) -> str:
        """The topics as a person would say them."""
        return ", ".join(self.topics) or f"topics like {self.topic_pattern}"

    @property
    def decoded(self) -> dict[str, Column]:
        """The columns that are found in the record, in the order of the file."""
        return {name: column for name, column in self.columns.items() if not column.expression}

    @property
    def derived(self) -> dict[str, Column]:
        return {name: column for name, column in self.columns.items() if column.expression}

    def reads(self, topic: str) -> bool:
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return topic in self.topics

    def sources(self, name: str) -> list[str]:
        """Where a column is looked for, first to last."""
        whole = self.value.format == "text"
        return self.columns[name].sources or ["value" if whole else f"value.{name}"]

    def problems(self) -> list[tuple[tuple[str, ...], str]]:
        """What no key can say about itself: (key, problem)."""
        found: list[tuple[tuple[str, ...], str]] = []
        if bool(self.topics) == bool(self.topic_pattern):
            found.append(((), "a stream has either topic or topic_pattern"))
        if isinstance(self.start, Offsets):
            found += [
                (("start", topic), f"the stream does not read topic {topic}")
                for topic in self.start.topics
                if not self.reads(topic)
            ]
        if self.forward and self.reads(self.forward.topic):
            found.append((("forward", "topic"), "the stream would read what it forwards"))
        places = {source for name in self.decoded for source in self.sources(name)}
        if not self.decoded:
            found.append((("columns",), "at least one column must come from the record"))
        for name in self.decoded:
            for source in self.sources(name):
                found += [(("columns", name), problem) for problem in self._misplaced(name, source)]
        if self.key and not any(place.split(".")[0] == "key" for place in places):
            found.append((("key",), "no column comes from the key (from: key.<field>)"))
        for index, field in enumerate(self.partition_by):
            if problem := self._unpartitionable(field):
                found.append((("partition_by", str(index)), problem))
        hours, days = self.table_options.every_commit_hours, self.maintenance.time_travel_days or 7
        if hours > days * 24:
            problem = f"{hours} hours are more than maintenance.time_travel_days, which is {days}"
            found.append((("table", "every_commit_hours"), problem))
        for column in self.maintenance.sort_by or ():
            if column not in self.columns and not column.startswith("_"):
                found.append((("maintenance", "sort_by"), f"{column} is not a column"))
        return found

    def _unpartitionable(self, field: str) -> str | None:
        function, column = re.findall(r"\w+", field)[0], re.findall(r"\w+", field)[-1]
        if column not in self.columns:
            return f"{column} is not a column"
        kind = self.columns[column].type
        is_time = kind == "timestamp" or (kind == "date" and function != "hours")
        if function in ("years", "months", "days", "hours") and not is_time:
            return f"{function} needs a date or a timestamp, and {column} is {kind}"
        if function == "truncate" and kind not in ("string", "int", "bigint", "binary"):
            return f"truncate needs a string, a whole number or binary, and {column} is {kind}"
        if "<" in kind or (function == "bucket" and kind in ("float", "double", "boolean")):
            return f"a table cannot be partitioned by {field}: {column} is {kind}"
        return None

    def _misplaced(self, name: str, source: str) -> list[str]:
        part, *path = source.split(".")
        format_ = self.key if part == "key" else self.value
        if format_ is None:
            return [f"{name} comes from the key, but the stream has no `key:` with a format"]
        if format_.format == "text" and path:
            return [f"{source}: text has no fields; write from: {part}"]
        if format_.format == "text" and "<" in self.columns[name].type:
            return [f"{name} is {self.columns[name].type}, which text does not have"]
        if format_.format == "json" and not path:
            return [f"{source}: name a field of the JSON object, such as {part}.{name}"]
        if format_.format == "json" and "binary" in self.columns[name].type:
            return [f"{name} is binary, which JSON does not have"]
        return []
