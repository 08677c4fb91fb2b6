"""dbt on Iceberg: each test fails with the Spark adapter as it ships (`pytest --as-shipped`)."""

import json
import threading
import time
from typing import Any

import pytest

from tests.integration.lab import Lab, connection


class Reader(threading.Thread):
    """Reads a table again and again; `seen` has each count or error once."""

    def __init__(self, lab: Lab, name: str) -> None:
        super().__init__()
        self.seen: set[int | str] = set()
        self._lab = lab
        self._name = name
        self._stop_asked = threading.Event()

    def run(self) -> None:
        with connection(self._lab.env) as cursor:
            while not self._stop_asked.is_set():
                try:
                    cursor.execute(f"select count(*) from {self._lab.table(self._name)}")
                    self.seen.add(cursor.fetchall()[0][0])
                except Exception as error:
                    self.seen.add(str(error)[:200])
                time.sleep(0.01)

    def __enter__(self) -> "Reader":
        self.start()
        while not self.seen:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_asked.set()
        self.join()


# 1. Full refresh


def test_a_full_refresh_replaces_the_table_at_once_and_keeps_its_history(lab: Lab) -> None:
    query = "select id, repeat('x', 100) as text from range({})"
    lab.model("many", query.format(300_000), materialized="incremental")
    lab.run()
    lab.model("many", query.format(400_000), materialized="incremental")
    with Reader(lab, "many") as reader:
        lab.run("--full-refresh")
    assert reader.seen == {300_000, 400_000}
    first, second = lab.snapshots("many")
    assert lab.sql(f"select count(*) from {lab.table('many')} version as of {first}") == [
        (300_000,)
    ]
    lab.sql(f"call lake.system.set_current_snapshot('{lab.table('many')}', {first})")
    assert lab.sql(f"select count(*) from {lab.table('many')}") == [(300_000,)]
    lab.sql(f"call lake.system.set_current_snapshot('{lab.table('many')}', {second})")
    assert lab.sql(f"select count(*) from {lab.table('many')}") == [(400_000,)]


def test_a_seed_is_replaced_at_once_and_only_when_it_changed(lab: Lab) -> None:
    rows = "".join(f"{one},it's {one}%\n" for one in range(50))
    lab.write("seeds/names.csv", "id,name\n" + rows)
    types = "seeds: [{name: names, config: {column_types: {id: bigint}}}]"
    lab.write("seeds/names.yml", f"version: 2\n{types}\n")
    lab.dbt("seed")
    lab.dbt("seed")
    assert len(lab.snapshots("names")) == 1
    assert lab.columns("names") == {"id": "bigint", "name": "string"}
    large = 2**53 + 1
    lab.write("seeds/names.csv", f"id,name\n{rows}{large},\n")
    with Reader(lab, "names") as reader:
        lab.dbt("seed")
    assert reader.seen <= {50, 51}
    assert len(lab.snapshots("names")) == 2
    assert {(9, "it's 9%"), (large, None)} <= set(lab.rows("names"))


# 2. on_schema_change


def incremental(lab: Lab, query: str, **config: Any) -> None:
    lab.model("changing", query, materialized="incremental", **config)


def test_new_columns_are_added_by_default_and_old_ones_stay(lab: Lab) -> None:
    incremental(lab, "select 1 as id, 'a' as old")
    lab.run()
    incremental(lab, "select 2 as id, 'b' as new")
    lab.run()
    assert lab.rows("changing", "id, old, new") == [(1, "a", None), (2, None, "b")]
    incremental(lab, "select * from values (1, 'c'), (3, 'd') as t (id, new)", unique_key="id")
    lab.run()
    assert lab.rows("changing", "id, old, new") == [(1, "a", "c"), (2, None, "b"), (3, None, "d")]


def test_sync_adds_drops_and_widens(lab: Lab) -> None:
    keep = {"on_schema_change": "sync_all_columns", "unique_key": "id"}
    incremental(
        lab,
        "select 1 as id, 1 as whole, 1.5f as part, 1.5bd as money, 7L as big, 'x' as gone",
        **keep,
    )
    lab.run()
    incremental(
        lab,
        "select 2 as id, 2L as whole, 2.5d as part, 123456.5bd as money, 8 as big, 'y' as new",
        **keep,
    )
    lab.run()
    assert lab.columns("changing") == {
        "id": "int",
        "whole": "bigint",
        "part": "double",
        "money": "decimal(7,1)",
        "big": "bigint",
        "new": "string",
    }
    assert [row[0] for row in lab.rows("changing", "id")] == [1, 2]
    incremental(lab, "select 3 as id, 'three' as whole", **keep)
    message = lab.failure("run")
    assert "has column whole as string" in message
    assert "dbt run --full-refresh --select changing" in message
    assert len(lab.rows("changing")) == 2


