"""The `headwater` command. Each command is thin: options in, one module called, a result shown.

Commands import what they need by themselves, so that `--help` and the light ones start at once.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO, NoReturn

import click
from rich.progress import Progress, TaskID
from rich.text import Text

from headwater import __version__
from headwater.console import (
    Events,
    advance_to,
    cell,
    console,
    progress_bar,
    say,
    show_error,
    table,
)
from ingestion.errors import ERROR_TYPES, HeadwaterError, SettingsError
from ingestion.settings import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.rows.forget import Plan
    from headwater.rows.search import Searched
    from ingestion.stream import Stream


class OrderedGroup(click.Group):
    """Lists the commands in the order in which a newcomer needs them."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=OrderedGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="headwater")
def cli() -> None:
    """Kafka topics in, correct, documented, tested Iceberg tables out.

    \b
    First steps:
      headwater doctor                      is this machine ready?
      headwater up                          start a local broker and Thrift server
      headwater produce stocks --rows 10000 make some records
      headwater ingest --once               land them in bronze
      dbt build                             build and test silver and gold
      headwater status                      see what is where
      headwater errors                      see which records failed, and why
      headwater maintain                    compact tables, expire old snapshots
      headwater down                        stop the local stack

    Settings are HEADWATER_* variables or lines in .env; .env.example lists them all.
    Exit codes: 0 done, 1 failed, 2 wrong usage or settings.
    """


def main() -> None:
    """Run the command; a known error ends with one clear message, an unknown one is a bug."""
    try:
        cli(standalone_mode=False)
    except HeadwaterError as error:
        _fail(error)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(HeadwaterError(f"{where}{error.strerror or error}", _os_hint(error)))


def _fail(error: HeadwaterError) -> NoReturn:
    as_json = not isinstance(error, SettingsError) and settings().log_format == "json"
    show_error(error, as_json)
    sys.exit(error.exit_code)


def _os_hint(error: OSError) -> str:
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: free some space, or set HEADWATER_HOME to another disk"
    return "check the path and its permissions"


@cli.command()
def doctor() -> None:
    """Check this machine and the stack, with the fix beside each problem.

    Exits with 1 when any check fails.
    """
    from headwater.local.doctor import examine

    findings = examine(settings())
    rows = [
        ("✓" if one.ok else "✗", one.check, one.found, "" if one.ok else one.fix)
        for one in findings
    ]
    console.print(table("Doctor", ["", "check", "found", "fix"], rows))
    failed = sum(not one.ok for one in findings)
    if failed:
        raise HeadwaterError(f"{failed} of {len(findings)} checks failed", "see the fixes above")
    console.print("All is well.")


@cli.command()
def jars() -> None:
    """Fetch the pinned jars and prepare quick starts of Spark, once.

    `up` fetches missing jars, too. Ingestion needs neither, but starts in half the time.
    """
    from headwater.local.class_archive import ensure_class_archive
    from headwater.local.jars import ensure_jars, needed_sets
    from ingestion.spark_home import CLASS_ARCHIVE

    for folder in ensure_jars(settings(), needed_sets(settings())):
        say(str(folder))
    ensure_class_archive()
    say(str(CLASS_ARCHIVE))


@cli.command()
def up() -> None:
    """Start the local Kafka broker and Spark Thrift server, and wait until they answer.

    What runs already stays as it is. Where HEADWATER_KAFKA_BOOTSTRAP_SERVERS or
    HEADWATER_THRIFT_HOST names a server of yours, that one is used and none is started.
    """
    from headwater.local import services

    services.up(settings(), say)


@cli.command()
def down() -> None:
    """Stop what `up` started. Data stays."""
    from headwater.local import services

    services.down(settings(), say)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for machines.")
