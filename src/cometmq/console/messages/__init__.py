"""Messages: found by id, key, time or queue offset, shown, followed, and delivered again."""

from cometmq.console.downloads import Download
from cometmq.console.messages import standings, traces
from cometmq.console.messages.page import (
    FoundMessage,
    MessageQuery,
    Messages,
    MessagesByTime,
    PlaceQuery,
    SearchQuery,
    TimeQuery,
    body_file,
    by_time,
    message,
    search,
)
from cometmq.console.messages.resends import CHANGES
from cometmq.console.pages import Page

PAGES = (
    Page(
        "/messages", "Messages", "messages/messages.html", SearchQuery, Messages, search,
        is_tab=True,
    ),
    Page(
        "/messages/by-time", "Messages by time", "messages/by_time.html", TimeQuery,
        MessagesByTime, by_time,
    ),
    Page(
        "/messages/message", "Message", "messages/message.html", MessageQuery, FoundMessage,
        message,
    ),
    standings.PAGE,
    traces.PAGE,
)  # fmt: skip
DOWNLOADS = (
    Download(
        "/messages/body", "Body of a message", PlaceQuery, "application/octet-stream", body_file
    ),
)

__all__ = ["CHANGES", "DOWNLOADS", "PAGES"]
