"""Keys and values for a person's eyes, whatever their format and however broken."""

import io
import json
from typing import Any

from ingestion.registry import Registry
from ingestion.settings import Settings
from ingestion.stream import REGISTRY, Format, Stream

FRAME_BYTES = 5


class Readable:
    def __init__(self, settings: Settings, stream: Stream) -> None:
        self._formats: dict[str, Format | None] = {"key": stream.key, "value": stream.value}
        self._settings = settings
        self._registry: Registry | None = None

    def text(self, part: str, raw: bytes | None, most: int | None = None) -> str:
        """The bytes as text: Avro as JSON, other bytes as they are, escaped where they must be."""
        if raw is None:
            return "null"
        format_ = self._formats[part]
        shown = self._avro(format_, raw) if format_ and format_.format == "avro" else None
        shown = plain(raw) if shown is None else shown
        return shown if most is None or len(shown) <= most else f"{shown[:most]}…"

    def _avro(self, format_: Format, raw: bytes) -> str | None:
        import fastavro

        try:
            body = raw
            schema = format_.schema_
            if schema == REGISTRY:
                number = int.from_bytes(raw[1:FRAME_BYTES], "big")
                body = raw[FRAME_BYTES:]
                schema = self._schemas().schemas([number])[number]
            record = fastavro.schemaless_reader(io.BytesIO(body), json.loads(schema or ""), None)
        except Exception:
            return None  # broken bytes are why someone looks: they are shown as they are
        return json.dumps(record, default=str, ensure_ascii=False)

    def _schemas(self) -> Registry:
        if self._registry is None:
            self._registry = Registry(self._settings)
        return self._registry


def plain(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return repr(raw)
    return text if text.isprintable() else repr(text)


def headers(found: Any) -> str:
    return ", ".join(f"{name}={plain(value or b'')}" for name, value in found or ())
