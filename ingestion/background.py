"""Work that goes on aside, while a block of code runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def repeated(action: Callable[[], object], every: float, join_seconds: float) -> Iterator[None]:
    """Do it every so many seconds. What it raises does not end it: the next time may go well.

    At the end of the block, the one under way is waited for, but no longer than `join_seconds`.
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
