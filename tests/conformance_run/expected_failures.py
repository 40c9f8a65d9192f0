"""Tests of the conformance suites that fail because the server does not have a feature yet.

All of them are strict: a listed test that passes is an error, so remove the lines of a feature
when you build it. They run in every tier, because they fail at the server's first refusal. Only
the tests in ``SLOW_TO_FAIL``, which wait for their timeout, are left to ``make test-all``
(``COMETMQ_TIER=all``): other tests of the same features run in every tier.
"""

from __future__ import annotations

from expectations import Expected

_POP = "the broker refuses POP requests"
_TIMERS = "the broker refuses timer messages and their recall"

EXPECTED = {
    "protocol": Expected(
        failing={
            "test_pop.py": _POP,
            "test_timers.py": _TIMERS,
        },
        passing=(
            "test_timers.py::test_answers_without_a_handle",
            "test_timers.py::test_timer_check_point",  # for slaves
        ),
    ),
}
"""By suite; see ``run.py``."""

SLOW_TO_FAIL = (
    "test_pop.py::test_acknowledge",
    "test_pop.py::test_acknowledged_message_does_not_come_again",
    "test_pop.py::test_answer_of_a_changed_invisible_time",
    "test_pop.py::test_batch_acknowledgement",
    "test_pop.py::test_broker_makes_no_dead_letters",
    "test_pop.py::test_consumers_of_a_group_share",
    "test_pop.py::test_dead_letter_after_the_last_retry",
    "test_pop.py::test_dead_letter_lives_again",
    "test_pop.py::test_dead_letter_of_a_popped_message",
    "test_pop.py::test_longer_invisible_time",
    "test_pop.py::test_offset_out_of_range_says_why",
    "test_pop.py::test_pop_retry_topic",
    "test_pop.py::test_popped_messages_are_invisible",
    "test_pop.py::test_receipt_after_a_change",
    "test_pop.py::test_receipt_of_another_pop",
    "test_pop.py::test_receipt_that_cannot_be_read",
    "test_pop.py::test_receipts_that_are_refused",
    "test_pop.py::test_retries_are_counted",
    "test_pop.py::test_shorter_invisible_time",
    "test_pop.py::test_unacknowledged_message_comes_again",
)
"""Expected failures that take five seconds and more each, two minutes together."""
