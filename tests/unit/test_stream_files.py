import re
from pathlib import Path

import pytest

from ingestion.errors import StreamFileError
from ingestion.stream_file import SECTIONS, known_keys, load_stream, load_streams
from tests.conftest import ROOT

GOOD = """\
description: Words.
topic: words
value:
  format: json
columns:
  word:
    type: string
    description: A word.
rules:
  word_is_short: length(word) < 10
"""


def refused(folder: Path, text: str, name: str = "words") -> str:
    file = folder / f"{name}.yml"
    file.write_text(text)
    with pytest.raises(StreamFileError) as caught:
        load_stream(file)
    assert caught.value.exit_code == 2
    return caught.value.message


def test_a_good_file_names_its_stream_and_table(tmp_path: Path) -> None:
    (tmp_path / "words.yml").write_text(GOOD)
    (stream,) = load_streams(folder=tmp_path)
    assert (stream.name, stream.table, stream.start) == ("words", "bronze.words", "earliest")


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("topic:", "topik:"), 2, ["topik", "did you mean topic?"]),
        (("    type:", "    tipe:"), 7, ["columns.word.tipe", "did you mean type?"]),
        (("format: json", "format: xml"), 4, ["value.format", "'xml'", "'json'"]),
        (("type: string", "type: text"), 7, ["columns.word.type", "'text'", "string"]),
        (("description: Words.\n", ""), 1, ["description is missing"]),
        (("  word:", "  _word:"), 6, ["columns._word"]),
        (("topic: words\n", "topic: words\ntopic: more\n"), 3, ["topic is given twice"]),
        (("topic: words", "topic: [words"), 3, ["not valid YAML"]),
        (("topic: words\n", ""), 1, ["either topic or topic_pattern"]),
        (("topic: words", "topic_pattern: '['"), 2, ["not a regular expression"]),
        (("topic: words", "topic: words\nstart: soon"), 3, ["'soon' is no place to start"]),
        (
            ("topic: words", "topic: words\nstart: {other: {0: 1}}"),
            3,
            ["does not read topic other"],
        ),
        (("topic: words", "topic: words\nforward: {topik: x}"), 3, ["did you mean topic?"]),
        (
            ("topic: words", "topic: words\nbatch: {min_record: 5}"),
            3,
            ["did you mean min_records?"],
        ),
        (("topic: words", "topic: words\ntable: {page_kb: 5}"), 3, ["did you mean page_mb?"]),
        (
            ("topic: words", "topic: words\ntable: {properties: {spark.x: '1'}}"),
            3,
            ["table.properties.spark.x"],
        ),
        (
            ("topic: words", "topic: words\npartition_by: [wort]"),
            3,
            ["partition_by.0: wort is not a column"],
        ),
        (
            ("topic: words", "topic: words\npartition_by: ['days(word)']"),
            3,
            ["days needs a date or a timestamp, and word is string"],
        ),
        (
            ("topic: words", "topic: words\npartition_by: ['sqrt(word)']"),
            3,
            ["'sqrt(word)' is not a partition field"],
        ),
        (
            ("topic: words", "topic: words\nmaintenance: {min_file: 5}"),
            3,
            ["maintenance.min_file", "did you mean min_files?"],
        ),
        (
            ("topic: words", "topic: words\nmaintenance: {time_travel_days: 0}"),
            3,
            ["maintenance.time_travel_days is 0", "greater than or equal to 1"],
        ),
        (
            ("topic: words", "topic: words\nmaintenance: {sort_by: [wort]}"),
            3,
            ["maintenance.sort_by: wort is not a column"],
        ),
        (("topic: words", "topic: words\nretention: {hours: 5}"), 3, ["retention.hours"]),
        (
            ("format: json", "format: json\n  schema: x.avsc"),
            5,
            ["only the formats avro and protobuf"],
        ),
        (("format: json", "format: avro"), 3, ["value.schema", "needs a schema"]),
        (("format: json", "format: avro\n  schema: x.avsc"), 5, ["x.avsc", "No such file"]),
        (("format: json", "format: protobuf"), 3, ["value.schema", "needs `schema: registry`"]),
        (("type: string", "type: string\n    epoch: seconds"), 6, ["epoch says what a number"]),
        (("type: string", "type: timestamp\n    epoch: hours"), 8, ["'hours'", "'seconds'"]),
        (
            ("type: string", "type: timestamp\n    expression: now()\n    epoch: seconds"),
            6,
            ["in a timestamp from the record"],
        ),
        (
            ("type: string", "type: int\n    between: [2020-01-01, 2021-01-01]"),
            6,
            ["between bounds a date or a timestamp, and this is int"],
        ),
        (
            ("type: string", "type: date\n    between: [2021-01-01, 2020-01-01]"),
            8,
            ["columns.word.between", "write two days such as [1900-01-01, 2200-01-01]"],
        ),
        (
            ("topic: words", "topic: words\nkey: {format: text}"),
            3,
            ["no column comes from the key"],
        ),
        (("type: string", "from: key\n    type: string"), 6, ["no `key:` with a format"]),
        (("type: string", "from: header.x\n    type: string"), 7, ["is no place in a record"]),
        (("type: string", "from: value\n    type: string"), 6, ["name a field"]),
        (("type: string", "type: binary"), 6, ["which JSON does not have"]),
        (("type: string", "type: decimal(40,2)"), 7, ["1 to 38 digits"]),
        (
            ("type: string", "type: string\n    from: value.x\n    expression: upper(x)"),
            6,
            ["`from` or `expression`, not both"],
        ),
    ],
)
def test_a_broken_file_names_file_line_key_and_nearest_key(
    tmp_path: Path, change: tuple[str, str], line: int, words: list[str]
) -> None:
    message = refused(tmp_path, GOOD.replace(*change, 1))
    assert f"words.yml:{line}:" in message
    for word in words:
        assert word in message


def test_every_key_may_be_used(tmp_path: Path) -> None:
    """The page that shows every key is itself a set of stream files, and forgets none."""
    text = (ROOT / "docs" / "streams.md").read_text()
    examples = re.findall(r"```yaml\n(description:.*?)```", text, re.DOTALL)
    assert len(examples) >= 2
    used: set[str] = set()
    for number, example in enumerate(examples):
        file = tmp_path / f"example_{number}.yml"
        file.write_text(example)
        load_stream(file)
        used |= {word for line in example.splitlines() for word in re.findall(r"(\w+):", line)}
    known = {
        key for section in ((), *((name,) for name in SECTIONS)) for key in known_keys(section)
    }
    assert known - used == set()


def test_the_macro_and_the_stream_file_know_the_same_keys_of_maintenance() -> None:
    care = ROOT / "packages" / "iceberg" / "macros" / "care"
    text = (care / "maintenance_policy.sql").read_text()
    defaults = re.findall(r"^        '(\w+)': .*,$", text.split("if is_source")[0], re.MULTILINE)
    assert defaults == known_keys(("maintenance",))


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    assert "mapping" in refused(tmp_path, "- a\n- b\n")
    assert "mapping" in refused(tmp_path, "")


def test_a_file_name_that_is_no_table_name_is_refused(tmp_path: Path) -> None:
    assert "My-Words" in refused(tmp_path, GOOD, name="My-Words")


def test_an_unknown_stream_is_refused_with_the_known_ones() -> None:
    with pytest.raises(StreamFileError) as caught:
        load_streams(["stoks"])
    assert "did you mean stocks?" in caught.value.message
