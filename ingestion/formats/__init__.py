"""Taking the key or the value of records apart: one file a format.

A decoder gets the bytes of many records and gives Arrow columns. What does not fit is no exception:
the record keeps its place, its value is null, and a problem says why.
"""

from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

Payloads = list[bytes | None]  # null: a tombstone, or a record without a key
Problems = dict[int, str]  # number of the record in the block -> what is wrong


@dataclass(frozen=True)
class Field:
    """A value that a column wants from a record."""

    path: tuple[str, ...]  # below the key or the value; empty: all of it
    type: str  # as the stream file declares it
    epoch: str | None = None  # what a number means in a timestamp: seconds, milliseconds...


@dataclass
class Parsed:
    """The fields of a block of records. Problems are rare, so they are kept beside the columns."""

    columns: list[pa.Array]  # one a field, in its declared type; null where there is no such value
    misfits: list[Problems]  # one a field: what is there instead, such as `string, not int`
    unreadable: Problems = field(default_factory=dict)  # the bytes do not parse
    misshapen: Problems = field(default_factory=dict)  # they parse, but have no fields at all
    undeclared: set[str] = field(default_factory=set)  # in a sample: fields that nobody wants


class Decoder(Protocol):
    """One format, made for the fields of one stream."""

    def parse(self, payloads: Payloads) -> Parsed:
        """Take a block of records apart. It raises for no bytes whatever."""
        ...
