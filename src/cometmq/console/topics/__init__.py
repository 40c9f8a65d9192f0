"""Topics: a list, one topic, its live tail, and what changes topics."""

from cometmq.console.topics import consumers, page, tail
from cometmq.console.topics.changes import CHANGES
from cometmq.console.topics.tail import live

PAGES = (*page.PAGES, consumers.PAGE, tail.PAGE)

__all__ = ["CHANGES", "PAGES", "live"]
