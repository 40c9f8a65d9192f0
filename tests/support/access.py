"""Access control of a broker around a store, with accounts or with users."""

from __future__ import annotations

from cometmq.access.certificates import with_certificates
from cometmq.access.gate import Gate
from cometmq.access.plain.accounts import PlainAccounts
from cometmq.access.plain.needs import PlainNeeds
from cometmq.access.users.accounts import UserAccounts
from cometmq.access.users.needs import UserNeeds
from cometmq.broker.access.control import AccessControl, RecordTopics
from cometmq.broker.cold_reads import ColdReads
from cometmq.remoting import TlsSettings
from cometmq.store import MessageStore

CLUSTER = "c"


def plain_control(
    accounts: PlainAccounts,
    store: MessageStore,
    reads: ColdReads,
    tls: TlsSettings | None = None,
    *,
    refused: int = 1,
) -> AccessControl:
    topics = RecordTopics(store, reads)
    senders = with_certificates(accounts, tls or TlsSettings())
    return AccessControl(senders, Gate(senders, refused), PlainNeeds(CLUSTER, topics.of_record))


def user_control(
    users: UserAccounts, store: MessageStore, reads: ColdReads, tls: TlsSettings | None = None
) -> AccessControl:
    topics = RecordTopics(store, reads)
    senders = with_certificates(users, tls or TlsSettings())
    needs = UserNeeds(CLUSTER, topics.of_record, topics.of_half, lambda group: True)
    return AccessControl(senders, Gate(senders, 16), needs)
