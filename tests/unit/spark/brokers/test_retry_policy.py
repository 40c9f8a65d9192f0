"""Asking again: how often, and what for."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import ConnectError
from cometmq.spark.brokers.retry_policy import PASSING, RetryPolicy
from cometmq.spark.errors import GoneError, SourceError, UnreachableError

AWAY = ConnectError("nobody there")


class Server:
    """Fails so often, then answers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.asked = 0

    async def ask(self) -> str:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        return "yes"


async def test_an_answer_is_given_as_it_is() -> None:
    server = Server()
    assert await RetryPolicy(3, 0.001).run("it", server.ask) == "yes"
    assert server.asked == 1


async def test_a_server_that_comes_back_is_heard() -> None:
    busy = [ResponseError(code, "later") for code in sorted(PASSING)]
    server = Server(AWAY, *busy, AWAY)
    assert await RetryPolicy(len(busy) + 2, 0.0001).run("it", server.ask) == "yes"


@pytest.mark.parametrize("retries", [0, 1, 4])
async def test_it_ends_after_so_many_tries(retries: int) -> None:
    server = Server(*[AWAY] * 10)
    with pytest.raises(UnreachableError, match=r"bounds of t: no response after .*nobody there"):
        await RetryPolicy(retries, 0.0001).run("bounds of t", server.ask)
    assert server.asked == retries + 1


async def test_a_refusal_for_good_is_not_asked_again() -> None:
    server = Server(ResponseError(ResponseCode.NO_PERMISSION, "not you"))
    with pytest.raises(SourceError, match=r"bounds of t: refused: .*not you") as met:
        await RetryPolicy(5, 0.0001).run("bounds of t", server.ask)
    assert server.asked == 1
    assert type(met.value) is SourceError


async def test_our_own_errors_pass_through() -> None:
    server = Server(GoneError("topic t: gone"))
    with pytest.raises(GoneError, match=r"^topic t: gone$"):
        await RetryPolicy(5, 0.0001).run("it", server.ask)
    assert server.asked == 1


async def test_pauses_grow_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    monkeypatch.setattr("cometmq.spark.brokers.retry_policy.asyncio.sleep", sleep)
    with pytest.raises(UnreachableError):
        await RetryPolicy(8, 0.1).run("it", Server(*[AWAY] * 9).ask)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


@pytest.mark.usefixtures("virtual_time")
async def test_the_time_of_all_attempts_is_limited_also_if_a_task_group_has_failed() -> None:
    """On Python 3.11 such a group leaves its task marked as cancelled."""

    async def refused() -> None:
        raise AWAY

    async def ask() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(refused())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    with pytest.raises(UnreachableError, match=r"it: no response after 3 tries, .*nobody there"):
        await RetryPolicy(None, 0.01, 0.05).run("it", ask)


@pytest.mark.usefixtures("virtual_time")
async def test_an_attempt_that_hangs_ends_with_the_time() -> None:
    hangs: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask() -> None:
        await hangs

    with pytest.raises(UnreachableError, match=r"after the only attempt.*within 0\.01 s"):
        await RetryPolicy(None, 0.01, 0.01).run("it", ask)
    assert hangs.cancelled()
    assert len(asyncio.all_tasks()) == 1, "no attempt is left"