def status(as_json: bool) -> None:
    """Show services, streams with their lag, and tables with their sizes."""
    from headwater.status import read_status

    found = read_status(settings())
    if as_json:
        click.echo(json.dumps(found.as_json(settings()), indent=2))
        return
    console.print(
        table(
            "Services",
            ["service", "address", "state"],
            [
                (one.title, one.address, _state(one.problem, one.pid, one.external))
                for one in found.services
            ],
        )
    )
    console.print(
        table(
            "Streams",
            ["stream", "topic", "rows", "errors", "lag", "lost", "last commit"],
            [
                (
                    one.name,
                    one.topic,
                    one.rows,
                    one.errors,
                    one.lag,
                    sum(gap.size for gap in one.gaps),
                    one.last_commit,
                )
                for one in found.streams
            ],
        )
    )
    for one in found.streams:
        for gap in one.gaps:
            say(f"{one.name}: lost, and accepted at {gap.accepted_at[:19]}: {gap}")
    console.print(
        table(
            "Tables",
            ["table", "rows", "files", "MB", "snapshots", "last commit"],
            [
                (one.name, one.rows, one.files, one.bytes / 1e6, one.snapshots, one.last_commit)
                for one in found.tables
            ],
        )
        if found.tables
        else "No tables yet: run `headwater ingest`."
    )


def _state(problem: str | None, pid: int | None, external: bool) -> str:
    if problem is None:
        return "running, yours" if external else f"running (pid {cell(pid).replace(',', '')})"
    return f"away: {problem}" if external else "stopped; start it with `headwater up`"


@cli.command()
@click.argument("stream")
@click.option("--rows", default=10_000, show_default=True, type=click.IntRange(1), help="Records.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Records a second, live.")
@click.option("--seed", default=1, show_default=True, help="The same seed, the same records.")
@click.option("--bad", default=0.0, type=click.FloatRange(0, 1), help="Share of broken records.")
@click.option("--late", default=0.0, type=click.FloatRange(0, 1), help="Share of late records.")
@click.option("--duplicates", default=0.0, type=click.FloatRange(0, 1), help="Share sent again.")
@click.option("--file", "lines", type=click.File("rb"), help="Send its lines instead; - is stdin.")
def produce(
    stream: str,
    rows: int,
    rate: float | None,
    seed: int,
    bad: float,
    late: float,
    duplicates: float,
    lines: BinaryIO | None,
) -> None:
    """Send made-up records, or the lines of a file, to the topic of STREAM.

    There are generators for stocks, health, sensors and traffic. Without --rate all records go out
    at once, with event times spread over the trading day (stocks) or the day that ends now. With
    --rate they go out at that pace and carry the present time. The table at the end says exactly
    how many records of each kind were made, bad ones under the error that bronze will give them.

    \b
    headwater produce stocks --rows 200000 --bad 0.01 --late 0.02 --duplicates 0.02
    headwater produce traffic --rows 100000 --rate 500
    headwater produce mine --file records.txt
    """
    from demo.generators import GENERATORS, Shares
    from demo.produce import produce as send
    from demo.produce import produce_lines
    from ingestion.stream_file import load_streams

    if lines:
        (chosen,) = load_streams([stream])
        if len(chosen.topics) != 1:
            raise click.UsageError(f"stream {stream} has {chosen.topic_text}: which one is meant?")
        sent = produce_lines(settings(), chosen.topics[0], lines)
        console.print(f"Sent {sent:,} lines to {chosen.topics[0]}.")
        return
    if stream not in GENERATORS:
        raise click.UsageError(
            f"no generator for {stream!r}; there are: {', '.join(GENERATORS)}. To send records of "
            "your own, write them into a file, one a line: --file records.txt"
        )
    if bad + late + duplicates > 1:
        raise click.UsageError("--bad, --late and --duplicates add up to more than 1")
    with progress_bar() as bar:
        task = bar.add_task(f"Producing {stream}", total=rows)
        made = send(
            settings(),
            stream,
            rows,
            rate,
            seed,
            Shares(bad, late, duplicates),
            lambda done: bar.update(task, completed=done),
        )
    rows_made = [(kind, count) for kind, count in made.most_common()]
    console.print(table(f"Sent to {GENERATORS[stream].topic}", ["kind", "records"], rows_made))


