"""Forget someone: their rows out of bronze, silver and gold, and out of every file behind them.

Rows go first, in the order in which data flows, so that nothing flows back: bronze rows are
emptied, rows of models deleted, models that cannot be told by the condition rebuilt. History goes
last: while a file of it still holds something, a run that was interrupted finds that, and does it
all again. The end is a search through every file that is left.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from graphlib import TopologicalSorter
from typing import Any, Literal

from pyarrow import ArrowException
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.table import Table

from headwater.dbt import parsed_project, run_dbt
from headwater.local.services import thrift_away
from headwater.rows.condition import Condition, read_condition
from headwater.rows.erase import erase
from headwater.rows.search import Files, Hit, Searched, search
from ingestion.catalog import open_catalog
from ingestion.errors import HeadwaterError
from ingestion.lease import turn
from ingestion.ledger import commit_without_trace, newest_marked
from ingestion.manifests import lists_removed_files
from ingestion.settings import Settings
from ingestion.stream import Stream

ROUNDS = 3  # a build or a stream may bring rows while we work
# A file that no snapshot refers to may belong to a dbt build, or a compaction, that has not
# committed yet. To delete it would break the table. In bronze, what certainly holds the rows cannot
# be such: the stream stands back, and a compaction of files that were replaced is refused.
IN_FLIGHT = timedelta(minutes=15)
COMMIT_ATTEMPTS = 5

How = Literal["emptied", "deleted", "rebuilt"]
Tell = Callable[[str], None]
Report = Callable[[str, int, int], None]  # what is searched, files done, files in all


@dataclass(frozen=True)
class Target:
    """A table with rows of the stream, or made from them."""

    name: str
    how: How
    model: str | None  # its name in dbt
    snapshots: int  # older than the newest
    refs: list[str]  # branches and tags, which hold on to old snapshots


@dataclass(frozen=True)
class Plan:
    stream: Stream
    condition: Condition
    targets: list[Target]
    found: dict[str, Searched]

    @property
    def is_empty(self) -> bool:
        """Nothing is left anywhere."""
        return not any(one.hits for one in self.found.values())

    @property
    def rows(self) -> int:
        return sum(one.live_rows for one in self.found.values())

    @property
    def is_everyone(self) -> bool:
        bronze = self.found[self.stream.table]
        return bronze.live_rows > 0 and bronze.live_rows == bronze.rows

    @property
    def by_text(self) -> bool:
        return all(
            one.format in ("json", "text") for one in (self.stream.key, self.stream.value) if one
        )


@dataclass(frozen=True)
class Proof:
    files: int
    bytes: int
    removed: int


def make_plan(settings: Settings, stream: Stream, where: str, report: Report) -> Plan:
    """What is to be done, from a search through all files of the tables. No Spark is needed."""
    catalog = open_catalog(settings)
    if not catalog.table_exists(stream.table):
        raise HeadwaterError(f"there is no table {stream.table}", "nothing has landed in it yet")
    bronze = catalog.load_table(stream.table)
    condition = read_condition(where, stream, bronze.schema())
    targets = [_target(bronze, "emptied", None)]
    targets += _downstream(settings, catalog, stream, condition)
    plan = Plan(stream, condition, targets, {})
    for one in targets:
        plan.found[one.name] = _search(catalog, plan, one, report)
    return plan


def _downstream(
    settings: Settings, catalog: Catalog, stream: Stream, condition: Condition
) -> list[Target]:
    """The tables of all models made from the stream, each behind those that it is made from."""
    found = []
    for node in _made_from(parsed_project(settings), stream):
        if node.config.materialized not in ("table", "incremental", "snapshot"):
            continue  # a view holds nothing
        name = f"{node.schema}.{node.alias}"
        if not catalog.table_exists(name):
            continue
        table = catalog.load_table(name)
        is_rebuilt = condition.bind(table.schema()) is None or _holds_raw_records(node)
        how: How = "rebuilt" if is_rebuilt else "deleted"
        if how == "rebuilt" and node.resource_type == "snapshot":
            raise HeadwaterError(
                f"the snapshot {name} lacks a column of the condition "
                f"({', '.join(condition.columns)}), and cannot be rebuilt without losing history",
                "add the column to the snapshot, or delete the rows from it by hand first",
            )
        if how == "deleted" and table.properties.get("write.delete.mode") == "merge-on-read":
            raise HeadwaterError(
                f"{name} keeps deleted rows in its files (write.delete.mode = merge-on-read)",
                f"alter table {name} set tblproperties ('write.delete.mode' = 'copy-on-write')",
            )
        found.append(_target(table, how, node.name))
    return found


def _holds_raw_records(node: Any) -> bool:
    """Its rows have bytes of records, in which someone may be named whom no column names."""
    return bool(node.config.meta.get("forget") == "rebuild")


def _target(table: Table, how: How, model: str | None) -> Target:
    old = max(len(table.snapshots()) - 1, 0)
    return Target(".".join(table.name()[-2:]), how, model, old, _refs(table))


def _made_from(manifest: Any, stream: Stream) -> Iterator[Any]:
    """Models and snapshots that hang on the stream's source, parents first."""
    sources = {
        key
        for key, one in manifest.sources.items()
        if f"{one.schema}.{one.identifier}" == stream.table
    }
    nodes = {
        key: one
        for key, one in manifest.nodes.items()
        if one.resource_type in ("model", "snapshot") and one.config.enabled
    }
    order = TopologicalSorter({key: set(one.depends_on.nodes) for key, one in nodes.items()})
    touched = set(sources)
    for key in order.static_order():
        if key in nodes and touched & set(nodes[key].depends_on.nodes):
            touched.add(key)
            yield nodes[key]


