"""Bronze rows emptied for good: the record is gone, its place in the ledger stays.

A row is not deleted. Its coordinates and stamps stay, everything else becomes null, so the position
by rows is right, a backfill sees that the record was there, and the verifier knows that it was
taken out on purpose.
"""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression, In, Or

from headwater.rows.condition import Condition, fulfils, is_kept
from headwater.rows.rewrite import replaced, rewrite
from ingestion.catalog import open_catalog
from ingestion.errors import ERASED
from ingestion.ledger import COORDINATES, Ledger
from ingestion.settings import Settings
from ingestion.stream import Stream

KEPT = (*COORDINATES, "_kafka_timestamp", "_ingested_at")
ERASED_AT = "headwater.last-erasure"  # when a table has rows that were emptied

Coordinates = tuple[str, int, int]


def erase(
    settings: Settings, stream: Stream, condition: Condition, failed: list[Coordinates]
) -> int:
    """Empty the rows that fulfil the condition, and these failed ones. Returns how many.

    The commit is the newest marked one and names no file that it took out, so every older snapshot
    can be expired. Call it in a turn of the stream.
    """
    ledger = Ledger(open_catalog(settings), stream.table)
    if ledger.table.current_snapshot() is None:
        return 0
    bound, places, count = condition.bind(ledger.table.schema()), set(failed), 0

    def change(rows: pa.Table) -> pa.Table | None:
        nonlocal count
        is_meant = pc.and_(fulfils(rows, bound), is_kept(rows))
        if places:
            keys = zip(*(rows[name].to_pylist() for name in COORDINATES), strict=True)
            is_named = pa.array([key in places for key in keys], pa.bool_())
            is_meant = pc.or_(is_meant, pc.and_(is_named, is_kept(rows)))
        meant = pc.indices_nonzero(is_meant)
        if not len(meant):
            return None
        count += len(meant)
        return replaced(rows, meant, _emptied(rows.take(meant)))

    def remember() -> None:
        if count and ERASED_AT not in ledger.table.properties:
            with ledger.table.transaction() as transaction:
                transaction.set_properties({ERASED_AT: datetime.now(UTC).isoformat()})

    where: BooleanExpression = condition.expression
    if failed:
        offsets = {offset for _, _, offset in failed}
        where = Or(where, In("_kafka_offset", offsets))  # type: ignore[misc,call-arg]
    rewrite(
        ledger,
        where,
        change,
        ledger.next_stamp(),
        before_commit=remember,
        without_trace=True,
    )
    return count


def _emptied(rows: pa.Table) -> pa.Table:
    said = {
        "_error_type": ERASED,
        "_error_message": f"erased on {datetime.now(UTC):%Y-%m-%d} UTC",
    }
    columns = {
        field.name: rows[field.name]
        if field.name in KEPT
        else pa.repeat(pa.scalar(said.get(field.name), field.type), rows.num_rows)
        for field in rows.schema
    }
    return pa.table(columns, schema=rows.schema)
