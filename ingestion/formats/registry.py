"""Schemas from a registry, and records that begin with the id of their schema."""

import base64
import json
import time
from collections.abc import Sequence
from typing import Any, Protocol, cast

import requests
from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from ingestion.errors import HeadwaterError
from ingestion.formats import Field, Parsed, Payloads, Problems
from ingestion.formats.binary import merge
from ingestion.settings import Settings

TIMEOUT_SECONDS = 10
BACKOFF_SECONDS = 0.5
NOT_FOUND = 404
MISSING_SECONDS = 60  # how long it is remembered that the registry lacks something
MOST_MISSING = 100  # random bytes can name 4 billion ids, and each would be a request
SERIALIZED = "?format=serialized"
FRAME_BYTES = 5


class UnusableSchemaError(Exception):
    """Records of this schema cannot be read. The text goes into their rows."""


class Registry:
    """Asks for each schema once: what an id names never changes."""

    def __init__(self, settings: Settings) -> None:
        if settings.schema_registry_url is None:
            raise HeadwaterError(
                "a stream has `schema: registry`, but no registry is named",
                "set HEADWATER_SCHEMA_REGISTRY_URL",
            )
        self._url = settings.schema_registry_url.rstrip("/")
        self._known: dict[str, dict[str, Any]] = {}
        self._missing: dict[str, float] = {}  # address -> when to ask again, oldest first
        self._http = requests.Session()
        retry = Retry(3, backoff_factor=BACKOFF_SECONDS, status_forcelist=(500, 502, 503, 504))
        self._http.mount("http", HTTPAdapter(max_retries=retry))
        if settings.schema_registry_username:
            password = settings.schema_registry_password
            secret = password.get_secret_value() if password else ""
            self._http.auth = (settings.schema_registry_username, secret)

    def avro(self, number: int) -> list[Any]:
        """An Avro schema, behind those that it refers to."""
        found = self._all(number, "AVRO", "")
        return [json.loads(answer["schema"]) for answer in found.values()]

    def protobuf(self, number: int) -> list[descriptor_pb2.FileDescriptorProto]:
        """A Protobuf file, behind those that it imports."""
        files = []
        for name, answer in self._all(number, "PROTOBUF", SERIALIZED).items():
            try:
                text = base64.b64decode(answer["schema"], validate=True)
                file = descriptor_pb2.FileDescriptorProto.FromString(text)
            except (ValueError, DecodeError) as error:
                raise ValueError(
                    "the registry gives .proto text only; use a registry that knows "
                    "`format=serialized`, then run `headwater replay`"
                ) from error
            file.name = name
            files.append(file)
        return files

    def _all(self, number: int, kind: str, query: str) -> dict[str, dict[str, Any]]:
        """The answers for a schema and all that it refers to, by the names that they go by."""
        answer = self._get(f"/schemas/ids/{number}{query}")
        if answer is None:
            raise UnusableSchemaError(f"the registry has no schema {number}")
        found_kind = answer.get("schemaType", "AVRO")
        if found_kind != kind:
            raise ValueError(f"its type is {found_kind}, not {kind}")
        found: dict[str, dict[str, Any]] = {}
        self._add_references(answer, query, found)
        return found | {f"schema-{number}": answer}

    def _add_references(
        self, answer: dict[str, Any], query: str, found: dict[str, dict[str, Any]]
    ) -> None:
        for reference in answer.get("references") or ():
            name, subject, version = (reference[key] for key in ("name", "subject", "version"))
            below = self._get(f"/subjects/{subject}/versions/{version}{query}")
            if below is None:
                raise LookupError(f"the registry has no version {version} of {subject}")
            self._add_references(below, query, found)
            found[name] = below

    def _get(self, path: str) -> dict[str, Any] | None:
        if path in self._known:
            return self._known[path]
        now = time.monotonic()
        while self._missing and next(iter(self._missing.values())) <= now:
            del self._missing[next(iter(self._missing))]
        if path in self._missing:
            return None
        if len(self._missing) >= MOST_MISSING:
            raise UnusableSchemaError(
                f"not looked up: the registry lacked {MOST_MISSING:,} other schemas within "
                f"{MISSING_SECONDS} s; run `headwater replay` if it has this one"
            )
        answer = self._ask(path)
        if answer is None:
            self._missing[path] = now + MISSING_SECONDS
        else:
            self._known[path] = answer
        return answer

    def _ask(self, path: str) -> dict[str, Any] | None:
        try:
            answer = self._http.get(self._url + path, timeout=TIMEOUT_SECONDS)
            if answer.status_code == NOT_FOUND:
                return None
            if answer.ok:
                return dict(answer.json())
            reason = f"{answer.status_code} {answer.reason}"
        except (requests.RequestException, ValueError) as error:
            raise self._away(path, type(error).__name__) from error
        raise self._away(path, reason)

    def _away(self, path: str, reason: str) -> HeadwaterError:
        return HeadwaterError(
            f"the schema registry at {self._url} does not give {path}: {reason}",
            "check HEADWATER_SCHEMA_REGISTRY_URL, its user and password, and that it runs",
        )


# --- records by id ----------------------------------------------------------------------------


class Reader(Protocol):
    def parse(self, payloads: list[bytes]) -> Parsed: ...


class RegistryDecoder:
    """Groups the records of a block by the schema that each names, and reads group by group."""

    def __init__(self, registry: Registry, fields: list[Field]) -> None:
        self.registry = registry
        self.fields = fields
        self._readers: dict[bytes, Reader] = {}

    def parse(self, payloads: Payloads) -> Parsed:
        groups: dict[bytes, list[int]] = {}
        for row, payload in enumerate(payloads.raw):
            if payload is not None:
                groups.setdefault(self.head(payload), []).append(row)
        unreadable: Problems = {}
        parts: list[tuple[Sequence[int], Parsed]] = []
        for head, rows in sorted(groups.items()):  # low ids, which may exist, are asked for first
            try:
                reader = self.reader(head)
            except UnusableSchemaError as error:
                unreadable |= dict.fromkeys(rows, str(error))
                continue
            start = len(head)
            bodies = [cast(bytes, payloads.raw[row])[start:] for row in rows]
            parts.append((rows, reader.parse(bodies)))
        merged = merge(parts, self.fields, len(payloads))
        merged.unreadable |= unreadable
        return merged

    def reader(self, head: bytes) -> Reader:
        """What reads the records behind such a head."""
        if len(head) < FRAME_BYTES or head[0] != 0:
            raise UnusableSchemaError(self.unframed)
        if head not in self._readers:
            number = int.from_bytes(head[1:FRAME_BYTES], "big")
            try:
                self._readers[head] = self.make_reader(number, head[FRAME_BYTES:])
            except (HeadwaterError, UnusableSchemaError):
                raise
            except Exception as error:  # no library says what it may raise for an odd schema
                reason = str(error).partition("\n")[0][:200] or type(error).__name__
                raise UnusableSchemaError(f"schema {number} cannot be read: {reason}") from error
        return self._readers[head]

    unframed = "not framed: expected a zero byte and a schema id of four bytes"

    def head(self, payload: bytes) -> bytes:
        """The bytes in front of a record that say how to read it."""
        return payload[:FRAME_BYTES]

    def make_reader(self, number: int, rest: bytes) -> Reader:
        """The reader for a schema and for what the head has behind its id."""
        raise NotImplementedError