@cli.command()
@click.argument("streams", nargs=-1)
def init(streams: tuple[str, ...]) -> None:
    """Create the bronze tables of STREAMS (all by default), or fit them to their stream files.

    A new column is added; int widens to bigint, float to double, decimal to more digits; comments
    and table properties follow the file. Anything else is refused, and nothing is changed. Rules
    and derived columns are checked as well. `ingest` does the same before its first batch.
    """
    from ingestion.decode import check_stream
    from ingestion.lease import hold
    from ingestion.stream_file import load_streams
    from ingestion.table import ensure_table

    rows = []
    for stream in load_streams(list(streams)):
        check_stream(stream)
        with hold(settings(), stream.name, "init"):
            made = ensure_table(settings(), stream)
        rows.append((stream.table, stream.topic_text, len(made.schema().fields), made.location()))
    console.print(table("Bronze tables", ["table", "topics", "columns", "location"], rows))


@cli.command()
@click.argument("streams", nargs=-1)
@click.option("--once", is_flag=True, help="Land what the topics hold now, then end.")
@click.option("--from", "begin", metavar="PLACE", help="Backfill from here, inclusive.")
@click.option("--to", "end", metavar="PLACE", help="Backfill up to here, exclusive.")
@click.option("--accept-gaps", is_flag=True, help="Go on where Kafka deleted unread records.")
def ingest(
    streams: tuple[str, ...], once: bool, begin: str | None, end: str | None, accept_gaps: bool
) -> None:
    """Land Kafka records in the bronze tables of STREAMS (all of them by default).

    The resume position is stored in the tables: start it after any crash and no record is
    missed or doubled. Records that cannot be decoded or break a rule land too, as error rows.
    Ctrl-C, SIGTERM or `headwater stop` lets the batch under way commit and ends.

    A stream that fails is started again after growing pauses (HEADWATER_RESTARTS), then stopped
    with its reason while the others go on; the exit code is 1 then. With --once the first failure
    stops it. Records that Kafka has deleted before they were read stop a stream too; --accept-gaps
    goes on without them, and the table remembers which they were (`headwater status`).

    With --from and --to, one stream is backfilled: records in that range that are not in the table
    yet are added, up to the stream's position; the position stays where it is. A PLACE is
    `earliest`, `latest`, a time, or offsets as partition:offset.

    \b
    headwater ingest                                     all streams, until Ctrl-C
    headwater ingest stocks --once                       what is there now
    headwater ingest stocks --from 2026-01-31T00:00 --to 2026-02-01T00:00
    headwater ingest stocks --from 0:1500,1:1700 --to latest
    """
    from ingestion.stream_file import load_streams

    chosen = load_streams(list(streams))
    if begin or end:
        if len(streams) != 1 or once or accept_gaps:
            raise click.UsageError("--from and --to backfill one named stream, without --once")
        _backfill(chosen[0], begin or "earliest", end or "latest")
        return

    from headwater import metrics
    from headwater.watch import summary, watching
    from ingestion.kafka import require_broker
    from ingestion.lease import hold
    from ingestion.supervise import Supervised, Supervisor

    require_broker(settings())
    events = Events(settings().log_format)
    if not streams:
        chosen = _with_topics(chosen, events)
    live = console.is_terminal and not events.as_json
    with ExitStack() as stack:
        kept = [Supervised(one, stack.enter_context(hold(settings(), one.name))) for one in chosen]
        address = stack.enter_context(metrics.served(settings(), kept))
        spark = stack.enter_context(_spark())
        stop = _stop_flag()  # after Spark has started, since PySpark sets a handler of its own
        ui = spark.sparkContext.uiWebUrl
        events.emit("start", f"metrics: {address}, Spark UI: {ui}", metrics=address, spark_ui=ui)
        supervisor = Supervisor(spark, settings(), kept, once, accept_gaps, events.emit)
        began = time.monotonic()
        try:
            with watching(kept, events, live) as look:
                supervisor.run(stop, look)
        finally:
            summary(kept, events, time.monotonic() - began)
    failed = [one.reason for one in kept if one.reason]
    for why in failed[1:]:
        show_error(why, events.as_json)
    if failed:
        raise failed[0]


def _with_topics(streams: list["Stream"], events: Events) -> list["Stream"]:
    """Without named streams, those whose topics are there; the others only get their tables."""
    from ingestion.kafka import topics
    from ingestion.table import ensure_table

    ready = [one for one in streams if topics(settings(), one.reads)]
    for one in streams:
        if one not in ready:
            ensure_table(settings(), one)
            text = f"has its table, but no records: {one.topic_text} does not exist yet"
            events.emit("skipped", f"{one.name} {text}", stream=one.name, message=text)
    if not ready:
        raise HeadwaterError(
            "no stream has a topic yet", "make some records: headwater produce stocks"
        )
    return ready


