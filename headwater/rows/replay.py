"""Failed rows, decoded again by today's stream file, in one commit."""

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from headwater.rows.rewrite import replaced, rewrite
from ingestion.commit import Committer
from ingestion.decode import Records
from ingestion.errors import ERASED
from ingestion.formats.types import UTC_MICROSECONDS
from ingestion.landing import Lander
from ingestion.settings import Settings
from ingestion.stream import Stream


@dataclass
class Replayed:
    failed: int = 0  # rows that were decoded again
    resolved: int = 0  # of these good now
    changed: int = 0  # of these failed for another reason than before


def replay(
    settings: Settings, stream: Stream, types: list[str], since: datetime | None
) -> Replayed:
    """Resolve what is good now, and keep the newest reason of what is not."""
    committer = Committer(settings, stream)
    lander = Lander(committer.plan)
    stamp = committer.ledger.next_stamp()
    done = Replayed()

    def change(rows: pa.Table) -> pa.Table | None:
        places = pc.indices_nonzero(_is_wanted(rows, types, since))
        if not len(places):
            return None
        failed = rows.take(places)
        decoded = lander.decoder.decode(Records.from_rows(failed, stream.headers), stamp).rows
        is_good = decoded["_error_type"].is_null()
        is_same = pc.and_(
            _equal(decoded["_error_type"], failed["_error_type"]),
            _equal(decoded["_error_message"], failed["_error_message"]),
        )
        is_changed = pc.or_(is_good, pc.invert(is_same))
        done.failed += len(places)
        done.resolved += pc.sum(is_good).as_py()
        done.changed += pc.sum(pc.and_not(is_changed, is_good)).as_py()
        if not pc.any(is_changed).as_py():
            return None
        lander.forward(decoded)
        decoded = _with_outcome(decoded, failed, stamp)
        return replaced(rows, places.filter(is_changed), decoded.filter(is_changed))

    try:
        rewrite(
            committer.ledger,
            "_error_type is not null and _resolved_at is null",
            change,
            stamp,
            before_commit=lander.flush,
        )
    finally:
        lander.close()
    return done


def _is_wanted(rows: pa.Table, types: list[str], since: datetime | None) -> pa.Array:
    """Failed rows that no replay has resolved and nobody has erased."""
    kinds = rows["_error_type"]
    wanted = pc.and_(
        pc.fill_null(pc.not_equal(kinds, ERASED), False), rows["_resolved_at"].is_null()
    )
    if types:
        wanted = pc.and_(wanted, pc.is_in(kinds, pa.array(types, kinds.type)))
    if since is not None:
        wanted = pc.and_(
            wanted, pc.greater_equal(rows["_ingested_at"], pa.scalar(since, UTC_MICROSECONDS))
        )
    return wanted


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether two texts are equal; null equals nothing."""
    return pc.fill_null(pc.equal(left, right.cast(left.type)), False)


def _with_outcome(decoded: pa.Table, failed: pa.Table, stamp: datetime) -> pa.Table:
    """A good row is resolved, and what was wrong stays on record."""
    is_good = decoded["_error_type"].is_null()
    resolved = pc.if_else(is_good, pa.scalar(stamp, UTC_MICROSECONDS), None)
    columns = {name: decoded[name] for name in decoded.column_names}
    for name in ("_error_type", "_error_message"):
        old = failed[name].cast(pa.string())
        columns[name] = pc.if_else(is_good, old, decoded[name])
    return pa.table(columns | {"_resolved_at": resolved})
