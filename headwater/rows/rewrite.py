"""Rows that have landed, changed in one commit of the ledger: their files are written again."""

from collections.abc import Callable, Iterator
from datetime import datetime

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask

from ingestion.files import FileWriter, TableFiles
from ingestion.ledger import Ledger
from ingestion.manifests import lists_removed_files

# New rows in the place of these, or None where they stay as they are.
Change = Callable[[pa.Table], pa.Table | None]


def rewrite(
    ledger: Ledger,
    where: BooleanExpression | str,
    change: Change,
    stamp: datetime,
    before_commit: Callable[[], None] = lambda: None,
    without_trace: bool = False,
) -> None:
    """Give all rows of each file that may hold such rows to `change`; the position stays.

    One file is in memory at a time, block by block. Rows keep their order. `without_trace` leaves
    no description of a file that was taken out in the new snapshot, now or earlier.
    """
    added: list[DataFile] = []
    removed: list[DataFile] = []
    files = TableFiles.of(ledger.table)
    for task in ledger.table.scan(row_filter=where).plan_files():
        if written := _changed_copy(ledger, files, task, change):
            added += written
            removed.append(task.file)
    if removed or (without_trace and lists_removed_files(ledger.table)):
        before_commit()
        ledger.commit(ledger.position.offsets, stamp, added, removed, without_trace)


def _changed_copy(
    ledger: Ledger, files: TableFiles, task: FileScanTask, change: Change
) -> list[DataFile]:
    writer, is_changed = FileWriter(files), False
    try:
        for rows in _blocks(ledger, task):
            changed = change(rows)
            is_changed |= changed is not None
            writer.write(rows if changed is None else changed)
        if is_changed:
            return writer.close()
    except BaseException:
        writer.abort()
        raise
    writer.abort()
    return []


def _blocks(ledger: Ledger, task: FileScanTask) -> Iterator[pa.Table]:
    table = ledger.table
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    for batch in scan.to_record_batches([task]):
        yield pa.Table.from_batches([batch])


def replaced(rows: pa.Table, places: pa.Array, by: pa.Table) -> pa.Table:
    """The rows, with others at some places."""
    order = list(range(rows.num_rows))
    for number, place in enumerate(places.to_pylist()):
        order[place] = rows.num_rows + number
    both = pa.concat_tables([rows, by.select(rows.column_names).cast(rows.schema)])
    return both.take(pa.array(order, pa.int64()))
