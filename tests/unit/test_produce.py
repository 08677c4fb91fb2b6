import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from headwater.produce import TICKERS, Shares, spread_clock, stock_records

END = datetime(2026, 1, 5, 21, 0, tzinfo=UTC)


def make(rows: int = 5000, seed: int = 3, shares: Shares | None = None) -> list:
    return list(stock_records(rows, seed, shares or Shares(), spread_clock(rows, END)))


def test_the_same_seed_gives_the_same_records() -> None:
    shares = Shares(bad=0.1, late=0.1, duplicates=0.1)
    assert make(shares=shares) == make(shares=shares)
    assert make(shares=shares) != make(seed=4, shares=shares)


def test_keys_and_values_are_json_for_seventeen_tickers() -> None:
    records = make()
    assert len(TICKERS) == 17
    assert {json.loads(record.key)["ticker"] for record in records} == set(TICKERS)
    value = json.loads(records[0].value)
    assert set(value) == {"event_time", "ticker", "price"}


def test_shares_come_out_as_asked() -> None:
    made = Counter(record.kind for record in make(20_000, shares=Shares(0.1, 0.2, 0.3)))
    errors = sum(count for kind, count in made.items() if kind.endswith("_error"))
    assert abs(errors / 20_000 - 0.1) < 0.01
    assert abs(made["late"] / 20_000 - 0.2) < 0.01
    assert abs(made["duplicate"] / 20_000 - 0.3) < 0.01


def test_a_duplicate_repeats_an_earlier_record() -> None:
    records = make(shares=Shares(duplicates=0.2))
    seen = set()
    for record in records:
        if record.kind == "duplicate":
            assert (record.key, record.value) in seen
        seen.add((record.key, record.value))


def test_prices_walk_in_small_steps() -> None:
    prices = [
        json.loads(record.value)["price"]
        for record in make()
        if json.loads(record.key)["ticker"] == "AAPL"
    ]
    steps = [abs(b / a - 1) for a, b in pairwise(prices)]
    assert max(steps) < 0.005
    assert len(set(prices)) > len(prices) / 4


def test_event_times_fill_the_trading_day_that_ends_now() -> None:
    times = [datetime.fromisoformat(json.loads(record.value)["event_time"]) for record in make()]
    assert times == sorted(times)
    assert times[0] == END - timedelta(hours=6, minutes=30)
    assert times[-1] < END
