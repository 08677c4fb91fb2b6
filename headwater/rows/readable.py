"""Keys and values for a person's eyes, whatever their format and however broken."""

import io
import json
from functools import cached_property
from typing import Any

import fastavro
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

from ingestion.formats.avro import Reader
from ingestion.formats.protobuf import RegistryProtobufDecoder
from ingestion.formats.registry import FRAME_BYTES, Registry
from ingestion.settings import Settings
from ingestion.stream import REGISTRY, Format, Stream


class Readable:
    def __init__(self, settings: Settings, stream: Stream) -> None:
        self._formats: dict[str, Format | None] = {"key": stream.key, "value": stream.value}
        self._settings = settings

    def text(self, part: str, raw: bytes | None, most: int | None = None) -> str:
        """The bytes as text: Avro and Protobuf as JSON, others escaped where they must be."""
        if raw is None:
            return "null"
        format_ = self._formats[part]
        try:
            shown = self._record(format_, raw)
        except Exception:  # broken bytes are why someone looks: they are shown as they are
            shown = plain(raw)
        return shown if most is None or len(shown) <= most else f"{shown[:most]}…"

    def _record(self, format_: Format | None, raw: bytes) -> str:
        if format_ is None or format_.format in ("json", "text"):
            return plain(raw)
        if format_.format == "protobuf":
            decoder = RegistryProtobufDecoder(self._registry, [])
            record = MessageToDict(decoder.message(raw), preserving_proto_field_name=True)
        else:
            record = self._avro(format_.schema_ or "", raw)
        return json.dumps(record, default=str, ensure_ascii=False)

    def _avro(self, schema: str, raw: bytes) -> Any:
        schemas, body = [json.loads(schema)] if schema != REGISTRY else [], raw
        if schema == REGISTRY:
            schemas = self._registry.avro(int.from_bytes(raw[1:FRAME_BYTES], "big"))
            body = raw[FRAME_BYTES:]
        Reader(schemas, [])  # refuses schemas that fastavro would follow until it crashes
        named: dict[str, Any] = {}
        *_, parsed = [fastavro.parse_schema(one, named) for one in schemas]
        return fastavro.schemaless_reader(io.BytesIO(body), parsed, None)

    @cached_property
    def _registry(self) -> Registry:
        return Registry(self._settings)


def plain(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return repr(raw)
    return text if text.isprintable() else repr(text)


def headers(found: Any) -> str:
    return ", ".join(f"{name}={plain(value or b'')}" for name, value in found or ())