def _refs(table: Table) -> list[str]:
    return [name for name in table.refs() if name != "main"]


def _search(catalog: Catalog, plan: Plan, target: Target, report: Report) -> Searched:
    return search(
        catalog.load_table(target.name),
        plan.condition,
        plan.by_text,
        lambda done, total: report(target.name, done, total),
    )


def forget(settings: Settings, plan: Plan, tell: Tell, report: Report) -> Proof:
    """Carry the plan out, and prove that nothing is left."""
    rebuilt = [one.name for one in plan.targets if one.how == "rebuilt"]
    if rebuilt and (problem := thrift_away(settings)):
        raise HeadwaterError(
            f"{', '.join(rebuilt)} must be rebuilt, and no Spark Thrift server answers: {problem}",
            "start it: headwater up. Nothing was changed",
        )
    catalog = open_catalog(settings)
    found = dict(plan.found)
    begun = {one.name: set(_files(catalog, one).referred(history=True)) for one in plan.targets}
    removed = 0
    for round_ in range(ROUNDS):
        for target in plan.targets:
            if target.how == "emptied":
                failed = found[target.name].failed
                with turn(settings, plan.stream.name, "forget"), _discreet(target):
                    count = erase(settings, plan.stream, plan.condition, failed)
                tell(f"{target.name}: {count:,} rows emptied")
            elif target.how == "deleted" and found[target.name].live_rows:
                with _discreet(target):
                    _delete(catalog, target.name, plan.condition)
                tell(f"{target.name}: {found[target.name].live_rows:,} rows deleted")
            elif target.how == "rebuilt" and (round_ == 0 or found[target.name].live_rows):
                run_dbt(settings, "run", "--full-refresh", "--select", str(target.model))
                tell(f"{target.name}: rebuilt")
        for target in plan.targets:
            with _alone(settings, plan, target), _discreet(target):
                removed += _tidy(catalog, target, begun[target.name], found[target.name].hits)
        tell("older snapshots and their files: removed")
        found = {one.name: _search(catalog, plan, one, report) for one in plan.targets}
        if not any(one.hits for one in found.values()):
            size = sum(one.bytes for one in found.values())
            return Proof(sum(one.files for one in found.values()), size, removed)
    raise _left(found)


def _files(catalog: Catalog, target: Target) -> Files:
    return Files(catalog.load_table(target.name))


def _retried(action: Callable[[], None]) -> None:
    """Another commit may be quicker; the action then looks at the table again."""
    for attempt in range(COMMIT_ATTEMPTS):
        try:
            action()
            return
        except CommitFailedException:
            if attempt == COMMIT_ATTEMPTS - 1:
                raise


def _delete(catalog: Catalog, name: str, condition: Condition) -> None:
    _retried(lambda: catalog.load_table(name).delete(condition.expression))


@contextmanager
def _discreet(target: Target) -> Iterator[None]:
    """The text of an error may hold values of the condition: it is not shown."""
    try:
        yield
    except (CommitFailedException, ValidationError, ArrowException) as error:
        raise HeadwaterError(
            f"{target.name} could not be changed ({type(error).__name__})",
            "run it again: it goes on from here. If it fails again, let nobody else write to the "
            "table",
        ) from None


@contextmanager
def _alone(settings: Settings, plan: Plan, target: Target) -> Iterator[None]:
    """In bronze, a file without a snapshot is nobody's only while the stream stands back."""
    if target.how != "emptied":
        yield
        return
    with turn(settings, plan.stream.name, "forget"):
        yield


def _tidy(catalog: Catalog, target: Target, begun: set[str], hits: list[Hit]) -> int:
    """Leave the newest snapshot and its files, and nothing else in which something was found."""
    table = catalog.load_table(target.name)
    history = set(Files(table).referred(history=True))
    if target.how != "emptied" and lists_removed_files(table):
        _retried(lambda: commit_without_trace(catalog, catalog.load_table(target.name)))
    _retried(lambda: _expire(catalog, target))
    files = Files(catalog.load_table(target.name))
    there, live = files.list(), files.referred(history=True)
    was_ours = (begun | history) & there.keys() - live.keys()
    settled = datetime.now(UTC) - IN_FLIGHT
    orphans = {
        one.file.path
        for one in hits
        if one.file.path in there.keys() - live.keys()
        and (one.file.modified < settled or (target.how == "emptied" and one.is_certain))
    }
    return files.remove(was_ours | orphans)


def _expire(catalog: Catalog, target: Target) -> None:
    """All snapshots but the newest, and in bronze the newest that knows the position."""
    table = catalog.load_table(target.name)
    for name in _refs(table):
        is_tag = table.refs()[name].snapshot_ref_type == "tag"
        change = table.manage_snapshots()
        (change.remove_tag(name) if is_tag else change.remove_branch(name)).commit()
    kept = {table.metadata.current_snapshot_id}
    if target.how == "emptied" and (marked := newest_marked(table)):
        kept.add(marked.snapshot_id)
    if old := [one.snapshot_id for one in table.snapshots() if one.snapshot_id not in kept]:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def _left(found: dict[str, Searched]) -> HeadwaterError:
    lines = [
        f"{name}: {hit.file.path}: {hit.what}" for name, one in found.items() for hit in one.hits
    ]
    coming = [name for name, one in found.items() if one.live_rows]
    minutes = int(IN_FLIGHT.total_seconds() / 60)
    hint = (
        f"these files belong to no snapshot and are younger than {minutes} minutes: a dbt build "
        "may be about to commit them. Let it end, and run this again then"
    )
    if coming:
        hint = f"rows keep coming to {', '.join(coming)}: stop what sends or builds them, and run "
        hint += "this again"
    return HeadwaterError("not everything is gone:\n" + "\n".join(lines), hint)
