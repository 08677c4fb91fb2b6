"""Gaps in a position, batches that follow each other, and pauses between restarts."""

import pytest

from ingestion.errors import HeadwaterError
from ingestion.kafka import Range
from ingestion.offsets import Offsets
from ingestion.origin import Gap, without_gaps
from ingestion.run import follow
from ingestion.source import balanced, batch_end, is_due
from ingestion.stream import Batch
from ingestion.supervise import Patience


def test_a_position_moves_behind_the_gaps_that_it_stands_in() -> None:
    position = Offsets({("t", 0): 10, ("t", 1): 5})
    gaps = [Gap("t", 0, 30, 40), Gap("t", 0, 10, 30), Gap("t", 1, 7, 9)]
    assert without_gaps(position, gaps) == {("t", 0): 40, ("t", 1): 5}
    assert position == {("t", 0): 10, ("t", 1): 5}


def test_a_gap_that_was_passed_or_not_reached_moves_nothing() -> None:
    gap = Gap("t", 0, 10, 30)
    for offset in (9, 30):
        assert without_gaps(Offsets({("t", 0): offset}), [gap]) == {("t", 0): offset}


def test_a_gap_at_the_start_of_an_unread_partition_counts() -> None:
    position = Offsets({("t", 0): 9})
    assert without_gaps(position, [Gap("t", 1, 0, 4)]) == {("t", 0): 9, ("t", 1): 4}


def test_a_batch_keeps_the_offsets_of_topics_that_it_did_not_read() -> None:
    known = Offsets({("old", 0): 7, ("t", 0): 1, ("t", 1): 2})
    end = follow(known, [Range("t", 1, 4, 9), Range("t", 1, 2, 4)])
    assert end == {("old", 0): 7, ("t", 0): 1, ("t", 1): 9}


@pytest.mark.parametrize("begin", [1, 3])
def test_a_batch_that_does_not_join_on_is_refused(begin: int) -> None:
    with pytest.raises(
        HeadwaterError, match=f"begins at offset {begin}, but the table's position is 2"
    ):
        follow(Offsets({("t", 0): 2}), [Range("t", 0, begin, 9)])


@pytest.mark.parametrize(
    ("waiting", "seconds", "due"),
    [
        (1, 10, True),  # max_seconds
        (99, 9, False),
        (100, 9, True),  # min_records
        (100, 0.9, False),  # a topic that is never quiet
        (1_000, 0, True),  # max_records
        (0, 1_000, False),
    ],
)
def test_a_batch_is_due_at_so_many_records_or_after_so_many_seconds(
    waiting: int, seconds: float, due: bool
) -> None:
    batch = Batch(min_records=100, max_seconds=10, max_records=1_000)
    assert is_due(waiting, batch, seconds) == due


def test_a_batch_is_capped_and_shared_fairly() -> None:
    start = Offsets({("t", 0): 100, ("t", 1): 0})
    end = Offsets({("t", 0): 1_100, ("t", 1): 100, ("t", 2): 0})
    assert batch_end(start, end, 5_000) == {**end}
    capped = batch_end(start, end, 110)
    assert start.distance_to(capped) == 110
    assert capped == {("t", 0): 200, ("t", 1): 10, ("t", 2): 0}


def test_tasks_are_balanced_by_records_and_take_parts_of_partitions() -> None:
    ranges = [Range("t", 0, 0, 70_000), Range("t", 1, 0, 10_000), Range("t", 2, 5, 5)]
    first, second = balanced(ranges, tasks=2)
    assert sum(part.size for part in first) == sum(part.size for part in second) == 40_000
    assert [*first, *second] == [
        Range("t", 0, 0, 40_000), Range("t", 0, 40_000, 70_000), Range("t", 1, 0, 10_000)
    ]  # fmt: skip
    assert balanced(ranges[1:], tasks=8) == [[Range("t", 1, 0, 10_000)]]  # too few for two files


def test_pauses_double_up_to_a_minute() -> None:
    patience = Patience(restarts=10, pause_seconds=2)
    assert [patience.pause(failures) for failures in range(1, 8)] == [2, 4, 8, 16, 32, 60, 60]
