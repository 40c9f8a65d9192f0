"""The logs of several brokers together: their beginnings and their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from cometmq.spark.errors import DataLossError, OptionError, PlaceError
from cometmq.spark.logs.places import LogPlace, open_place
from cometmq.spark.logs.times import at_time, boundary, oldest_stored, stored_before
from cometmq.spark.logs.watermark import Follower
from cometmq.spark.offsets import LogOffsets

T = TypeVar("T")
EARLIEST, LATEST = -2, -1
_LOOKS_MAX = 5


class Logs:
    """One log per broker, by what offset documents call it.

    Args:
        paths: paths or URLs by broker, None for a broker without a name.
        empty: whether a log may have no file yet.
        walk: whether to find their ends by their records alone, whatever consume queues say.

    Raises:
        PlaceError: at a path there is no log.
    """

    def __init__(
        self,
        paths: Mapping[str | None, tuple[str, ...]],
        *,
        empty: bool = False,
        walk: bool = False,
    ) -> None:
        opened = [open_place(each, broker=broker, empty=empty) for broker, each in paths.items()]
        self.places: dict[str, LogPlace] = {place.name: place for place in opened}
        self._followers = {name: Follower(walk=walk) for name in self.places}

    def look(self) -> None:
        """Look which files there are now."""
        self.places = {name: place.again() for name, place in self.places.items()}

    def begins(self) -> LogOffsets:
        """Return where each log begins."""
        return {name: place.min_offset for name, place in self.places.items()}

    def ends(self) -> LogOffsets:
        """Return how far each log may be read now."""
        return {name: self._of(name, self._followers[name].now) for name in self.places}

    def walked_end(self, name: str, start: int) -> int:
        """Return how far whole records go from one of them on, whatever consume queues say."""
        return self._of(name, lambda place: Follower.from_record(place, start))

    def at_time(self, time_ms: int, ends: LogOffsets) -> dict[str, int | None]:
        """Return where records begin that were stored at a time or later, None for nowhere."""
        return {name: self._at_time(name, time_ms, end) for name, end in ends.items()}

    def _at_time(self, name: str, time_ms: int, end: int) -> int | None:
        return self._of(name, lambda place: at_time(place, time_ms, end))

    def oldest_stored(self, name: str) -> int | None:
        """Return the store time in ms of a log's oldest record, None if it has none."""
        return self._of(name, oldest_stored)

    def stored_before(self, name: str, end: int) -> int | None:
        """Return the store time in ms of the last record before an offset, None for nowhere."""
        return self._of(name, lambda place: stored_before(place, end))

    def boundary(self, name: str, offset: int, end: int) -> int:
        """Return where the first record at an offset or after it begins, ``end`` for nowhere."""
        return self._of(name, lambda place: boundary(place, offset, end))

    def resolve(self, named: Mapping[str, int], default: int, ends: LogOffsets) -> LogOffsets:
        """Return the places that -2, -1 and the lack of a place stand for.

        Args:
            named: places by broker; -2 is the log's begin, -1 its end.
            default: the place of logs that are not named.
            ends: how far each log may be read.

        Raises:
            OptionError: a broker is named that is none of these.
        """
        strange = sorted(named.keys() - self.places.keys())
        if strange:
            raise OptionError(f"met broker {strange[0]}, expected some of {', '.join(self.places)}")
        begins = self.begins()
        symbols = {EARLIEST: begins, LATEST: ends}
        found = {}
        for name in self.places:
            place = named.get(name, default)
            found[name] = symbols[place][name] if place in symbols else place
        return self.snapped(found, ends)

    def snapped(self, places: LogOffsets, ends: LogOffsets) -> LogOffsets:
        """Return where records begin that are at these places or next; others stay as they are.

        Args:
            places: places in logs.
            ends: how far each log may be read.
        """
        begins = self.begins()
        return {
            name: self.boundary(name, place, ends[name])
            if begins[name] < place < ends[name]
            else place
            for name, place in places.items()
        }

    def _of(self, name: str, ask: Callable[[LogPlace], T]) -> T:
        """Ask something of a log; look anew when a file is deleted meanwhile."""
        for _ in range(_LOOKS_MAX):
            try:
                return ask(self.places[name])
            except FileNotFoundError:
                self.look()
        raise PlaceError(f"log of {name}: files are deleted faster than they can be opened")


def check_known(offsets: LogOffsets, logs: Logs) -> None:
    """Raise DataLossError if offsets are of brokers whose logs are not read any more."""
    gone = sorted(offsets.keys() - logs.places.keys())
    if gone:
        raise DataLossError(f"log of {gone[0]}: the query has read it, and has no path for it now")