def _backfill(stream: "Stream", begin: str, end: str) -> None:
    from headwater.rows.backfill import backfill, bound
    from ingestion.lease import turn

    first, last = (
        bound(settings(), stream, text, option)
        for text, option in ((begin, "--from"), (end, "--to"))
    )
    with turn(settings(), stream.name, "ingest --from"), progress_bar() as bar:
        task = bar.add_task(f"Backfilling {stream.name}", total=None)
        report = partial(advance_to, bar, task)
        done, retired = backfill(settings(), stream, first, last, report)
    say(f"{done.rows:,} records added to {stream.table}, {sum(done.errors.values()):,} with errors")
    if retired:
        say(f"{retired:,} offsets left out: retention has removed their rows")


@contextmanager
def _spark() -> Iterator["SparkSession"]:
    from ingestion.spark import spark_session, stop_session

    with console.status("Starting Spark"):
        spark = spark_session(settings(), "ingest")
    try:
        yield spark
    finally:
        stop_session(spark)


def _stop_flag() -> Callable[[], bool]:
    """Becomes true at the first Ctrl-C or SIGTERM; a second one ends the process at once."""
    asked = False

    def handler(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)
    return lambda: asked


@cli.command()
@click.argument("streams", nargs=-1, required=True)
@click.option(
    "--wait",
    "seconds",
    default=180,
    show_default=True,
    type=click.IntRange(1),
    help="Seconds to wait for the end of the batch under way.",
)
def stop(streams: tuple[str, ...], seconds: int) -> None:
    """End the ingestion of STREAMS from another terminal, also on another machine.

    The batch under way commits first. Other streams of the same process go on.
    """
    from ingestion.lease import ask_to_stop
    from ingestion.stream_file import load_streams

    for one in load_streams(list(streams)):
        holder = ask_to_stop(settings(), one.name, seconds)
        say(f"{one.name}: stopped; it was {holder.who}" if holder else f"{one.name}: not running")


@cli.command()
@click.argument("stream")
@click.option(
    "-n",
    "--last",
    default=10,
    show_default=True,
    type=click.IntRange(0),
    help="How many records of each partition to begin with.",
)
@click.option("--no-follow", is_flag=True, help="End at the newest record.")
def tail(stream: str, last: int, no_follow: bool) -> None:
    """Print records of STREAM as they come, Avro and Protobuf as JSON. Ctrl-C ends it.

    \b
    headwater tail stocks
    headwater tail health -n 3 --no-follow
    """
    from headwater.tail import tail as follow
    from ingestion.stream_file import load_streams

    for seen in follow(settings(), load_streams([stream])[0], last, not no_follow, _stop_flag()):
        place = f"{seen.topic} {seen.partition}:{seen.offset}"
        line = Text.assemble((f"{seen.timestamp:%H:%M:%S.%f}"[:-3], "dim"), " ", (place, "cyan"))
        line.append(f" {seen.key} ", "green").append(seen.value)
        if seen.headers:
            line.append(f" [{seen.headers}]", "dim")
        console.print(line, soft_wrap=True)


