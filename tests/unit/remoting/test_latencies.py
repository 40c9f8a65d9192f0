"""Histograms, and the counts of responses by their codes."""

from __future__ import annotations

from time import perf_counter

import pytest

from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Request, Response
from cometmq.remoting import latencies as module
from cometmq.remoting.latencies import (
    OTHER,
    Histogram,
    Latencies,
    RequestKind,
    request_name,
    response_name,
)
from support.wire.memory_link import link

SEND, PULL = RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE


def test_a_value_belongs_to_the_first_bound_that_is_not_below_it() -> None:
    histogram = Histogram((1, 2.5, 10))
    for value in (0, 1, 1.1, 2.5, 10, 10.5):
        histogram.add(value)
    histogram.add(3, 5)

    assert histogram.counts() == [2, 2, 6, 1]
    assert histogram.sum == 25.1 + 15


def test_more_bounds_than_there_is_room_for_are_refused() -> None:
    assert Histogram(range(24)).counts() == [0] * 25
    with pytest.raises(ValueError, match="25 bounds, expected at most 24"):
        Histogram(range(25))


def test_responses_are_counted_by_codes_and_ends() -> None:
    counted = Latencies((1000, 60_000))
    now_s = perf_counter()
    counted.add(SEND, 0, now_s, 3)
    counted.add(SEND, 0, now_s - 10, 1)
    counted.add(PULL, ResponseCode.PULL_NOT_FOUND, now_s - 10, 1, True)
    counted.add(SEND, 0, now_s, 1, False, True)
    counted.add(SEND, -7, now_s, 1, False, False, True)

    found = {kind: histogram.counts() for kind, histogram in counted.all()}
    assert found == {
        RequestKind(SEND, 0, False, "success"): [3, 1, 0],
        RequestKind(PULL, ResponseCode.PULL_NOT_FOUND, True, "success"): [0, 1, 0],
        RequestKind(SEND, 0, False, "oneway"): [1, 0, 0],
        RequestKind(SEND, 2**15 - 1, False, "write_channel_failed"): [1, 0, 0],
    }


def test_unknown_codes_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Latencies()
    for code in (-5, 0, 9_999_999, 2**31 - 1):
        counted.add(code, 3, perf_counter())
    assert [kind.request_code for kind, _ in counted.all()] == [OTHER]

    monkeypatch.setattr(module, "KINDS_MAX", 3)
    for code in range(20):
        counted.add(SEND, code, perf_counter())
    kinds = {kind: sum(histogram.counts()) for kind, histogram in counted.all()}
    assert len(kinds) == 3
    assert kinds[RequestKind(OTHER, 0, False, "success")] == 4 + 18


def test_codes_have_the_names_of_rocketmq() -> None:
    assert request_name(310) == "send_message_v2"
    assert request_name(OTHER) == "_other"
    assert response_name(19) == "pull_not_found"
    assert response_name(31_000) == "_other"


async def test_a_server_counts_the_responses_of_handlers() -> None:
    counted = Latencies()

    def refuse(_: Request) -> Response:
        return Response(ResponseCode.NO_PERMISSION)

    async def late(_: Request) -> Response:
        return Response()

    def fail(_: Request) -> Response:
        raise ValueError

    _, client = link({10: refuse, 11: late, 12: fail}, latencies=counted)
    for code in (10, 11, 12, 13, 10):
        await client.call(code, timeout=60.0)

    found = {kind[:2]: sum(histogram.counts()) for kind, histogram in counted.all()}
    assert found == {(10, 16): 2, (11, 0): 1, (12, 1): 1, (13, 3): 1}
