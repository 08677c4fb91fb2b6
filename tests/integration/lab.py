"""A dbt project of a test's own on the shared Thrift server, with Headwater's macros or without."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dbt.cli.main import dbtRunner
from pyhive import hive

from tests.conftest import ROOT

PROJECT = """\
name: lab
version: &version 1.2.3
profile: headwater
flags: {{send_anonymous_usage_stats: false}}
dispatch: [{{macro_namespace: dbt, search_order: [lab, iceberg, dbt]}}]
vars: {{project_version: *version, iceberg_other_meta: [team]}}
models: &config
  lab:
    +file_format: iceberg
    +schema: {namespace}
    +persist_docs: {{relation: true, columns: true}}
seeds: *config
snapshots: *config
"""


def copy_project(folder: Path) -> None:
    """The project without its models, for models of a test's own."""
    for name in ("macros", "profiles", "packages", "dbt_packages"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    for name in ("dbt_project.yml", "packages.yml"):
        shutil.copy(ROOT / name, folder)


@dataclass
class Lab:
    folder: Path
    env: dict[str, str]
    namespace: str = field(default_factory=lambda: f"lab_{uuid.uuid4().hex[:8]}")
    log: list[str] = field(default_factory=list)  # statements of the last command
    said: list[str] = field(default_factory=list)  # by its macros, to people

    def create(self, as_shipped: bool) -> None:
        """`as_shipped` leaves out what Headwater changes in the adapter."""
        shutil.copytree(ROOT / "profiles", self.folder / "profiles")
        names = (ROOT / "macros" / "generate_schema_name.sql").read_text()
        self.write("macros/generate_schema_name.sql", names)
        if not as_shipped:
            package = ROOT / "packages" / "iceberg"
            self.write("packages.yml", f"packages: [{{local: '{package}'}}]\n")
            (self.folder / "dbt_packages").mkdir()
            (self.folder / "dbt_packages" / "iceberg").symlink_to(package)
            materializations = (ROOT / "macros" / "materializations.sql").read_text()
            self.write("macros/materializations.sql", materializations)
        self.write("dbt_project.yml", PROJECT.format(namespace=self.namespace))
        self.sql(f"create namespace {self.namespace}")

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def model(self, name: str, query: str, **config: Any) -> None:
        given = ", ".join(f"{key}={value!r}" for key, value in config.items())
        self.write(f"models/{name}.sql", f"{{{{ config({given}) }}}}\n{query}\n")

    def table(self, name: str) -> str:
        return f"{self.namespace}.{name}"

    def dbt(self, *arguments: str) -> dict[str, str]:
        """Run dbt in this process; what became of each node, `<status>: <message>`."""
        done = run_dbt(self.folder, self.env, *arguments)
        self.log, self.said = done.statements, done.said
        return done.nodes

    def run(self, *arguments: str) -> None:
        """`dbt run` that must succeed."""
        found = self.dbt("run", *arguments)
        assert found
        assert all(one.startswith("success") for one in found.values()), found

    def failure(self, *arguments: str) -> str:
        """The message of the one node that must fail."""
        failed = [one for one in self.dbt(*arguments).values() if not one.startswith("success")]
        assert len(failed) == 1, failed
        return " ".join(failed[0].split())

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        with connection(self.env) as cursor:
            cursor.execute(query)
            return cursor.fetchall() if cursor.description else []

    def rows(self, name: str, columns: str = "*") -> list[tuple[Any, ...]]:
        return sorted(self.sql(f"select {columns} from {self.table(name)}"), key=repr)

    def columns(self, name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for row in self.sql(f"describe table {self.table(name)}"):
            if not row[0] or row[0].startswith("#"):
                break
            found[row[0]] = row[1]
        return found

    def snapshots(self, name: str) -> list[int]:
        query = f"select snapshot_id from {self.table(name)}.snapshots order by committed_at"
        return [row[0] for row in self.sql(query)]

    def drop(self) -> None:
        for kind in ("view", "table"):
            for row in self.sql(f"show {kind}s in {self.namespace}"):
                purge = " purge" if kind == "table" else ""
                self.sql(f"drop {kind} {self.namespace}.{row[1]}{purge}")
        self.sql(f"drop namespace {self.namespace}")


@dataclass
class Done:
    """What a dbt command did."""

    nodes: dict[str, str] = field(default_factory=dict)  # `<status>: <message>` of each
    statements: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # by macros, to people

    def note(self, event: Any) -> None:
        if event.info.name == "SQLQuery":
            statement = event.data.sql.split("*/", 1)[-1]  # dbt's comment comes first
            self.statements.append(" ".join(statement.split()))
        elif event.info.name == "JinjaLogInfo":
            self.said.append(event.data.msg)


def run_dbt(folder: Path, env: dict[str, str], *arguments: str) -> Done:
    """dbt in this process: its start takes longer than most of what it does here."""
    done = Done()
    paths = ["--project-dir", str(folder), "--profiles-dir", str(folder / "profiles")]
    paths += ["--target-path", env.get("DBT_TARGET_PATH", str(folder / "target"))]
    paths += ["--log-path", env.get("DBT_LOG_PATH", str(folder / "logs"))]
    with _environment(env):
        outcome = dbtRunner(callbacks=[done.note]).invoke(
            ["--quiet", "--log-level", "none", *arguments, *paths]
        )
    if outcome.exception:
        raise outcome.exception
    for one in getattr(outcome.result, "results", []):
        if hasattr(one, "node"):
            done.nodes[one.node.name] = f"{one.status}: {one.message}"
    return done


@contextmanager
def connection(env: dict[str, str]) -> Iterator[Any]:
    made = hive.connect("127.0.0.1", int(env["HEADWATER_THRIFT_PORT"]))
    try:
        yield made.cursor()
    finally:
        made.close()


@contextmanager
def _environment(env: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