def test_a_column_of_the_partitioning_is_not_dropped_in_the_dark(lab: Lab) -> None:
    keep = {"on_schema_change": "sync_all_columns", "partition_by": "kind"}
    incremental(lab, "select 1 as id, 'a' as kind", **keep)
    lab.run()
    incremental(lab, "select 2 as id", **keep)
    assert "is partitioned by (kind)" in lab.failure("run")


def test_fail_names_what_changed(lab: Lab) -> None:
    incremental(lab, "select 1 as id", on_schema_change="fail")
    lab.run()
    incremental(lab, "select 1 as id, 'n' as new", on_schema_change="fail")
    assert "Source columns not in target: [<SparkColumn new (string)>]" in lab.failure("run")
    assert lab.columns("changing") == {"id": "int"}


# 3. merge


def test_a_merge_without_a_key_is_an_error_at_the_first_run_too(lab: Lab) -> None:
    lab.model(
        "keyless", "select 1 as one", materialized="incremental", incremental_strategy="merge"
    )
    assert "merges without a unique_key" in lab.failure("run")


def test_null_keys_are_updated_and_never_multiply(lab: Lab) -> None:
    values = "(1, 'a', '{0}'), (null, 'a', '{0}'), (1, null, '{0}')"
    query = f"select * from values {values} as t (id, kind, said)"
    for said in ("first", "second", "third"):
        lab.model(
            "keyed", query.format(said), materialized="incremental", unique_key=["id", "kind"]
        )
        lab.run()
    assert lab.rows("keyed") == [(1, "a", "third"), (1, None, "third"), (None, "a", "third")]


def test_a_merge_updates_the_columns_that_it_was_told_to(lab: Lab) -> None:
    query = "select 1 as id, '{0}' as kept, '{0}' as changed"
    for said in ("first", "second"):
        lab.model(
            "partly",
            query.format(said),
            materialized="incremental",
            unique_key="id",
            merge_exclude_columns=["kept"],
        )
        lab.run()
    assert lab.rows("partly") == [(1, "first", "second")]


# 4. insert_overwrite


def days(lab: Lab, rows: str, **config: Any) -> None:
    lab.model(
        "days",
        f"select cast(day as date) as day, n from values {rows} as t (day, n)",
        materialized="incremental",
        incremental_strategy="insert_overwrite",
        **config,
    )


def test_partitions_of_the_new_rows_are_replaced_and_no_other(lab: Lab) -> None:
    days(lab, "('2026-01-01', 1), ('2026-01-02', 2), ('2026-01-02', 3)", partition_by="day")
    lab.run()
    days(lab, "('2026-01-02', 4), ('2026-01-03', 5)", partition_by="day")
    lab.run()
    assert lab.rows("days", "day(day), n") == [(1, 1), (2, 4), (3, 5)]
    days(lab, "('2026-01-02', 4) where false", partition_by="day")
    lab.model(
        "days",
        "select current_date() as day, 1 as n where false",
        materialized="incremental",
        incremental_strategy="insert_overwrite",
        partition_by="day",
    )
    lab.run()  # nothing new replaces nothing
    assert len(lab.rows("days")) == 3


def test_without_partitions_nothing_is_overwritten(lab: Lab) -> None:
    lab.model("days", "select date '2026-01-01' as day, 1 as n", materialized="incremental")
    lab.run()
    days(lab, "('2026-01-02', 2)")
    assert "would replace the whole table" in lab.failure("run")
    # The model has partitions now, the table still has none.
    days(lab, "('2026-01-02', 2)", partition_by="day")
    assert "was made without any" in lab.failure("run")
    assert lab.rows("days", "n") == [(1,)]


# 5. Tables and views


