"""Read a stream from its YAML file. Every problem names the file, the line and the key."""

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from ingestion.errors import StreamFileError
from ingestion.settings import settings
from ingestion.stream import (
    Batch,
    Column,
    Format,
    Forward,
    Maintenance,
    Retention,
    Stream,
    TableOptions,
)


def load_streams(names: list[str] | None = None, folder: Path | None = None) -> list[Stream]:
    """The streams of these names, or all of them."""
    folder = folder or settings().streams
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
    problems += [
        _describe({"loc": (key,), "type": "extra_forbidden"}, file, lines)
        for key in OURS & set(content)
    ]
    own = {key: value for key, value in content.items() if key not in OURS}
    try:
        stream = Stream.model_validate(
            {**own, "name": file.stem, "file": file}, context={"folder": file.parent}
        )
        problems += [
            f"{file}:{_line(path, lines)}: {'.'.join(path) + ': ' if path else ''}{problem}"
            for path, problem in stream.problems()
        ]
    except ValidationError as error:
        problems += [_describe(detail, file, lines) for detail in error.errors()]
    if problems:
        raise StreamFileError("\n".join(problems), "correct the file; docs/streams.md has each key")
    return stream


OURS = {"name", "file", "topics", "table_options"}  # fields of a stream that are no keys of a file
Lines = dict[tuple[str, ...], int]


def _key_lines(root: yaml.MappingNode, file: Path) -> tuple[Lines, list[str]]:
    """The line of every key, and a problem for every key that is given twice."""
    lines: Lines = {(): 1}
    problems: list[str] = []

    def walk(node: yaml.Node, path: tuple[str, ...]) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            where = (*path, str(key.value))
            line = key.start_mark.line + 1
            if where in lines:
                problems.append(f"{file}:{line}: {'.'.join(where)} is given twice")
                continue
            lines[where] = line
            walk(value, where)

    walk(root, ())
    return lines, problems


def _line(path: tuple[str, ...], lines: Lines) -> int:
    return next(lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines)


def _describe(detail: Any, file: Path, lines: Lines) -> str:
    path = tuple(str(part).rstrip("_") for part in detail["loc"] if part != "[key]")
    shown = ".".join(path)
    where = f"{file}:{_line(path, lines)}: "
    if path == ("name",):
        return f"{where}the file's name {file.stem!r} names the stream: use a-z, 0-9 and _"
    match detail["type"]:
        case "missing":
            return f"{where}{shown} is missing"
        case "extra_forbidden":
            return f"{where}{shown} is not a key of a stream file" + _nearest(
                path[-1], known_keys(path[:-1])
            )
        case "literal_error":
            return f"{where}{shown} is {detail['input']!r}, but must be {detail['ctx']['expected']}"
        case "value_error":
            return f"{where}{shown}: {detail['ctx']['error']}"
        case _:
            return f"{where}{shown} is {detail['input']!r}: {detail['msg']}"


SECTIONS: dict[str, type[BaseModel]] = {
    "key": Format,
    "value": Format,
    "columns": Column,
    "forward": Forward,
    "batch": Batch,
    "table": TableOptions,
    "maintenance": Maintenance,
    "retention": Retention,
}


def known_keys(path: tuple[str, ...] = ()) -> list[str]:
    """The keys that a stream file may have at this place."""
    model = SECTIONS.get(path[0], Stream) if path else Stream
    names = [field.alias or name for name, field in model.model_fields.items()]
    return [name for name in names if name not in ("name", "file")]


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""
