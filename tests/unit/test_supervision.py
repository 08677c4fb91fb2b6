"""Gaps in a position, and pauses between restarts: the arithmetic of both."""

from ingestion.origin import Gap, without_gaps
from ingestion.run import _merged
from ingestion.supervise import Patience


def test_a_position_moves_behind_the_gaps_that_it_stands_in() -> None:
    position = {"t": {"0": 10, "1": 5}}
    gaps = [Gap("t", "0", 30, 40), Gap("t", "0", 10, 30), Gap("t", "1", 7, 9)]
    assert without_gaps(position, gaps) == {"t": {"0": 40, "1": 5}}
    assert position == {"t": {"0": 10, "1": 5}}


def test_a_gap_that_was_passed_or_not_reached_moves_nothing() -> None:
    assert without_gaps({"t": {"0": 30}}, [Gap("t", "0", 10, 30)]) == {"t": {"0": 30}}
    assert without_gaps({"t": {"0": 9}}, [Gap("t", "0", 10, 30)]) == {"t": {"0": 9}}


def test_a_gap_at_the_start_of_an_unread_partition_counts() -> None:
    assert without_gaps({"t": {"0": 9}}, [Gap("t", "1", 0, 4)]) == {"t": {"0": 9, "1": 4}}


def test_a_batch_keeps_the_offsets_of_topics_that_it_did_not_read() -> None:
    known = {"old": {"0": 7}, "t": {"0": 1, "1": 2}}
    assert _merged(known, {"t": {"1": 9}}) == {"old": {"0": 7}, "t": {"0": 1, "1": 9}}


def test_pauses_double_up_to_a_minute() -> None:
    patience = Patience(restarts=10, pause_seconds=2)
    assert [patience.pause(failures) for failures in range(1, 8)] == [2, 4, 8, 16, 32, 60, 60]
