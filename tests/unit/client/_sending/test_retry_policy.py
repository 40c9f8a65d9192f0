"""The consequences of a failed attempt for the next one, and for the error in the end."""

from __future__ import annotations

import pytest

from cometmq.broker.durability.wait import NO_MASTER_ANY_MORE
from cometmq.client._sending.retry_policy import (
    BackOff,
    Pauses,
    RetryPolicy,
    SendAttempts,
    attempt_of,
    loop_time,
)
from cometmq.client.errors import NoMasterError, SendFailedError
from cometmq.model.errors import CometError, ProtocolError, ResponseError
from cometmq.remoting import (
    CallTimeoutError,
    ConnectError,
    ConnectionLostError,
    TooManyCallsError,
)

AWAITED = RetryPolicy(2, 0, frozenset({1, 14}), retry_not_stored=True, retry_when_full=True)
BEGUN = RetryPolicy(2, 2, frozenset(), retry_not_stored=False, retry_when_full=False)


@pytest.mark.parametrize(
    ("error", "awaited", "begun"),
    [
        (ResponseError(1, ""), True, False),
        (ResponseError(14, ""), True, True),
        (ResponseError(14, NO_MASTER_ANY_MORE), True, True),
        (ResponseError(13, ""), False, False),
        (ProtocolError("unreadable"), False, False),
        (CallTimeoutError("late"), True, True),
        (ConnectError("refused"), True, True),
        (ConnectionLostError("cut"), True, True),
        (NoMasterError("none"), True, True),
        (TooManyCallsError("full"), True, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_which_failures_allow_another_try(error: CometError, *, awaited: bool, begun: bool) -> None:
    assert AWAITED.allows_retry(error) is awaited
    assert BEGUN.allows_retry(error) is begun


@pytest.mark.parametrize(
    ("error", "maybe_stored"),
    [
        (ResponseError(1, ""), False),
        (ResponseError(14, ""), False),
        (ResponseError(14, NO_MASTER_ANY_MORE), True),
        (ConnectError("refused"), False),
        (NoMasterError("none"), False),
        (TooManyCallsError("full"), False),
        (CallTimeoutError("late"), True),
        (ConnectionLostError("cut"), True),
        (ProtocolError("unreadable"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_which_failures_leave_the_message_perhaps_stored(
    error: CometError, *, maybe_stored: bool
) -> None:
    attempt = attempt_of("a", error)

    assert (attempt.broker_name, attempt.maybe_stored) == ("a", maybe_stored)
    assert SendFailedError("t", [attempt]).maybe_stored is maybe_stored


def test_one_try_that_is_perhaps_stored_is_enough() -> None:
    attempts = [attempt_of("a", CallTimeoutError("late")), attempt_of("a", ConnectError("no"))]

    assert SendFailedError("t", attempts).maybe_stored
    assert not SendFailedError("t", []).maybe_stored


@pytest.mark.parametrize(("is_fixed", "retries"), [(False, 2), (True, 0)])
async def test_each_attempt_that_has_stored_the_message_uses_up_a_retry(
    *, is_fixed: bool, retries: int
) -> None:
    attempts = SendAttempts("t", AWAITED, BackOff(loop_time() + 3600, Pauses()), is_fixed=is_fixed)
    stopping, superseded = ResponseError(14, "stopping"), ResponseError(14, NO_MASTER_ANY_MORE)

    assert all(attempts.fail("a", stopping) for _ in range(9))
    assert [attempts.fail("a", superseded) for _ in range(retries + 1)] == [
        *[True] * retries,
        False,
    ]
    failure = attempts.error()
    assert isinstance(failure, SendFailedError)
    assert failure.maybe_stored
    assert [str(each.error) for each in failure.attempts].count(str(superseded)) == retries + 1