@cli.command()
@click.argument("streams", nargs=-1)
def verify(streams: tuple[str, ...]) -> None:
    """Prove that each record of STREAMS (all by default) is in its table exactly once.

    Compares the table with a committed read of its topics: none missing, none twice, key, value,
    time and headers equal byte for byte. Exits with 1 and the offsets when anything differs. A
    stream may run meanwhile. Records that Kafka has deleted cannot be compared; they are counted,
    and so are those whose rows retention has removed or `headwater forget` has emptied.
    """
    from headwater.rows.verify import verify as compare
    from ingestion.catalog import open_catalog
    from ingestion.stream_file import load_streams

    catalog = open_catalog(settings())
    wrong = []
    for stream in load_streams(list(streams)):
        if not catalog.table_exists(stream.table):
            if streams:
                raise HeadwaterError(f"there is no table {stream.table}", "run: headwater ingest")
            continue
        with progress_bar() as bar:
            task = bar.add_task(f"Verifying {stream.name}", total=None)
            report = partial(advance_to, bar, task)
            found = compare(settings(), stream, catalog.load_table(stream.table), report)
        rows: list[tuple[str, int, int, int, int, str]] = []
        for one in found.partitions:
            state = "exact" if not one.problems else f"{len(one.problems)} problems"
            place = f"{one.topic} {one.partition}"
            rows.append((place, one.checked, one.gone, one.retired, one.erased, state))
        counts = ["in the table once", "gone from Kafka", "retired", "erased"]
        console.print(table(stream.table, ["partition", *counts, "verdict"], rows))
        for gap in found.gaps:
            say(f"accepted as lost: {gap}")
        wrong += [
            f"{one.topic} partition {one.partition}: offsets {_ranges(ranges)}: {what}"
            for one in found.partitions
            for what, ranges in one.problems.items()
        ]
        if found.strangers:
            wrong.append(f"{stream.table}: {found.strangers:,} rows of no partition that it knows")
    if wrong:
        raise HeadwaterError(
            "\n".join(wrong),
            "missing records can be added: headwater ingest STREAM --from ... --to ...; for the "
            "others, look at `table.snapshots` for who wrote them",
        )
    console.print("Each record is in its table exactly once.")


def _ranges(ranges: list[tuple[int, int]], most: int = 10) -> str:
    shown = ", ".join(f"{one}" if one == last else f"{one}-{last}" for one, last in ranges[:most])
    return shown + (f" and {len(ranges) - most} more ranges" if len(ranges) > most else "")


ERROR_TYPE = click.Choice(ERROR_TYPES)
SINCE = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"])


@cli.command()
@click.argument("streams", nargs=-1)
@click.option(
    "--type", "types", multiple=True, type=ERROR_TYPE, help="Only these; may be repeated."
)
@click.option("--since", type=SINCE, metavar="TIME", help="Only rows written then or later; UTC.")
@click.option(
    "--samples",
    default=3,
    show_default=True,
    type=click.IntRange(0),
    help="Rows of each type to show.",
)
def errors(
    streams: tuple[str, ...], types: tuple[str, ...], since: datetime | None, samples: int
) -> None:
    """Show failed records of STREAMS (all by default): how many, why, and some of them.

    Each failed record is a row of its bronze table, with its bytes and the reason. After a fix in
    the stream file, `headwater replay` decodes them again.
    """
    from headwater.rows.dead_letters import dead_letters
    from headwater.rows.readable import Readable
    from ingestion.catalog import open_catalog
    from ingestion.stream_file import load_streams

    catalog = open_catalog(settings())
    counts, shown = [], []
    for stream in load_streams(list(streams)):
        if not catalog.table_exists(stream.table):
            continue
        found = dead_letters(catalog.load_table(stream.table), list(types), _utc(since), samples)
        counts += [(stream.name, *key, rows) for key, rows in found.counts.most_common()]
        readable = Readable(settings(), stream)
        for row in found.samples:
            place = f"{row['_kafka_topic']} {row['_kafka_partition']}:{row['_kafka_offset']}"
            payload = readable.text("value", row["_kafka_value"], most=300)
            shown.append(
                (place, row["_error_type"], row["_error_message"].split("; values: ")[0], payload)
            )
    if not counts:
        console.print("No failed records.")
        return
    console.print(table("Failed records", ["stream", "error type", "reason", "rows"], counts))
    if shown:
        console.print(table("Samples", ["record", "error type", "reason", "value"], shown))
    console.print("After a fix in the stream file: headwater replay STREAM")


