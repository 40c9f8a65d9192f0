"""Access control of a broker around a store, with accounts or with users."""

from __future__ import annotations

from cometmq.access.gate import Gate
from cometmq.access.plain.accounts import PlainAccounts
from cometmq.access.plain.needs import PlainNeeds
from cometmq.access.users.accounts import UserAccounts
from cometmq.access.users.needs import UserNeeds
from cometmq.broker.access.control import AccessControl, RecordTopics
from cometmq.broker.cold_reads import ColdReads
from cometmq.store import MessageStore

CLUSTER = "c"


def plain_control(
    accounts: PlainAccounts, store: MessageStore, reads: ColdReads, *, refused: int = 1
) -> AccessControl:
    topics = RecordTopics(store, reads)
    return AccessControl(accounts, Gate(accounts, refused), PlainNeeds(CLUSTER, topics.of_record))


def user_control(users: UserAccounts, store: MessageStore, reads: ColdReads) -> AccessControl:
    topics = RecordTopics(store, reads)
    needs = UserNeeds(CLUSTER, topics.of_record, topics.of_half, lambda group: True)
    return AccessControl(users, Gate(users, 16), needs)
