"""Who writes to a stream's table: a lease in the catalog, and how others get a turn.

The lease is a courtesy. It gives a second writer a clear message early, and lets a replay take its
turn while a stream runs. What keeps a table right is the commit itself (ledger.py), which Iceberg
refuses when anyone else has committed. The lease and the wish for a turn are properties of the
bronze namespace, so they work between machines and leave no trace in the tables. The same goes for
the request to stop.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import psutil

from ingestion.background import repeated
from ingestion.catalog import open_catalog
from ingestion.errors import HeadwaterError
from ingestion.settings import Settings

NAMESPACE = "bronze"
INGEST = "ingest"
LEASE_SECONDS = 30.0
LOOK_SECONDS = 0.5  # how often a holder looks for wishes, and others for their turn
WAIT_SECONDS = 180.0


@dataclass(frozen=True)
class Claim:
    """A lease, or a wish for a turn. It ends by itself unless it is renewed."""

    id: str
    purpose: str  # ingest, replay, backfill
    host: str
    pid: int
    started: float  # of the process, so that another process with its pid is not taken for it
    until: float
    lent_to: str | None = None

    @property
    def who(self) -> str:
        return f"`headwater {self.purpose}` with pid {self.pid} on {self.host}"

    @property
    def is_alive(self) -> bool:
        if self.until < time.time():
            return False
        if self.host != socket.gethostname():
            return True
        try:
            return abs(psutil.Process(self.pid).create_time() - self.started) < 1
        except psutil.NoSuchProcess:
            return False


class Lender(Protocol):
    """A writer that can stand back between two commits."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


def _claim(purpose: str) -> Claim:
    me = psutil.Process()
    until = time.time() + LEASE_SECONDS
    return Claim(
        uuid.uuid4().hex, purpose, socket.gethostname(), os.getpid(), me.create_time(), until
    )


@dataclass(frozen=True)
class Claims:
    """What is claimed on a stream now."""

    lease: Claim | None
    wish: Claim | None
    stop: str | None  # the id of the lease that someone asked to end


class Board:
    """The claims on one stream, as the catalog holds them."""

    def __init__(self, settings: Settings, stream: str) -> None:
        self._catalog = open_catalog(settings)
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        self._lease, self._wish, self._stop = (
            f"headwater.{kind}.{stream}" for kind in ("lease", "turn", "stop")
        )

    def claims(self) -> Claims:
        found = self._catalog.load_namespace_properties(NAMESPACE)
        lease, wish = (
            Claim(**json.loads(found[key])) if found.get(key) else None
            for key in (self._lease, self._wish)
        )
        return Claims(
            lease if lease and lease.is_alive else None,
            wish if wish and wish.is_alive else None,
            found.get(self._stop),
        )

    def put_lease(self, claim: Claim) -> None:
        self._put(self._lease, claim)

    def put_wish(self, claim: Claim) -> None:
        self._put(self._wish, claim)

    def ask_to_stop(self, holder: Claim) -> None:
        self._catalog.update_namespace_properties(NAMESPACE, updates={self._stop: holder.id})

    def give_back(self, claim: Claim) -> None:
        """Remove this claim, and no other."""
        now = self.claims()
        keys = set()
        if now.lease and now.lease.id == claim.id:
            keys |= {self._lease, self._stop}
        if now.wish and now.wish.id == claim.id:
            keys.add(self._wish)
        if keys:
            self._catalog.update_namespace_properties(NAMESPACE, removals=keys)

    def _put(self, key: str, claim: Claim) -> None:
        renewed = replace(claim, until=time.time() + LEASE_SECONDS)
        self._catalog.update_namespace_properties(
            NAMESPACE, updates={key: json.dumps(asdict(renewed))}
        )


