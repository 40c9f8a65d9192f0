"""Whether ``cometmq admin message entries`` says that an entry matches a subscription."""

from __future__ import annotations

import pytest

from cometmq.cli.admin.message import _matches
from cometmq.protocol.bodies.broker_admin import ConsumeQueueData
from cometmq.protocol.bodies.heartbeat import SubscriptionData

PAID = 3433164
WITHOUT_EXT = ConsumeQueueData(tags_code=PAID)
OF_TAG = SubscriptionData(sub_string="paid", code_set=[PAID])
OF_OTHER_TAG = SubscriptionData(sub_string="new", code_set=[108960])
SQL = SubscriptionData(sub_string="a > 1", expression_type="SQL92")


@pytest.mark.parametrize(
    ("subscription", "entry", "expected"),
    [
        (None, WITHOUT_EXT, None),
        (SubscriptionData(sub_string="*"), WITHOUT_EXT, True),
        (OF_TAG, WITHOUT_EXT, True),
        (OF_OTHER_TAG, WITHOUT_EXT, False),
        (SQL, WITHOUT_EXT, None),
        (SQL, ConsumeQueueData(tags_code=PAID, extend_data_json="{}", eval=True), True),
        (SQL, ConsumeQueueData(tags_code=PAID, extend_data_json="{}"), False),
        (SubscriptionData(sub_string="A", class_filter_mode=True), WITHOUT_EXT, None),
    ],
)
def test_an_entry_matches_as_the_broker_evaluates_or_by_its_tag(
    subscription: SubscriptionData | None, entry: ConsumeQueueData, expected: bool | None
) -> None:
    assert _matches(subscription, entry) is expected
