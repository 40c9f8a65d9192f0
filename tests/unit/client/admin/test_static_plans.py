"""Plans of static topics, without a server."""

from __future__ import annotations

import pytest

from cometmq.client.admin.static_plans import add_queues, check_sizes, empty_part
from cometmq.client.errors import ClientError


def test_a_mapping_that_a_broker_would_refuse_is_refused_before_any_broker_gets_a_part() -> None:
    parts = {name: empty_part("T", name) for name in ("a", "b")}
    add_queues(parts, parts, 0, 14_000)
    check_sizes(parts)
    add_queues(parts, parts, 14_000, 24_000)

    with pytest.raises(ClientError, match=r"of topic T at broker a would have [0-9]+ bytes"):
        check_sizes(parts)
