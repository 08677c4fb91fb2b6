from pathlib import Path

import pytest

from headwater.errors import StreamFileError
from ingestion.stream import load_stream, load_streams

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
        (("topic: words\n", "topic: words\ntopic: more\n"), 3, ["topic stands twice"]),
        (("topic: words", "topic: [words"), 3, ["not valid YAML"]),
    ],
)
def test_a_broken_file_names_file_line_key_and_nearest_key(
    tmp_path: Path, change: tuple[str, str], line: int, words: list[str]
) -> None:
    message = refused(tmp_path, GOOD.replace(*change, 1))
    assert f"words.yml:{line}:" in message
    for word in words:
        assert word in message


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    assert "mapping" in refused(tmp_path, "- a\n- b\n")
    assert "mapping" in refused(tmp_path, "")


def test_a_file_name_that_is_no_table_name_is_refused(tmp_path: Path) -> None:
    assert "My-Words" in refused(tmp_path, GOOD, name="My-Words")


def test_an_unknown_stream_is_refused_with_the_known_ones() -> None:
    with pytest.raises(StreamFileError) as caught:
        load_streams(["stoks"])
    assert "did you mean stocks?" in caught.value.message
