"""The dbt project keeps its own house rules: whatever is added is described, tested and owned."""

import os
import re
from functools import cache
from typing import Any

from dbt.cli.main import dbtRunner

from ingestion.stream_file import load_streams
from ingestion.table import table_columns
from tests.conftest import ROOT

LAYERS = {"silver": ("stg_", "int_", "dead_letters"), "gold": ("fct_", "dim_", "rpt_")}
UNIQUE = ("unique", "unique_combination")
NOT_NULL = ("not_null", "never_null")
# Each says what a row is in its first words.
GRAIN = "One row per "


@cache
def manifest() -> Any:
    done = dbtRunner().invoke(
        [
            "--quiet", "--log-level", "none", "parse", "--no-partial-parse",
            "--project-dir", str(ROOT), "--profiles-dir", str(ROOT / "profiles"),
            "--target-path", os.environ.get("DBT_TARGET_PATH", str(ROOT / "target" / "check")),
        ]
    )  # fmt: skip
    assert done.success, done.exception
    return done.result


def nodes(*kinds: str) -> list[Any]:
    return [one for one in manifest().nodes.values() if one.resource_type in kinds]


def generic_tests(unique_id: str) -> list[Any]:
    """The generic tests of a node, each with its name and arguments."""
    return [
        one.test_metadata
        for one in nodes("test")
        if getattr(one, "test_metadata", None)
        and (one.attached_node or one.depends_on.nodes[0]) == unique_id
    ]


def checks_of(unique_id: str) -> set[str]:
    return {one.name for one in generic_tests(unique_id)}


def columns_tested(unique_id: str, kinds: tuple[str, ...]) -> list[set[str]]:
    """The columns of each test of these kinds."""
    return [
        set(one.kwargs.get("columns") or [one.kwargs["column_name"]])
        for one in generic_tests(unique_id)
        if one.name in kinds
    ]


def test_everything_is_described_down_to_the_column() -> None:
    lacking = []
    sources = manifest().sources.values()
    ours = ("headwater", "iceberg")
    macros = [one for one in manifest().macros.values() if one.package_name in ours]
    for one in [*nodes("model", "seed", "snapshot"), *sources]:
        lacking += [one.unique_id] if not one.description else []
        lacking += [
            f"{one.unique_id}.{name}" for name, col in one.columns.items() if not col.description
        ]
        lacking += [f"{one.unique_id}: no columns"] if not one.columns else []
    for one in macros:
        if one.name.startswith("_") or one.name.startswith("materialization_"):
            continue  # a helper says in its file what it is for
        lacking += [one.unique_id] if not one.description else []
        lacking += [
            f"{one.unique_id}({arg.name})"
            for arg in one.arguments
            if not (arg.description and arg.type)
        ]
    assert not lacking


def test_each_model_stands_in_its_layer_and_says_what_a_row_is() -> None:
    wrong = []
    for one in nodes("model"):
        layer, domain, *_ = one.path.split("/")
        file = (ROOT / one.original_file_path).with_suffix(".yml")
        if one.schema != layer or not one.name.startswith(LAYERS[layer]):
            wrong.append(f"{one.name}: {one.original_file_path}")
        if one.name.startswith("stg_") and not one.name.startswith(f"stg_{domain}__"):
            wrong.append(f"{one.name}: its domain is {domain}")
        if not file.exists():
            wrong.append(f"{one.name}: no {file.name} beside it")
        if not one.description.startswith(GRAIN):
            wrong.append(f"{one.name}: {one.description[:40]}")
    assert not wrong


def test_each_primary_key_is_unique_and_never_null() -> None:
    wrong = []
    for one in nodes("model", "seed", "snapshot"):
        filled: set[str] = set().union(*columns_tested(one.unique_id, NOT_NULL))
        if not any(key <= filled for key in columns_tested(one.unique_id, UNIQUE)):
            wrong.append(one.name)
    assert not wrong


def test_gold_has_contracts_is_public_and_is_used_by_someone() -> None:
    used = {node for one in manifest().exposures.values() for node in one.depends_on.nodes} | {
        node for one in nodes("model") for node in one.depends_on.nodes
    }
    for one in nodes("model"):
        if one.schema == "gold":
            assert one.config.contract.enforced, one.name
            assert one.access == "public", one.name
            assert all(column.data_type for column in one.columns.values()), one.name
            assert one.unique_id in used, f"{one.name}: no exposure and no model reads it"
        else:
            assert one.access in ("protected", "private"), one.name
        assert one.group, one.name


def test_the_overview_leads_to_each_table_of_gold_and_nowhere_else() -> None:
    text = (ROOT / "models" / "overview.md").read_text()
    linked = set(re.findall(r"\]\(#!/\w+/([\w.]+)\)", text))
    gold = {one.unique_id for one in nodes("model", "snapshot") if one.schema == "gold"}
    assert linked == gold | {"model.headwater.dead_letters"}


def test_owners_are_named() -> None:
    owned = [*manifest().groups.values(), *manifest().exposures.values()]
    assert len(owned) > 8
    for one in owned:
        assert one.owner.name, one.name
        assert one.owner.email, one.name
        assert one.description, one.name


def test_every_stream_is_a_source_with_all_columns_of_its_table() -> None:
    sources = {one.identifier: list(one.columns) for one in manifest().sources.values()}
    declared = {one.name: [spec.name for spec in table_columns(one)] for one in load_streams()}
    assert sources == declared


def test_every_source_has_freshness_and_its_coordinates_are_unique() -> None:
    for one in manifest().sources.values():
        assert one.freshness.error_after.count, one.name
        kinds = checks_of(one.unique_id)
        assert kinds >= {"unique_combination", "never_null"}, one.name


def test_every_model_with_logic_has_a_unit_test() -> None:
    tested = {one.depends_on.nodes[0] for one in manifest().unit_tests.values()}
    plain = [one.name for one in nodes("model") if one.unique_id not in tested]
    assert plain == ["dim_tickers"]  # a seed as it is


def test_seeds_have_types_for_all_columns() -> None:
    for one in nodes("seed"):
        header = (ROOT / one.original_file_path).read_text().splitlines()[0].split(",")
        assert list(one.config.column_types) == header, one.name
        assert list(one.columns) == header, one.name


def test_staging_is_reconciled_with_bronze() -> None:
    for one in nodes("model"):
        if one.name.startswith("stg_"):
            assert "holds_every_record_of" in checks_of(one.unique_id), one.name