def test_a_model_changes_between_view_and_table_in_every_way(lab: Lab) -> None:
    lab.model("neighbour", "select 0 as n", materialized="view")
    kinds = ["view", "table", "view", "incremental", "view", "view"]
    for number, kind in enumerate(kinds):
        lab.model("shape", f"select {number} as n", materialized=kind)
        lab.run()
        assert lab.rows("shape") == [(number,)]
        found = {
            what: {row[1] for row in lab.sql(f"show {what}s in {lab.namespace}")}
            for what in ("table", "view")
        }
        is_view = kind == "view"
        assert found == {
            "table": set() if is_view else {"shape"},
            "view": {"shape", "neighbour"} if is_view else {"neighbour"},
        }


def test_the_old_one_stays_when_the_new_one_cannot_be_made(lab: Lab) -> None:
    lab.model("shape", "select 1 as n", materialized="table")
    lab.run()
    lab.model("shape", "select no_such_column as n", materialized="view")
    message = lab.failure("run")
    assert "no_such_column" in message
    assert "org.apache.spark.sql.hive.thriftserver" not in message  # no Java stack
    assert lab.rows("shape") == [(1,)]
    lab.model("shape", "select 2 as n", materialized="view")
    lab.run()
    lab.model("shape", "select cast(raise_error('stop') as int) as n", materialized="table")
    assert "stop" in lab.failure("run")
    assert lab.rows("shape") == [(2,)]


def test_listing_takes_two_statements_however_many_relations_there_are(lab: Lab) -> None:
    for number in range(8):
        kind = "view" if number % 2 else "table"
        lab.model(f"one_{number}", f"select {number} as n", materialized=kind)
    lab.run()
    lab.run("--select", "one_0")
    listed = [one for one in lab.log if one.startswith(("show ", "describe "))]
    names = sorted(one.split(" in ")[0] for one in listed if one.endswith(lab.namespace))
    assert names == ["show tables", "show views"]


def test_a_namespace_is_dropped_with_all_that_it_holds(lab: Lab) -> None:
    """As dbt does it to clean up after CI."""
    lab.model("kept", "select 1 as n", materialized="table")
    lab.model("shown", "select * from {{ ref('kept') }}", materialized="view")
    lab.run()
    lab.write(
        "macros/clean_up.sql",
        "{% macro clean_up(name) %}{% do adapter.drop_schema("
        "api.Relation.create(schema=name)) %}{% endmacro %}",
    )
    for _ in range(2):  # the second time there is none
        lab.dbt("run-operation", "clean_up", "--args", f"name: {lab.namespace}")
        assert lab.sql(f"show namespaces like '{lab.namespace}'") == []
    lab.sql(f"create namespace {lab.namespace}")  # the lab drops it, too


def test_two_people_build_beside_each_other(lab: Lab) -> None:
    lab.model("kept", "select 1 as n", materialized="table")
    lab.run()
    theirs = Lab(lab.folder, lab.env | {"HEADWATER_NAMESPACE_SUFFIX": "_anna"}, lab.namespace)
    lab.model("kept", "select 2 as n", materialized="table")
    try:
        theirs.run()
        assert lab.rows("kept") == [(1,)]
        assert lab.sql(f"select n from {lab.namespace}_anna.kept") == [(2,)]
    finally:
        lab.sql(f"drop table if exists {lab.namespace}_anna.kept purge")
        lab.sql(f"drop namespace if exists {lab.namespace}_anna")


# 6. Docs


DESCRIBED = """\
version: 2
models:
  - name: described
    description: "{description}"
    columns:
      - {{name: id, description: "The key; it's '{description}' \\\\ {{{{ 100 }}}}%"}}
      - {{name: name, description: Its name.}}
  - name: seen
    description: What people see.
    columns: [{{name: id, description: Seen key.}}]
"""


def test_descriptions_become_comments_and_follow_their_changes(lab: Lab) -> None:
    lab.model("described", "select 1 as id, 'a' as name", materialized="incremental")
    lab.model("seen", "select id from {{ ref('described') }}", materialized="view")
    for description in ("It's one", "Two now"):
        lab.write("models/models.yml", DESCRIBED.format(description=description))
        lab.run()
        rows = lab.sql(f"describe extended {lab.table('described')}")
        about = {row[0]: row for row in reversed(rows)}
        assert about["id"][2] == f"The key; it's '{description}' \\ 100%"
        assert about["name"][2] == "Its name."
        assert about["Comment"][1] == description
    lab.run()
    assert not [one for one in lab.log if "comment" in one and "seen" not in one]
    view = {row[0]: row for row in reversed(lab.sql(f"describe extended {lab.table('seen')}"))}
    assert view["id"][2] == "Seen key."
    assert view["Comment"][1] == "What people see."


