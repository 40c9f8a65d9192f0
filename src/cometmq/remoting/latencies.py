# cython: annotation_typing=False
"""Counts how long the responses to requests take, by the codes of both.

A server has this only if it shows metrics. It counts each request, but those that one read of a
socket contains together, as the fast paths handle them, with one call.

Source: RemotingMetricsManager, RocketMQ 5.3 (buckets and labels).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Final, NamedTuple

from cometmq.protocol.codes import RequestCode, ResponseCode

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
"""The upper bounds of RocketMQ's buckets."""
KINDS_MAX: Final = 1_000
"""How many pairs of codes are counted apart. A server has fewer; it bounds unknown codes."""
_BOUNDS_MAX = 24
_CODES_MAX = 1 << 15
_HELD, _ONEWAY, _UNSENT = 1, 2, 4
_KNOWN = frozenset(map(int, RequestCode))
_RESPONSES = frozenset(map(int, ResponseCode))
OTHER: Final = -1
"""The request code of all requests that are not counted apart."""


class Histogram:
    """How many values were not larger than each bound, and their sum.

    Args:
        bounds: the upper bounds, in increasing order, 24 at most.

    Raises:
        ValueError: there are more bounds.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        if len(bounds) > _BOUNDS_MAX:
            raise ValueError(f"{len(bounds)} bounds, expected at most {_BOUNDS_MAX}")
        if not cython.compiled:
            self._bounds = [0.0] * _BOUNDS_MAX
            self._counts = [0] * (_BOUNDS_MAX + 1)
        self._size = len(bounds)
        for index, bound in enumerate(bounds):
            self._bounds[index] = bound
        for index in range(_BOUNDS_MAX + 1):
            self._counts[index] = 0
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, or ``count`` values of about this size."""
        index = 0
        while index < self._size and value > self._bounds[index]:
            index += 1
        self._counts[index] += count
        self.sum += value * count

    def counts(self) -> list[int]:
        """Return the counts of the buckets; the last one is of values above all bounds."""
        return [self._counts[index] for index in range(self._size + 1)]


class RequestKind(NamedTuple):
    """The common properties of requests that are counted together."""

    request_code: int
    response_code: int
    is_held: bool
    """Whether they were held: long polling."""
    result: str


class Latencies:
    """The histograms of a server's requests.

    Args:
        bounds: the upper bounds of the buckets.
        units_per_s: the unit of the bounds: 1000 for milliseconds.
    """

    def __init__(self, bounds: Sequence[float] = BOUNDS_MS, units_per_s: float = 1000.0) -> None:
        self._bounds = list(bounds)
        self._units_per_s = units_per_s
        self._table: dict[int, Histogram] = {}

    def add(
        self,
        request_code: int,
        response_code: int,
        began_s: float,
        count: int = 1,
        is_held: bool = False,
        is_oneway: bool = False,
        is_unsent: bool = False,
    ) -> None:
        """Count responses that are sent now.

        Args:
            request_code, response_code: the codes.
            began_s: when their requests arrived, by ``time.perf_counter``.
            count: how many there are.
            is_held: whether the requests were held.
            is_oneway: whether they get no response.
            is_unsent: whether the connection is closed.
        """
        if not 0 <= response_code < _CODES_MAX:
            response_code = _CODES_MAX - 1
        key = (
            (request_code * _CODES_MAX + response_code) * 8
            + (_HELD if is_held else 0)
            + (_ONEWAY if is_oneway else _UNSENT if is_unsent else 0)
        )
        histogram = self._table.get(key)
        if histogram is None:
            histogram = self._new(key, request_code)
        histogram.add((perf_counter() - began_s) * self._units_per_s, count)

    def all(self) -> Iterator[tuple[RequestKind, Histogram]]:
        """Yield what was counted."""
        for key, histogram in list(self._table.items()):
            codes, flags = divmod(key, 8)
            request_code, response_code = divmod(codes, _CODES_MAX)
            result = "oneway" if flags & _ONEWAY else "success"
            if flags & _UNSENT:
                result = "write_channel_failed"
            yield (
                RequestKind(request_code, response_code, bool(flags & _HELD), result),
                histogram,
            )

    def _new(self, key: int, request_code: int) -> Histogram:
        if len(self._table) >= KINDS_MAX or request_code not in _KNOWN:
            key = OTHER * _CODES_MAX * 8
        found = self._table.get(key)
        if found is None:
            found = self._table[key] = Histogram(self._bounds)
        return found


def request_name(code: int) -> str:
    """Return RocketMQ's name of a request code, as metrics have it."""
    return "_other" if code == OTHER else RequestCode(code).name.lower()


def response_name(code: int) -> str:
    """Return RocketMQ's name of a response code, as metrics have it."""
    return ResponseCode(code).name.lower() if code in _RESPONSES else "_other"
