"""Transactions of all clients that have them: commit, roll back, checks, checks by other members.

The C++ client has them too, but neither of its packages for Python makes them available.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import kit
import pytest
from programs import GO, JAVA_49, JAVA_53, OURS, Client, Kind, Program
from servers import Cluster, Settings
from wire import Connection

MakeTopic = Callable[..., str]
KINDS = (JAVA_49, JAVA_53, GO, OURS)
SETTINGS: Settings = {
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1000,
}
DECIDED_S = 240.0
CHECKS_GROUP = "CID_RMQ_SYS_TRANS"


@pytest.fixture(scope="module")
def cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that soon checks undecided transactions."""
    with Cluster(target, tmp_path_factory.mktemp("cluster"), SETTINGS) as servers:
        yield servers


def transact(program: Program, group: str, topic: str, bodies: list[str]) -> None:
    results = program.ask(
        "transaction", group=group, topic=topic, messages=[{"body": body} for body in bodies]
    )
    assert [result["status"] for result in results] == ["SEND_OK"] * len(bodies)


def delivered(broker: Connection, topic: str) -> Counter[str]:
    """What consumers find, and how often."""
    found: Counter[str] = Counter()
    for queue in range(4):
        count = kit.max_offset(broker, topic, queue)
        messages = kit.read_queue(broker, "readers", topic, count, queue=queue) if count else []
        found += Counter(message.body.decode() for message in messages)
    return found


def await_exactly(broker: Connection, topic: str, wanted: set[str], target: str) -> None:
    """Wait until all of these are there; on our broker once, when no transaction is open."""
    kit.eventually(lambda: delivered(broker, topic).keys() >= wanted, timeout=DECIDED_S, pause=0.2)
    if target != "comet":  # RocketMQ delivers again what it checks again
        assert delivered(broker, topic).keys() == wanted
        return

    def none_is_open() -> bool:
        answer = kit.query_offset(broker, CHECKS_GROUP, kit.HALF_TOPIC)
        end = kit.max_offset(broker, kit.HALF_TOPIC)
        return answer.code == 0 and answer.number("offset") == end

    kit.eventually(none_is_open, timeout=DECIDED_S, pause=0.2)
    assert delivered(broker, topic) == dict.fromkeys(wanted, 1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_transactions_end_as_the_producer_and_its_checks_decide(
    kind: Kind,
    clients: Callable[[Kind], Client],
    make_topic: MakeTopic,
    broker: Connection,
    target: str,
) -> None:
    topic, program = make_topic(), clients(kind).main
    fates = ("commit", "rollback", "ask commit", "ask rollback", "twice commit")
    bodies = [f"{fate} {number} größer" for number in range(4) for fate in fates]
    wanted = {body for body in bodies if "commit" in body}

    transact(program, kit.unique("transactions"), topic, bodies)
    await_exactly(broker, topic, wanted, target)

    checked = Counter(program.checked)
    for body in bodies:
        fate = body.split()[0]
        least = {"ask": 1, "twice": 2}.get(fate, 0)
        assert checked[body] >= least, body


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_another_producer_of_the_group_answers_for_one_that_was_killed(
    kind: Kind,
    clients: Callable[[Kind], Client],
    make_topic: MakeTopic,
    broker: Connection,
    target: str,
) -> None:
    topic, group, client = make_topic(), kit.unique("transactions"), clients(kind)
    left = [f"other commit {number}" for number in range(5)]
    dying, heir = client.more_programs(2)
    transact(dying, group, topic, left)
    dying.kill()
    transact(heir, group, topic, ["commit of the heir"])  # now the broker knows it

    wanted = {*left, "commit of the heir"}
    await_exactly(broker, topic, wanted, target)

    assert set(heir.checked) >= set(left)
