"""Taking the key or the value of records apart: one file a format.

A decoder gets the bytes of many records and gives Arrow columns. What does not fit is no exception:
the record keeps its place, its value is null, and a problem says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol, Self

import pyarrow as pa

Problems = dict[int, str]  # number of the record in the block -> what is wrong


@dataclass(frozen=True)
class Payloads:
    """Keys or values of records, as Python objects and as a column. Some decoders want one, some
    the other.
    """

    raw: list[bytes | None]  # null: a tombstone, or a record without a key
    column: pa.BinaryArray

    @classmethod
    def of(cls, raw: list[bytes | None]) -> Self:
        return cls(raw, pa.array(raw, pa.binary()))

    @classmethod
    def joined(cls, parts: Sequence["Payloads"]) -> Self:
        raw = list(chain.from_iterable(part.raw for part in parts))
        return cls(raw, pa.concat_arrays([part.column for part in parts]))

    def __len__(self) -> int:
        return len(self.raw)


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
