"""The timeline of a trace."""

from __future__ import annotations

from cometmq.client.admin.messages import TraceEvent
from cometmq.client.hooks import ConsumeEnd
from cometmq.client.trace.records import ConsumeAfter, ConsumeBefore, Publish
from cometmq.console.messages.traces import BAR_WIDTH_MIN, timeline_of

SENT = Publish(1_000_000, None, "shop", "orders", "ID", None, None, "127.0.0.1:1", 1, 100)
BEGUN = ConsumeBefore(1_000_400, None, "clerks", "R", "ID", 2, None)
FAILED = ConsumeAfter("R", "ID", 600, False, None, ConsumeEnd.EXCEPTION, 1_001_000, "clerks")


def test_steps_are_in_order_of_time_and_drawn_in_proportion() -> None:
    events = [TraceEvent("10.0.0.2", FAILED, BEGUN), TraceEvent("10.0.0.1", SENT)]
    (sent, consumed), whole_ms = timeline_of(events)

    assert whole_ms == 1000
    assert (sent.event, sent.result, sent.after_ms) == ("send", "stored", 0)
    assert (sent.bar_from, sent.bar_width) == (0.0, 10.0)
    assert (consumed.result, consumed.is_failure, consumed.retry) == ("exception", True, 2)
    assert (consumed.bar_from, consumed.bar_width) == (40.0, 60.0)


def test_a_start_without_an_end_and_an_end_without_a_time_are_shown() -> None:
    old = ConsumeAfter("Q", "ID", 5, True, None)  # as clients of RocketMQ 4.4 record it
    events = [TraceEvent("h", SENT), TraceEvent("h", BEGUN), TraceEvent("h", old)]
    steps, whole_ms = timeline_of(events)

    assert whole_ms == 400
    by_result = {each.result: each for each in steps}
    assert by_result["no end recorded"].cost_ms is None
    assert by_result["no end recorded"].bar_from == 100 - BAR_WIDTH_MIN
    assert by_result["success"].after_ms == 0
    assert timeline_of([]) == ([], 0)
