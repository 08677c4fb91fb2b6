"""Repeat an action in the background while a block of code runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def repeated(action: Callable[[], object], every: float, join_seconds: float) -> Iterator[None]:
    """Run `action` every `every` seconds, ignoring exceptions.

    At the end of the block, wait for an action that still runs, at most `join_seconds`.
    """
    done = threading.Event()

    def loop() -> None:
        while not done.wait(every):
            with suppress(Exception):
                action()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(join_seconds)