class Lease:
    """The lease of a stream, kept alive, and lent to those who wish for a turn."""

    def __init__(self, board: Board, purpose: str) -> None:
        self.lender: Lender | None = None  # set it, and others may have turns
        self.stop_asked = False
        self.taken_by: Claim | None = None  # who has it since it was lost
        self._board = board
        self._claim = _claim(purpose)
        self._renewed = 0.0
        self._released = False
        self._writing = threading.Lock()  # a renewal must not come after the release

    def renew(self, lent_to: str | None = None) -> None:
        with self._writing:
            if self._released:
                return
            self._board.put_lease(replace(self._claim, lent_to=lent_to))
            self._renewed = time.monotonic()

    def release(self) -> None:
        with self._writing, suppress(Exception):  # else it ends by itself
            self._released = True
            self._board.give_back(self._claim)

    def look(self) -> Claims:
        """Check whether another process took it, because this one slept longer than it lasts."""
        now = self._board.claims()
        if now.lease and now.lease.id != self._claim.id:
            self.taken_by = now.lease
        self.stop_asked = self.stop_asked or now.stop == self._claim.id
        return now

    def tend(self) -> None:
        """Keep the lease; when someone wishes for a turn, stand back until it is over."""
        if self._released:
            return
        wish = self.look().wish
        if self.taken_by:
            return
        if time.monotonic() > self._renewed + LEASE_SECONDS / 3:
            self.renew()
        if wish is None or self.lender is None:
            return
        self.lender.pause()
        try:
            while (still := self._board.claims().wish) and still.id == wish.id:
                self.renew(lent_to=wish.id)
                time.sleep(LOOK_SECONDS)
        finally:
            self.lender.resume()
            self.renew()


@contextmanager
def hold(settings: Settings, stream: str, purpose: str = INGEST) -> Iterator[Lease]:
    """The lease of a stream while the block runs; refused while a living process has it."""
    board = Board(settings, stream)
    if holder := board.claims().lease:
        raise HeadwaterError(
            f"stream {stream} is being written by {holder.who}",
            f"stop that one first; if it is dead, its lease ends within {LEASE_SECONDS:.0f} s",
        )
    lease = Lease(board, purpose)
    lease.renew()
    try:
        # A catalog that is unreachable for a moment must not stop a writer: its commits decide.
        with repeated(lease.tend, LOOK_SECONDS, LEASE_SECONDS):
            yield lease
    finally:
        lease.release()


def ask_to_stop(settings: Settings, stream: str, seconds: float) -> Claim | None:
    """Ask the ingestion of a stream to end, and wait for it. Returns who it was, if anyone."""
    board = Board(settings, stream)
    holder = board.claims().lease
    if holder is None:
        return None
    if holder.purpose != INGEST:
        raise HeadwaterError(
            f"stream {stream} is being written by {holder.who}, which ends by itself",
            "wait for it, or end that process",
        )
    board.ask_to_stop(holder)
    end = time.monotonic() + seconds
    while (now := board.claims().lease) and now.id == holder.id:
        if time.monotonic() > end:
            raise HeadwaterError(
                f"stream {stream} did not stop within {seconds:.0f} s; {holder.who} writes it",
                "it stops after the batch under way; look at its log, or end that process",
            )
        time.sleep(LOOK_SECONDS / 2)
    return holder


@contextmanager
def turn(settings: Settings, stream: str, purpose: str) -> Iterator[None]:
    """The right to write once: alone under the lease, or lent by the stream that runs."""
    board = Board(settings, stream)
    now = board.claims()
    if (holder := now.lease) is None:
        with hold(settings, stream, purpose):
            yield
        return
    wish = _claim(purpose)
    if now.wish:
        raise _lent(stream, now.wish)
    board.put_wish(wish)
    try:
        _wait_for_turn(board, wish, holder, stream)
        with repeated(lambda: board.put_wish(wish), LOOK_SECONDS, LEASE_SECONDS):
            yield
    finally:
        board.give_back(wish)


def _lent(stream: str, other: Claim) -> HeadwaterError:
    return HeadwaterError(f"stream {stream} is lent to {other.who}", "try again when that is done")


def _wait_for_turn(board: Board, wish: Claim, holder: Claim, stream: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        now = board.claims()
        if now.lease is None or now.lease.lent_to == wish.id:
            return
        if now.wish is None:
            board.put_wish(wish)
        elif now.wish.id != wish.id:  # someone else's wish took the place of this one
            raise _lent(stream, now.wish)
        time.sleep(LOOK_SECONDS)
    raise HeadwaterError(
        f"stream {stream} is being written by {holder.who}, which gave no turn in "
        f"{WAIT_SECONDS:.0f} s",
        "look at what it does, or stop it and try again",
    )
