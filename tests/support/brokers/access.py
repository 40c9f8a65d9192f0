"""Access control of a broker with a store: plain accounts, or users."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import get_type_hints

from cometmq.access.certificates import with_certificates
from cometmq.access.gate import Gate
from cometmq.access.plain.accounts import PlainAccounts
from cometmq.access.rights import Kind, Lookups, RequestNeeds, Rights, TopicOfRecord
from cometmq.access.users.accounts import UserAccounts
from cometmq.broker.access import unserved
from cometmq.broker.access.control import AccessControl, RecordTopics
from cometmq.broker.assembly import Features
from cometmq.broker.cold_reads import ColdReads
from cometmq.remoting import TlsSettings
from cometmq.store import MessageStore

CLUSTER = "c"


def tables_of_rights() -> dict[str, Mapping[int, Rights]]:
    """Return what the requests of each feature need, and those that no broker serves."""
    modules = {feature.__module__ for feature in get_type_hints(Features).values()}
    places = [name.replace(".feature", ".rights") for name in sorted(modules)]
    found = [name for name in places if importlib.util.find_spec(name) is not None]
    tables = {name: importlib.import_module(name).RIGHTS for name in found}
    return {unserved.__name__: unserved.RIGHTS, **tables}


def stated_needs(
    kind: Kind,
    topic_of_record: TopicOfRecord,
    topic_of_half: TopicOfRecord = lambda offset: None,
    group_exists: Callable[[str], bool] = lambda group: True,
) -> RequestNeeds:
    """Return what reads the needs of requests, with those of all features."""
    needs = RequestNeeds(kind, Lookups(CLUSTER, topic_of_record, topic_of_half, group_exists))
    for rights in tables_of_rights().values():
        needs.state(rights)
    return needs


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
    needs = stated_needs(Kind.PLAIN, topics.of_record)
    return AccessControl(senders, Gate(senders, refused), needs)


def user_control(
    users: UserAccounts, store: MessageStore, reads: ColdReads, tls: TlsSettings | None = None
) -> AccessControl:
    topics = RecordTopics(store, reads)
    senders = with_certificates(users, tls or TlsSettings())
    needs = stated_needs(Kind.USERS, topics.of_record, topics.of_half)
    return AccessControl(senders, Gate(senders, 16), needs)