@cli.command()
@click.argument("stream")
@click.option(
    "--type", "types", multiple=True, type=ERROR_TYPE, help="Only these; may be repeated."
)
@click.option("--since", type=SINCE, metavar="TIME", help="Only rows written then or later; UTC.")
def replay(stream: str, types: tuple[str, ...], since: datetime | None) -> None:
    """Decode the failed records of STREAM again, by the stream file of today, in one commit.

    What is good now gets its columns and the time in `_resolved_at`, and flows on to silver and
    gold at the next `dbt run`. What is not keeps its newest reason. A running `headwater ingest`
    stands back meanwhile and then goes on. A second replay finds nothing to do.
    """
    from ingestion.lease import turn
    from ingestion.stream_file import load_streams

    (chosen,) = load_streams([stream])

    from headwater.rows.replay import replay as decode_again

    with turn(settings(), stream, "replay"), console.status("Replaying"):
        done = decode_again(settings(), chosen, list(types), _utc(since))
    rows = [
        ("good now", done.resolved),
        ("failed for another reason", done.changed),
        ("failed as before", done.failed - done.resolved - done.changed),
    ]
    console.print(table(f"Replayed in {chosen.table}", ["outcome", "rows"], rows))
    if done.resolved:
        console.print("Run `dbt run` to bring them to silver and gold.")


