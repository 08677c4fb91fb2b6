"""dbt, kept loaded in this process: the same project and profile as on the command line."""

import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ingestion.errors import HeadwaterError
from ingestion.settings import Settings, project_root, variable

Report = Callable[[int, int], None]  # nodes done, nodes in all
Heard = Callable[[Any], None]  # an event of dbt


@cache
def parsed_project(settings: Settings) -> Any:
    """The project's manifest, parsed once for all commands of this process."""
    return _invoke(settings, ["parse"]).result


def run_dbt(settings: Settings, *arguments: str, heard: Heard | None = None) -> int:
    """Run a dbt command; returns how many nodes it ran, or raises with what failed."""
    callbacks = [heard] if heard else []
    manifest = parsed_project(settings)
    done = _invoke(settings, list(arguments), manifest=manifest, callbacks=callbacks)
    return len(done.result.results)


def run_operation(settings: Settings, macro: str, **arguments: Any) -> list[str]:
    """Run a macro; returns what it wrote to the log, or raises with the reason in one line."""
    said: list[str] = []
    failed: list[str] = []

    def heard(event: Any) -> None:
        if event.info.name == "JinjaLogDebug":
            said.append(event.data.msg)
        elif event.info.name in ("RunningOperationCaughtError", "RunningOperationUncaughtError"):
            failed.append(event.data.exc)

    command = ["run-operation", macro, "--args", json.dumps(arguments)]
    outcome = _outcome(settings, command, manifest=parsed_project(settings), callbacks=[heard])
    if not outcome.success:
        text = failed[0] if failed else str(outcome.exception)
        raise HeadwaterError(_reason(text), f"dbt's log has all of it: {_log()}")
    return said


def _reason(text: str) -> str:
    """The first line that says something, without the kinds of error that are put before it."""
    kinds = r"([A-Z]\w+ )*Error( in macro .*)?"
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not re.fullmatch(kinds, line)]
    return re.sub(r"^.*Error running query: ", "", (told or lines)[0])[:400]


def _log() -> Path:
    return Path(os.environ.get("DBT_LOG_PATH", project_root() / "logs")) / "dbt.log"


def _invoke(settings: Settings, arguments: list[str], **runner: Any) -> Any:
    outcome = _outcome(settings, arguments, **runner)
    if not outcome.success:
        raise HeadwaterError(
            f"dbt {' '.join(arguments)} failed:\n" + "\n".join(_reasons(outcome)),
            f"run `dbt {arguments[0]}` to see it in full; its log is {_log()}",
        )
    return outcome


def _outcome(settings: Settings, arguments: list[str], **runner: Any) -> Any:
    from dbt.cli.main import dbtRunner

    host, port = settings.thrift_address
    os.environ[variable("thrift_host")] = host
    os.environ[variable("thrift_port")] = str(port)
    root = str(project_root())
    options = ["--project-dir", root, "--profiles-dir", f"{root}/profiles"]
    quiet = ["--log-level", "none", "--log-level-file", "debug", "--quiet"]
    return dbtRunner(**runner).invoke([*quiet, *arguments, *options])


def build_docs(settings: Settings) -> Path:
    """The docs site as one HTML file."""
    _invoke(settings, ["docs", "generate", "--static"], manifest=parsed_project(settings))
    return project_root() / "target" / "static_index.html"


def counter(report: Report) -> Heard:
    """Counts finished nodes; dbt says with each start how many there are in all."""
    done = total = 0

    def heard(event: Any) -> None:
        nonlocal done, total
        if event.info.name == "LogStartLine":
            total = event.data.total
        elif event.info.name == "NodeFinished":
            done += 1
            report(done, max(done, total))

    return heard


def _reasons(outcome: Any) -> list[str]:
    if outcome.exception:
        return [f"  {str(outcome.exception).strip()}"]
    return [
        f"  {result.node.name}: {str(result.message).strip().splitlines()[0][:300]}"
        for result in outcome.result.results
        if result.status in ("error", "fail", "runtime error")
    ]
