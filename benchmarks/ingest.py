"""What landing a backlog costs, side by side: `make bench`.

Headwater, PyFlink and the Iceberg sink of Kafka Connect land the same topics from the same broker,
one after the other, each round anew: cold, in processes of their own, into an empty table. Each
table is checked: is every record there once? The peers are installed on first use. The benchmark
keeps its own broker and removes it.
"""

import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path

import click

from benchmarks.measure import RunError
from benchmarks.peers import connect, flink, headwater
from benchmarks.peers.case import PEER_HEAP, Case, Landed, free_port
from benchmarks.results import median_and_spread, report
from demo.generators import GENERATORS, Record, Shares, spread_clock
from demo.produce import send
from headwater.console import console
from headwater.local.services import borrowed_stack, wait_ready
from ingestion.settings import Settings

MILLION = 1_000_000
KEYS = [f"feed-{number:02}".encode() for number in range(64)]  # as many in each partition
COLUMNS = (
    "",
    "CPU s",
    "of these start-up",
    "wall s",
    "of these start-up",
    "peak memory, MB",
    "files",
    "MB",
    "each record once",
)
NOTES = f"""\
Medians, with the smallest and the largest value. CPU is that of the whole process tree; start-up
lasts until Spark is there, the Flink job is submitted or the connector's tasks run. Kafka Connect
does not end by itself: it is measured up to the commit that completes the table, the others up to
the end of their processes. Memory is the largest PSS of the process tree, sampled twice a second;
each JVM has a heap of {PEER_HEAP}. Headwater keeps the raw bytes of each record and checks the
rules; the peers write typed columns and the coordinates of each record only. "Typed columns only"
is Headwater changed by the benchmark so that it writes no bytes; there is no such setting. Commits
or checkpoints come every 10 s. All tables have one partition, of Parquet files compressed with
zstd."""

Contender = Callable[[Case, Path], Landed]

HEADWATER, BASELINE = "Headwater", "Headwater, baseline"
CONTENDERS: dict[str, tuple[str, Contender]] = {
    "headwater": (HEADWATER, headwater.land),
    "typed": (
        "Headwater, typed columns only",
        partial(headwater.land, module=headwater.TYPED_ONLY),
    ),
    "flink": (flink.NAME, flink.land),
    "connect": (connect.NAME, connect.land),
}


def produce(case: Case) -> None:
    """Good records only: a bad one stops the peers."""
    generator = GENERATORS[case.stream]
    now = datetime.now(UTC)
    if case.stream == "stocks":
        now = now.replace(tzinfo=None)  # the times that Flink reads have no zone
    clock = spread_clock(case.records, now, generator.span)
    records = generator.records(case.records, 1, Shares(), clock)
    send(case.broker, case.topic, map(_evenly_keyed, records, count()), None, lambda _: None)


def _evenly_keyed(record: Record, index: int) -> Record:
    return record._replace(key=KEYS[index % len(KEYS)])


def compare(case: Case, contenders: dict[str, Contender], rounds: int, scratch: Path) -> bool:
    """Run all contenders on this case, in turns. False if Headwater failed or was not exact."""
    console.print(f"{case.name}: producing")
    produce(case)
    runs: dict[str, list[Landed]] = {name: [] for name in contenders}
    problems: dict[str, list[str]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, land in contenders.items():
            folder = scratch / "run"
            folder.mkdir()
            try:
                landed = land(case, folder)
                runs[name].append(landed)
                spent = f"{landed.total.cpu:.1f} CPU s, {landed.total.seconds:.1f} s"
                problem = landed.problem(case)
            except RunError as error:
                spent, problem = "failed", str(error)
            console.print(
                f"  round {number + 1}, {name}: {spent}{f', {problem}' if problem else ''}"
            )
            if problem:
                problems[name].append(problem.splitlines()[0])
            shutil.rmtree(folder)
    rows = [_row(name, runs[name], problems[name]) for name in contenders if runs[name]]
    report(case.name, COLUMNS, rows, NOTES)
    return not problems.get(HEADWATER)


def _row(name: str, runs: list[Landed], problems: list[str]) -> tuple[object, ...]:
    return (
        name,
        median_and_spread([run.total.cpu for run in runs]),
        median_and_spread([run.start_up.cpu for run in runs]),
        median_and_spread([run.total.seconds for run in runs]),
        median_and_spread([run.start_up.seconds for run in runs]),
        median_and_spread([run.peak_mb for run in runs], 0),
        median_and_spread([run.files for run in runs], 0),
        median_and_spread([run.mb for run in runs]),
        "; ".join(problems) or "yes",
    )


@click.command()
@click.option("--records", default="0.02,1,5,20", show_default=True, help="Millions, JSON.")
@click.option("--avro", default="5", show_default=True, help="Millions, Avro. Empty for none.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--only", default="headwater,typed,flink,connect", show_default=True)
@click.option(
    "--baseline",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another checkout of Headwater with a .venv, as one more contender.",
)
def main(records: str, avro: str, rounds: int, only: str, baseline: Path | None) -> None:
    """Compare what landing a backlog costs."""
    contenders: dict[str, Contender] = {}
    for name in only.split(","):
        if name not in CONTENDERS:
            raise click.BadParameter(f"{name} is none of {', '.join(CONTENDERS)}")
        title, land = CONTENDERS[name]
        contenders[title] = land
    if baseline:
        contenders[BASELINE] = partial(headwater.land, checkout=baseline.resolve())
    exact = True
    with tempfile.TemporaryDirectory() as scratch:
        broker = Settings(home=Path(scratch) / "broker", kafka_port=free_port())
        for peer in (flink, connect):
            if peer.NAME in contenders:
                peer.install(broker)
        with borrowed_stack(broker, lambda _: None, only=("kafka",)) as launched:
            wait_ready(broker, launched, lambda _: None)
            for stream, sizes in (("stocks", records), ("health", avro)):
                able = {
                    title: land
                    for title, land in contenders.items()
                    if stream == "stocks" or land is not connect.land
                }
                for size in filter(None, sizes.split(",")):
                    case = Case(broker, stream, int(float(size) * MILLION))
                    exact &= compare(case, able, rounds, Path(scratch))
    if not exact:
        raise SystemExit("Headwater failed or was not exact: see above")


if __name__ == "__main__":
    main()
