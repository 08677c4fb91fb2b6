"""A stream is one YAML file: topic, format, columns, rules. This module reads and checks it."""

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from headwater.errors import StreamFileError

STREAMS = Path(__file__).with_name("streams")

TYPE = re.compile(
    r"string|boolean|int|bigint|float|double|date|timestamp|decimal\(\d{1,2}, ?\d{1,2}\)"
)


def _known_type(value: str) -> str:
    if not TYPE.fullmatch(value):
        raise ValueError(
            f"{value!r} is not a column type; known are string, boolean, int, bigint, float, "
            "double, date, timestamp and decimal(precision, scale)"
        )
    return value


Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
ColumnType = Annotated[str, AfterValidator(_known_type)]


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Declared):
    """One declared column. Its description becomes the column's comment."""

    type: ColumnType
    description: str
    optional: bool = False


class Value(_Declared):
    """How the record's value is written."""

    format: Literal["json"]


class Batch(_Declared):
    """How much goes into one commit."""

    max_records: int = Field(1_000_000, ge=1)


class Stream(_Declared):
    """One declared stream. Its name is the name of its file and of its bronze table."""

    name: Name
    description: str
    topic: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
    start: Literal["earliest", "latest"] = "earliest"
    value: Value
    columns: Annotated[dict[Name, Column], Field(min_length=1)]
    rules: dict[Name, str] = {}
    batch: Batch = Batch()

    @property
    def table(self) -> str:
        return f"bronze.{self.name}"


def load_streams(names: list[str] | None = None, folder: Path = STREAMS) -> list[Stream]:
    """The streams of these names, or all of them."""
    files = {file.stem: file for file in sorted(folder.glob("*.yml"))}
    for name in names or ():
        if name not in files:
            raise StreamFileError(
                f"there is no stream {name!r}" + _nearest(name, files),
                f"streams are the files in {folder}: {', '.join(files) or 'none yet'}",
            )
    return [load_stream(files[name]) for name in (names or files)]


def load_stream(file: Path) -> Stream:
    """Read one stream file; every problem names the file, the line and the key."""
    try:
        text = file.read_text()
        root = yaml.compose(text)
        content = yaml.safe_load(text)
    except OSError as error:
        raise StreamFileError(f"{file}: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise StreamFileError(f"{file} is not UTF-8 text", "save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{file}:{mark.line + 1}" if mark else str(file)
        raise StreamFileError(
            f"{line}: not valid YAML: {getattr(error, 'problem', error)}", "correct the line"
        ) from error
    if not isinstance(root, yaml.MappingNode):
        raise StreamFileError(
            f"{file}:1: a stream file is a mapping of keys", "see docs/streams.md"
        )
    lines, problems = _key_lines(root, file)
    try:
        stream = Stream(**{**content, "name": file.stem})
    except ValidationError as error:
        problems += [_describe(detail, file, lines) for detail in error.errors()]
    if problems:
        raise StreamFileError("\n".join(problems), "correct the file; docs/streams.md has each key")
    return stream


Lines = dict[tuple[str, ...], int]


def _key_lines(root: yaml.MappingNode, file: Path) -> tuple[Lines, list[str]]:
    """The line of every key, and a problem for every key that stands twice."""
    lines: Lines = {(): 1}
    problems: list[str] = []

    def walk(node: yaml.Node, path: tuple[str, ...]) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            where = (*path, str(key.value))
            line = key.start_mark.line + 1
            if where in lines:
                problems.append(f"{file}:{line}: {'.'.join(where)} stands twice")
            lines[where] = line
            walk(value, where)

    walk(root, ())
    return lines, problems


def _describe(detail: Any, file: Path, lines: Lines) -> str:
    path = tuple(str(part) for part in detail["loc"] if part != "[key]")
    shown = ".".join(path)
    line = next(lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines)
    where = f"{file}:{line}: "
    if path == ("name",):
        return f"{where}the file's name {file.stem!r} names the stream: use a-z, 0-9 and _"
    match detail["type"]:
        case "missing":
            return f"{where}{shown} is missing"
        case "extra_forbidden":
            return f"{where}{shown} is not a key of a stream file" + _nearest(
                path[-1], _known_keys(path[:-1])
            )
        case "literal_error":
            return f"{where}{shown} is {detail['input']!r}, but must be {detail['ctx']['expected']}"
        case "value_error":
            return f"{where}{shown}: {detail['ctx']['error']}"
        case _:
            return f"{where}{shown} is {detail['input']!r}: {detail['msg']}"


def _known_keys(path: tuple[str, ...]) -> list[str]:
    sections: dict[str, type[BaseModel]] = {"columns": Column, "value": Value, "batch": Batch}
    model = sections.get(path[0], Stream) if path else Stream
    return [name for name in model.model_fields if name != "name"]


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""
