"""Text: the whole payload is one value."""

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.formats import Field, Parsed, Payloads
from ingestion.formats import values as convert


class TextDecoder:
    """Payloads of UTF-8 text, each of them a value of every field's type."""

    def __init__(self, fields: list[Field]) -> None:
        self._fields = fields

    def parse(self, payloads: Payloads) -> Parsed:
        text, unreadable = convert.texts(payloads)
        columns = [_column(text, field) for field in self._fields]
        misfits = [
            dict.fromkeys(convert.lost(text, column), f"text, not {field.type}")
            for field, column in zip(self._fields, columns, strict=True)
        ]
        return Parsed(columns, misfits, unreadable)


def _column(text: pa.Array, field: Field) -> pa.Array:
    column = convert.from_text(text, field.type)
    if field.epoch is None:
        return column
    return pc.coalesce(column, convert.times_from_epoch(text, field.epoch))
