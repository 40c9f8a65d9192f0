"""The logs of several brokers together: their beginnings and their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from cometmq.spark.errors import DataLossError, OptionError, PlaceError
from cometmq.spark.logs.files import Log, open_log
from cometmq.spark.logs.times import boundary
from cometmq.spark.logs.watermark import Follower
from cometmq.spark.offsets import LogOffsets

T = TypeVar("T")
EARLIEST, LATEST = -2, -1
_LOOKS_MAX = 5


class Logs:
    """One log per broker, by its name in offset documents.

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
        opened = [open_log(each, broker=broker, empty=empty) for broker, each in paths.items()]
        self.by_name: dict[str, Log] = {log.name: log for log in opened}
        self._followers = {name: Follower(walk=walk) for name in self.by_name}

    def look(self) -> None:
        """List the files that there are now."""
        self.by_name = {name: log.again() for name, log in self.by_name.items()}

    def begins(self) -> LogOffsets:
        """Return where each log begins."""
        return {name: log.min_offset for name, log in self.by_name.items()}

    def ends(self) -> LogOffsets:
        """Return how far each log may be read now."""
        return {name: self.ask(name, self._followers[name].now) for name in self.by_name}

    def resolve(self, named: Mapping[str, int], default: int, ends: LogOffsets) -> LogOffsets:
        """Return the offsets that -2, -1 and the lack of an offset stand for.

        An offset within a record becomes the begin of the next one.

        Args:
            named: offsets by broker; -2 is the log's begin, -1 its end.
            default: the offset of logs that are not named.
            ends: how far each log may be read.

        Raises:
            OptionError: a broker is named that is none of these.
        """
        strange = sorted(named.keys() - self.by_name.keys())
        if strange:
            met = f"met broker {strange[0]}, expected some of {', '.join(self.by_name)}"
            raise OptionError(met)
        begins = self.begins()
        found = {}
        for name, end in ends.items():
            offset = named.get(name, default)
            offset = {EARLIEST: begins[name], LATEST: end}.get(offset, offset)
            is_within = begins[name] < offset < end
            found[name] = self.ask(name, boundary, offset, end) if is_within else offset
        return found

    def ask(self, name: str, function: Callable[..., T], *values: object) -> T:
        """Return a function of a log; list its files anew when one is deleted meanwhile."""
        for _ in range(_LOOKS_MAX):
            try:
                return function(self.by_name[name], *values)
            except FileNotFoundError:
                self.look()
        raise PlaceError(f"log of {name}: files are deleted faster than they can be opened")


def check_known(offsets: LogOffsets, logs: Logs) -> None:
    """Raise DataLossError if offsets are of brokers whose logs are not read any more."""
    gone = sorted(offsets.keys() - logs.by_name.keys())
    if gone:
        raise DataLossError(f"log of {gone[0]}: the query has read it, and has no path for it now")
