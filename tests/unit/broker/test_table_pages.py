"""Pages of the tables that slaves copy."""

from __future__ import annotations

from cometmq.broker.table_pages import PAGE_BYTES, page_of
from cometmq.model.topic import TopicConfig


def test_a_page_ends_where_what_belongs_to_its_entries_fills_it() -> None:
    """The mappings of static topics are on the same page: it has to fit into a frame."""
    table = {f"t{number}": TopicConfig(topic_name=f"t{number}") for number in range(10)}
    third = PAGE_BYTES // 3

    first = page_of(table.items(), 0, None, lambda name: third)
    second = page_of(table.items(), len(first), None, lambda name: third)
    large = page_of(table.items(), 0, None, lambda name: 2 * PAGE_BYTES)

    assert [*first, *second] == [*table][:4]
    assert [*large] == ["t0"]
    assert page_of(table.items(), 0, None) == table
