"""Offsets by partition: one value for positions, starts, ends and batches."""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

Partition = tuple[str, int]  # a topic, and the number of one of its partitions

COMPRESSED = "zlib:"
PLAIN_CHARACTERS = 1_000  # longer ones are compressed: every commit keeps a copy


class Offsets(Mapping[Partition, int]):
    """The next offset to read, by partition. It never changes: `|` makes new ones."""

    def __init__(
        self, offsets: Mapping[Partition, int] | Iterable[tuple[Partition, int]] = ()
    ) -> None:
        pairs = offsets.items() if isinstance(offsets, Mapping) else offsets
        self._offsets: dict[Partition, int] = dict(sorted(pairs))

    def __getitem__(self, partition: Partition) -> int:
        return self._offsets[partition]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def __hash__(self) -> int:
        return hash(tuple(self._offsets.items()))

    def __repr__(self) -> str:
        return f"Offsets({self.to_json()})"

    def __or__(self, newer: Mapping[Partition, int]) -> "Offsets":
        """These, overlaid by the newer ones."""
        return Offsets({**self, **newer})

    @property
    def topics(self) -> list[str]:
        return [topic for topic, _ in groupby(self._offsets, lambda partition: partition[0])]

    def of(self, topics: Iterable[str]) -> "Offsets":
        """Those of some topics."""
        wanted = set(topics)
        return Offsets(
            {partition: offset for partition, offset in self.items() if partition[0] in wanted}
        )

    def raised_to(self, floor: Mapping[Partition, int]) -> "Offsets":
        """Each at least as high as in `floor`, whose partitions are added where unknown."""
        return self | {
            partition: max(self.get(partition, 0), offset) for partition, offset in floor.items()
        }

    def distance_to(self, end: Mapping[Partition, int]) -> int:
        """How many offsets lie between these and `end`."""
        return sum(max(offset - self.get(partition, 0), 0) for partition, offset in end.items())

    def to_json(self) -> str:
        """A list of offsets for each topic, null for a partition that is unknown."""
        found: dict[str, list[int | None]] = {}
        for (topic, number), offset in self.items():
            row = found.setdefault(topic, [])
            row += [None] * (number - len(row)) + [offset]
        return json.dumps(found, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | None) -> "Offsets":
        """Also from objects such as `{"topic": {"0": 7}}`, as older tables have them."""
        found: dict[Partition, int] = {}
        for topic, known in json.loads(text or "{}").items():
            pairs = known.items() if isinstance(known, dict) else enumerate(known)
            found |= {
                (topic, int(number)): offset for number, offset in pairs if offset is not None
            }
        return cls(found)

    def to_text(self) -> str:
        """As JSON, compressed where it is long: 1,000 partitions take about 6 KB."""
        text = self.to_json()
        if len(text) <= PLAIN_CHARACTERS:
            return text
        return COMPRESSED + b64encode(zlib.compress(text.encode(), 9)).decode()

    @classmethod
    def from_text(cls, text: str | None) -> "Offsets":
        if text and text.startswith(COMPRESSED):
            text = zlib.decompress(b64decode(text.removeprefix(COMPRESSED))).decode()
        return cls.from_json(text)


def resume_offsets(position: Offsets, begin: Offsets) -> Offsets:
    """Where to read on in the partitions that exist.

    A topic that the table knows nothing of begins with its oldest record. A partition that was
    added to a known topic begins with offset 0.
    """
    known = set(position.topics)
    return Offsets(
        {
            partition: position.get(partition, 0 if partition[0] in known else oldest)
            for partition, oldest in begin.items()
        }
    )
