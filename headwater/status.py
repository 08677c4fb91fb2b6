"""What runs and where the data stands, read through pyiceberg and the Kafka client: no JVM."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.local.services import Service, running_pid, services, thrift_away
from headwater.rows.erase import ERASED_AT
from ingestion.catalog import open_catalog
from ingestion.errors import ERASED
from ingestion.kafka import broker_problem, lag
from ingestion.ledger import data_files, read_position
from ingestion.offsets import Offsets
from ingestion.origin import Gap, gaps
from ingestion.settings import Settings
from ingestion.stream import Stream
from ingestion.stream_file import load_streams

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

LAYERS = ("bronze", "silver", "gold")


@dataclass(frozen=True)
class ServiceStatus:
    name: str
    title: str
    address: str
    pid: int | None
    external: bool
    problem: str | None


@dataclass(frozen=True)
class StreamStatus:
    name: str
    topic: str
    rows: int
    errors: int
    lag: int | None  # None while no broker answers
    gaps: list[Gap]  # offsets that Kafka deleted unread, as someone accepted
    last_commit: datetime | None


@dataclass(frozen=True)
class TableStatus:
    name: str
    rows: int
    files: int
    bytes: int
    snapshots: int
    last_commit: datetime | None


@dataclass(frozen=True)
class Status:
    services: list[ServiceStatus]
    streams: list[StreamStatus]
    tables: list[TableStatus]

    def as_json(self, settings: Settings) -> dict[str, Any]:
        kafka, thrift = self.services
        host, port = settings.thrift_address
        return {
            "services": {
                "kafka": {
                    "running": kafka.problem is None,
                    "bootstrap_servers": settings.bootstrap_servers,
                    "external": kafka.external,
                    "pid": kafka.pid,
                },
                "thrift": {
                    "running": thrift.problem is None,
                    "host": host,
                    "port": port,
                    "external": thrift.external,
                    "pid": thrift.pid,
                },
            },
            "streams": {one.name: _fields(one) for one in self.streams},
            "tables": {one.name: _fields(one) for one in self.tables},
        }


def read_status(settings: Settings) -> Status:
    kafka, thrift = services(settings)
    broker_away = broker_problem(settings)
    host, port = settings.thrift_address
    catalog = open_catalog(settings) if _has_catalog(settings) else None
    tables = list_tables(catalog) if catalog else {}
    return Status(
        services=[
            _service(settings, kafka, settings.bootstrap_servers, broker_away),
            _service(settings, thrift, f"{host}:{port}", thrift_away(settings)),
        ],
        streams=[
            _stream(settings, stream, tables.get(stream.table), broker_away is None)
            for stream in load_streams()
        ],
        tables=[table_status(name, table) for name, table in tables.items()],
    )


def list_tables(catalog: "Catalog") -> dict[str, "Table"]:
    """Every table of the three layers, in the order of the medallion."""
    return {
        ".".join(identifier): catalog.load_table(identifier)
        for layer in LAYERS
        if catalog.namespace_exists(layer)
        for identifier in sorted(catalog.list_tables(layer))
    }


def table_status(name: str, table: "Table") -> TableStatus:
    snapshot = table.current_snapshot()

    def total(key: str) -> int:
        return int(snapshot.summary.get(key) or 0) if snapshot and snapshot.summary else 0

    return TableStatus(
        name=name,
        rows=total("total-records"),
        files=total("total-data-files"),
        bytes=total("total-files-size"),
        snapshots=len(table.snapshots()),
        last_commit=_time(snapshot.timestamp_ms) if snapshot else None,
    )


def error_rows(table: "Table") -> int:
    """Failed rows that no replay has resolved, by the null counts in the manifests.

    Rows that were emptied on purpose carry a type, too, and are no errors.
    """
    kind, resolved = (
        table.schema().find_field(name).field_id for name in ("_error_type", "_resolved_at")
    )

    def filled(file: Any, column: int) -> int:
        return int(file.record_count - file.null_value_counts.get(column, file.record_count))

    found = sum(filled(file, kind) - filled(file, resolved) for file in data_files(table))
    if ERASED_AT in table.properties:  # else there is nothing to read files for
        found -= table.scan(f"_error_type = '{ERASED}'", selected_fields=("_error_type",)).count()
    return found


def _stream(
    settings: Settings, stream: Stream, table: "Table | None", broker: bool
) -> StreamStatus:
    position = read_position(table) if table else None
    snapshot = table.current_snapshot() if table else None
    return StreamStatus(
        name=stream.name,
        topic=stream.topic_text,
        rows=table_status(stream.table, table).rows if table else 0,
        errors=error_rows(table) if table else 0,
        lag=lag(settings, stream.reads, position.offsets if position else Offsets())
        if broker
        else None,
        gaps=gaps(table) if table else [],
        last_commit=position.newest_stamp if position and snapshot else None,
    )


def _service(
    settings: Settings, service: Service, address: str, problem: str | None
) -> ServiceStatus:
    return ServiceStatus(
        name=service.name,
        title=service.title,
        address=address,
        pid=running_pid(settings, service),
        external=service.external is not None,
        problem=problem,
    )


def _has_catalog(settings: Settings) -> bool:
    return settings.catalog_type != "embedded" or Path(settings.catalog_db).exists()


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _fields(one: Any) -> dict[str, Any]:
    return {
        key: value.isoformat() if isinstance(value, datetime) else value
        for key, value in asdict(one).items()
        if key != "name"
    }
