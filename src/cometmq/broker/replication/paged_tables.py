"""Tables of another broker that may be larger than a frame, requested page by page.

A broker that knows no pages, such as one of RocketMQ 5.3, responds with the whole table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from cometmq.broker.table_pages import PAGE_ENTRIES_MAX
from cometmq.model.errors import CometError, ProtocolError
from cometmq.protocol.bodies.base import Body
from cometmq.protocol.bodies.group import ConsumerOffsetSerializeWrapper, SubscriptionGroupWrapper
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.table_page import (
    GetAllConsumerOffsetRequest,
    GetAllSubscriptionGroupRequest,
    GetAllTopicConfigRequest,
)
from cometmq.remoting import RemotingClient, check
from cometmq.remoting.slices import decode

PAGES_MAX: Final = 10_000
CHANGES_MAX: Final = 5
"""How often a table may change while it is copied."""

B = TypeVar("B", bound=Body)


class PagedTable(msgspec.Struct, Generic[B], frozen=True):
    """A table that is requested page by page."""

    code: int
    kind: type[B]
    header: Callable[[int, str], Header]
    """Returns the header of a request for the entries of a version from a number on."""
    total: str
    """The field of a response that says how many entries there are."""
    entries: Callable[[B], dict[str, Any]]
    """Returns the entries of a body that are counted."""
    version: Callable[[B], str]
    """Returns the version of a body as JSON; empty if the pages may be of several versions."""
    add_others: Callable[[B, B], None] = lambda whole, page: None
    """Adds what else a page has to the pages before it."""


def _add_forbidden(whole: SubscriptionGroupWrapper, page: SubscriptionGroupWrapper) -> None:
    whole.forbidden_table = {**(whole.forbidden_table or {}), **(page.forbidden_table or {})}


def _add_mappings(whole: TopicConfigSerializeWrapper, page: TopicConfigSerializeWrapper) -> None:
    whole.topic_queue_mapping_detail_map = {
        **(whole.topic_queue_mapping_detail_map or {}),
        **(page.topic_queue_mapping_detail_map or {}),
    }
    # The version stays that of the first page: if a mapping has changed since, the next copy of the
    # table sees another version.


def _version_text(body: TopicConfigSerializeWrapper | SubscriptionGroupWrapper) -> str:
    return body.data_version.encode().decode()


def topics_page(first: int, version: str, *, mappings: str = "") -> GetAllTopicConfigRequest:
    """Return the header of a request for topics.

    Args:
        first: the number of topics that are here.
        version: their version.
        mappings: the version of the mappings that are here; pages leave them out if it is newest.
    """
    return GetAllTopicConfigRequest(
        topic_seq=first,
        max_topic_num=PAGE_ENTRIES_MAX,
        data_version=version,
        mapping_data_version=mappings or None,
    )


TOPICS: Final = PagedTable(
    code=RequestCode.GET_ALL_TOPIC_CONFIG,
    kind=TopicConfigSerializeWrapper,
    header=topics_page,
    total="totalTopicNum",
    entries=lambda body: body.topic_config_table,
    version=_version_text,
    add_others=_add_mappings,
)
GROUPS: Final = PagedTable(
    code=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    kind=SubscriptionGroupWrapper,
    header=lambda first, version: GetAllSubscriptionGroupRequest(
        group_seq=first, max_group_num=PAGE_ENTRIES_MAX, data_version=version
    ),
    total="totalGroupNum",
    entries=lambda body: body.subscription_group_table,
    version=_version_text,
    add_others=_add_forbidden,
)
OFFSETS: Final = PagedTable(
    code=RequestCode.GET_ALL_CONSUMER_OFFSET,
    kind=ConsumerOffsetSerializeWrapper,
    header=lambda first, _: GetAllConsumerOffsetRequest(
        offset_seq=first, max_offset_num=PAGE_ENTRIES_MAX
    ),
    total="totalOffsetNum",
    entries=lambda body: body.offset_table,
    version=lambda body: "",  # offsets change all the time, and are merged
)


async def fetch_table(
    client: RemotingClient,
    address: str,
    table: PagedTable[B],
    is_wanted: Callable[[], bool] = lambda: True,
    *,
    timeout: float,
) -> B | None:
    """Request a table; the copy begins again if it has changed between two pages.

    Args:
        client: sends the requests.
        address: the broker that has the table.
        table: the table.
        is_wanted: returns whether the table is still wanted.
        timeout: of one request, in seconds.

    Returns:
        None if the table is not wanted any more.

    Raises:
        CometError: the broker does not respond, refuses, or responds with something else.
    """
    whole: B | None = None
    version, changes = "", 0
    for _ in range(PAGES_MAX):
        header = table.header(0 if whole is None else len(table.entries(whole)), version)
        response = check(await client.call(address, table.code, header, timeout=timeout))
        page = await decode(table.kind, response.body)
        if not is_wanted():
            return None
        found = table.version(page)
        if whole is None:
            whole, version = page, found
        elif found == version:
            table.entries(whole).update(table.entries(page))
            table.add_others(whole, page)
        else:  # the page is the first one of another version
            changes += 1
            if changes > CHANGES_MAX:
                raise CometError(f"a table has changed {changes} times while it was copied")
            whole, version = page, found
        total = response.fields.get(table.total, "")
        if not total.isdecimal() or not table.entries(page):
            return whole
        if len(table.entries(whole)) >= int(total):
            return whole
    raise ProtocolError(f"met more than {PAGES_MAX} pages of a table, expected fewer")