@cli.command()
@click.argument("stream")
@click.option(
    "--where",
    required=True,
    metavar="SQL",
    help="Whose rows: a condition on the columns of the stream; - reads it from standard input.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget(stream: str, where: str, yes: bool) -> None:
    """Remove someone's rows from STREAM, from all tables made of it, and from their history.

    Shows what it will do and asks. Bronze rows are emptied, and keep only their place in Kafka;
    rows of dbt's tables are deleted; tables that lack a column of the condition are rebuilt. Then
    older snapshots and their files are removed, and a search through every file that is left proves
    that nothing remains. The stream may run meanwhile, dbt should not. If it is interrupted, run it
    again.

    Kafka keeps its records: docs/operating.md says what to do there. A condition on the command
    line is seen in the process list and kept by your shell; `--where -` avoids both.

    \b
    headwater forget health --where "user_id = 'u-17'"
    headwater forget health --where - --yes < condition.sql
    """
    from headwater.rows.forget import forget as carry_out
    from headwater.rows.forget import make_plan
    from ingestion.stream_file import load_streams

    (chosen,) = load_streams([stream])
    if where == "-":
        is_typed = sys.stdin.isatty()
        where = click.prompt("Condition", type=str) if is_typed else sys.stdin.read().strip()
    with progress_bar() as bar:
        plan = make_plan(settings(), chosen, where, _searching(bar))
    _show_plan(plan)
    if plan.is_empty:
        console.print(f"Nothing to forget: {_searched(plan.found.values())}, nothing found.")
        return
    _confirm(plan, yes)
    with progress_bar() as bar:
        proof = carry_out(settings(), plan, say, _searching(bar))
    console.print(
        f"Nothing left: {proof.files:,} files ({proof.bytes / 1e6:,.1f} MB) of "
        f"{len(plan.targets)} tables searched, {proof.removed:,} files removed before."
    )


def _searching(bar: Progress) -> Callable[[str, int, int], None]:
    tasks: dict[str, TaskID] = {}

    def report(table_name: str, done: int, total: int) -> None:
        if table_name not in tasks:
            tasks[table_name] = bar.add_task(f"Searching {table_name}", total=total)
        bar.update(tasks[table_name], completed=done, total=total)

    return report


def _searched(found: Iterable["Searched"]) -> str:
    files, size = (sum(getattr(one, what) for one in found) for what in ("files", "bytes"))
    return f"{files:,} files ({size / 1e6:,.1f} MB) searched"


def _show_plan(plan: "Plan") -> None:
    how = {
        "emptied": "emptied; their place in Kafka stays",
        "deleted": "deleted",
        "rebuilt": f"rebuilt: it lacks {', '.join(plan.condition.columns)}",
    }
    rows = []
    for one in plan.targets:
        found = plan.found[one.name]
        old = sum(not hit.is_live for hit in found.hits)
        known = None if one.how == "rebuilt" and not found.live_rows else found.live_rows
        rows.append((one.name, known, how[one.how], one.snapshots, old))
    columns = ["table", "rows", "how", "snapshots to expire", "older files with them"]
    console.print(table("To forget", columns, rows))
    if undecided := plan.found[plan.stream.table].undecided:
        say(f"{undecided:,} failed records cannot be told by the condition, and stay")
    for one in plan.targets:
        if one.refs:
            say(f"{one.name}: branches and tags that are dropped: {', '.join(one.refs)}")
    if len(plan.targets) > 1 and not plan.is_empty:
        say("the next `dbt run` recomputes incremental gold models wholly, once, and says so")
    topics = [*plan.stream.topics, *([plan.stream.forward.topic] if plan.stream.forward else [])]
    say(f"out of reach: Kafka ({', '.join(topics) or plan.stream.topic_text}), backups, exports")


def _confirm(plan: "Plan", yes: bool) -> None:
    """A condition that takes every row is more often a mistake than a wish."""
    is_asked = sys.stdin.isatty()
    if plan.is_everyone:
        if not is_asked:
            raise click.UsageError(
                f"the condition takes every row of {plan.stream.table}; that is only done after "
                "the name of the stream was typed at a terminal"
            )
        name = click.prompt(f"This takes every row of {plan.stream.table}. Name of the stream")
        if name != plan.stream.name:
            raise HeadwaterError("another name was typed: nothing was changed", "")
    elif not yes:
        if not is_asked:
            raise click.UsageError("nobody can be asked here: say --yes to carry this out")
        if not click.confirm("Forget these rows for good?"):
            raise HeadwaterError("nothing was changed", "")


def _utc(when: datetime | None) -> datetime | None:
    return when.replace(tzinfo=UTC) if when else None


@cli.command()
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAMESPACE.TABLE",
    help="Only this one; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
def maintain(tables: tuple[str, ...], dry_run: bool) -> None:
    """Take care of the tables: all of bronze, and those of every dbt model, seed and snapshot.

    In this order: rows past their retention are removed; small files of closed partitions become
    large ones; delete files and manifests are joined; snapshots that nobody was promised and nobody
    needs are expired; files that no snapshot knows are removed. What needs nothing is left alone.

    Streams and dbt may write meanwhile. The defaults of a layer are overlaid by
    `meta.iceberg_maintenance` of a model and by `maintenance` and `retention` of a stream file;
    docs/operating.md has each key. A table that fails does not stop the others; the exit code is 1
    then. `dbt run-operation iceberg_maintenance` does the same.

    \b
    headwater maintain --dry-run
    headwater maintain
    headwater maintain --table bronze.stocks --table silver.stg_stocks__prices
    """
    from headwater.maintain import Cared, care, cared_tables

    done: list[Cared] = []
    failed: dict[str, HeadwaterError] = {}
    with progress_bar() as bar:
        task = bar.add_task("Looking for tables", total=None)
        names = cared_tables(settings(), list(tables))
        for number, name in enumerate(names):
            bar.update(task, description=name, completed=number, total=len(names))
            try:
                done.append(care(settings(), name, dry_run))
            except HeadwaterError as error:
                failed[name] = error
        bar.update(task, description="Tables", completed=len(names), total=len(names))
    rows = [
        (
            one.table,
            _change(f"{one.before.files:,}", f"{one.after.files:,}"),
            _change(cell(one.before.bytes / 1e6), cell(one.after.bytes / 1e6)),
            _change(f"{one.before.snapshots:,}", f"{one.after.snapshots:,}"),
            one.done,
        )
        for one in done
    ]
    title = "What would be done" if dry_run else "What was done"
    console.print(table("Tables", ["table", "files", "MB", "snapshots", title.lower()], rows))
    if failed:
        raise HeadwaterError(
            "\n".join(f"{name}: {error.message}" for name, error in failed.items()),
            "these tables are whole, and the next `headwater maintain` goes on with them; "
            + next(iter(failed.values())).hint,
        )


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


@cli.command()
def docs() -> None:
    """Build the dbt docs site as one HTML file and print its path."""
    from headwater.dbt import build_docs
    from headwater.local.services import borrowed_stack, wait_ready

    with borrowed_stack(settings(), say) as launched:
        wait_ready(settings(), launched, say)
        site = build_docs(settings())
    console.print(f"Docs site: {site}", soft_wrap=True)


@cli.command()
def demo() -> None:
    """The whole pipeline on this machine: broker, bronze, silver, gold, tests, docs.

    It adds 200,000 records to whatever is there already, and stops what it started.
    """
    from demo.pipeline import run_demo

    run_demo(settings())