def test_the_docs_catalog_has_types_comments_owner_and_iceberg_facts(lab: Lab) -> None:
    lab.model("described", "select 1 as id, 'a' as name", materialized="incremental")
    lab.model("seen", "select id from {{ ref('described') }}", materialized="view")
    lab.write("models/models.yml", DESCRIBED.format(description="One"))
    lab.run()
    lab.run()
    lab.dbt("docs", "generate")
    nodes = json.loads((lab.folder / "target" / "catalog.json").read_text())["nodes"]
    table, view = nodes["model.lab.described"], nodes["model.lab.seen"]
    assert {name: one["type"] for name, one in table["columns"].items()} == {
        "id": "int",
        "name": "string",
    }
    assert table["columns"]["name"]["comment"] == "Its name."
    assert table["metadata"]["comment"] == "One"
    assert table["metadata"]["owner"]
    assert (table["metadata"]["type"], view["metadata"]["type"]) == ("table", "view")
    stats = {name: one["value"] for name, one in table["stats"].items() if one["include"]}
    assert stats["rows"] == 2
    assert stats["files"] == 2
    assert stats["snapshots"] == 2
    (size,) = lab.sql(f"select sum(file_size_in_bytes) from {lab.table('described')}.files")[0]
    assert stats["bytes"] == size
    (last,) = lab.sql(f"select max(committed_at) from {lab.table('described')}.snapshots")[0]
    assert str(last)[:19] in stats["last_commit"]


# 7. Snapshots


SNAPSHOT = """\
snapshots:
  - name: history
    relation: ref('state')
    config:
      unique_key: id
      strategy: check
      check_cols: [said]
      hard_deletes: {hard_deletes}
"""


def state(lab: Lab, *rows: str, columns: str = "id, said") -> None:
    values = ", ".join(rows)
    lab.model("state", f"select * from values {values} as t ({columns})", materialized="table")


@pytest.mark.parametrize("hard_deletes", ["invalidate", "new_record"])
def test_a_snapshot_keeps_every_version(lab: Lab, hard_deletes: str) -> None:
    lab.write("snapshots/history.yml", SNAPSHOT.format(hard_deletes=hard_deletes))

    def snapped() -> list[tuple[Any, ...]]:
        found = lab.dbt("build")
        assert set(found) == {"state", "history"}
        assert all(one.startswith("success") for one in found.values()), found
        return lab.rows("history", "id, said, dbt_valid_to is null")

    state(lab, "(1, 'a')", "(2, 'b')")
    assert snapped() == [(1, "a", True), (2, "b", True)]
    assert snapped() == [(1, "a", True), (2, "b", True)]
    state(lab, "(1, 'A')", "(3, 'c')")  # one changed, one deleted, one new
    kept = [(1, "A", True), (1, "a", False), (2, "b", False), (3, "c", True)]
    deleted = [(2, "b", True)] if hard_deletes == "new_record" else []
    assert snapped() == sorted(kept + deleted, key=repr)
    assert snapped() == sorted(kept + deleted, key=repr)
    if deleted:
        (marked,) = lab.sql(f"select id from {lab.table('history')} where dbt_is_deleted = 'True'")
        assert marked == (2,)
    state(lab, "(1, 'A', 10)", "(3, 'c', 30)", "(2, 'b', 20)", columns="id, said, more")
    snapped()
    current = f"select id, said from {lab.table('history')} where dbt_valid_to is null"
    assert sorted(lab.sql(current)) == [(1, "A"), (2, "b"), (3, "c")]
    assert "more" in lab.columns("history")
    leftovers = [row[1] for row in lab.sql("show views in default")]
    assert leftovers == []


# 8. What else dbt offers


def test_a_contract_holds_at_every_run(lab: Lab) -> None:
    config = {"materialized": "incremental", "contract": {"enforced": True}}
    config["on_schema_change"] = "append_new_columns"
    lab.model("agreed", "select 1 as id", **config)
    yaml = "version: 2\nmodels: [{name: agreed, columns: [{name: id, data_type: int}]}]\n"
    lab.write("models/agreed.yml", yaml)
    lab.run()
    lab.model("agreed", "select 'one' as id", **config)
    assert "contract" in lab.failure("run")
    lab.model("agreed", "select 1 as id, 2 as more", **config)
    assert "contract" in lab.failure("run")
    assert lab.rows("agreed") == [(1,)]


def test_retry_defer_and_selectors(lab: Lab) -> None:
    lab.model("parent", "select 1 as id", materialized="table")
    lab.model("broken", "select missing from {{ ref('parent') }}", materialized="table")
    lab.model("after", "select id from {{ ref('broken') }}", materialized="table")
    found = lab.dbt("run")
    assert {name: one.split(":")[0] for name, one in found.items()} == {
        "parent": "success",
        "broken": "error",
        "after": "skipped",
    }
    lab.model("broken", "select id from {{ ref('parent') }}", materialized="table")
    assert set(lab.dbt("retry")) == {"broken", "after"}
    assert lab.rows("after") == [(1,)]
    # The parent lives in another namespace; this one has only the child.
    (lab.folder / "target" / "manifest.json").rename(lab.folder / "manifest.json")
    built = lab.namespace
    lab.sql(f"create namespace {built}_dev")
    text = (lab.folder / "dbt_project.yml").read_text()
    lab.write("dbt_project.yml", text.replace(built, f"{built}_dev"))
    lab.write(
        "selectors.yml",
        "selectors: [{name: last, definition: {method: fqn, value: after}}]\n",
    )
    try:
        lab.run("--selector", "last", "--defer", "--state", str(lab.folder))
        assert lab.sql(f"select id from {built}_dev.after") == [(1,)]
        assert [row[1] for row in lab.sql(f"show tables in {built}_dev")] == ["after"]
    finally:
        lab.sql(f"drop table if exists {built}_dev.after purge")
        lab.sql(f"drop namespace {built}_dev")


def test_four_threads_build_at_once_and_each_commit_says_who_made_it(lab: Lab) -> None:
    """9 as well: the stamps of models that run side by side do not mix."""
    lab.write("seeds/names.csv", "id\n1\n")
    for number in range(8):
        lab.model(
            f"one_{number}",
            f"select id, {number} as n from range(1000)",
            materialized="incremental" if number % 2 else "table",
        )
    lab.write(
        "snapshots/history.yml",
        SNAPSHOT.format(hard_deletes="ignore").replace("state", "one_0").replace("said", "n"),
    )
    for _ in range(2):
        found = lab.dbt("build", "--threads", "4")
        assert len(found) == 10
        assert all(one.startswith("success") for one in found.values()), found
    results = json.loads((lab.folder / "target" / "run_results.json").read_text())
    newest = results["metadata"]["invocation_id"]
    for one, kind in [
        *((f"one_{n}", "model") for n in range(8)),
        ("names", "seed"),
        ("history", "snapshot"),
    ]:
        stamps = lab.sql(
            "select get_json_object(summary['dbt'], '$.model'), "
            "get_json_object(summary['dbt'], '$.project_version'), "
            "get_json_object(summary['dbt'], '$.invocation_id') "
            f"from {lab.table(one)}.snapshots order by committed_at"
        )
        assert {stamp[0] for stamp in stamps} == {f"{kind}.lab.{one}"}
        assert {stamp[1] for stamp in stamps} == {"1.2.3"}
        if kind == "model":
            assert len(stamps) == 2
            assert stamps[1][2] == newest != stamps[0][2]


def test_a_commit_after_the_model_is_not_stamped(lab: Lab) -> None:
    """Not by the model's stamp, and not by the mark of what it read."""
    other = lab.table("other")
    lab.sql(f"create table {other} (n int) using iceberg")
    lab.model("parent", "select 1 as id", materialized="table")
    lab.model(
        "child",
        "select id from {{ iceberg.rows_to_recompute(ref('parent'), {'id': 'id'}) }}",
        materialized="incremental",
        unique_key="id",
        post_hook=f"insert into {other} values (1)",
    )
    lab.run()
    (summary,) = lab.sql(f"select summary from {other}.snapshots")[0]
    assert "dbt" not in summary
    (read,) = lab.sql(
        f"select get_json_object(summary['dbt'], '$.read') from {lab.table('child')}.snapshots"
    )[0]
    assert list(json.loads(read)) == [lab.table("parent")]
