"""The export of dead letters as JSON lines, which ``cometmq admin dlq resend --file`` reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from cometmq.client.admin import DeadLetterPage
from cometmq.console.dead_letters.page import Selected, takes
from cometmq.console.downloads import Download, File
from cometmq.console.reads import Reads
from cometmq.console.stored_messages import times_of
from cometmq.model.errors import ConfigError

READ_AT_ONCE = 64
"""Dead letters in memory."""
EXPORTED_MAX = 100_000
"""Dead letters of the time range."""


async def export(reads: Reads, query: Selected) -> File:
    """Return the selected dead letters of a group, as the brokers have them now.

    Raises:
        ConfigError: there are too many.
    """
    since, until = times_of(query.since, query.until)
    first = await reads.admin.dead_letters(
        query.group, since=since, until=until, limit=READ_AT_ONCE
    )
    count = len(first.letters) + sum(map(len, first.rest.values()))
    if count > EXPORTED_MAX:
        raise ConfigError(
            f"{query.group} has {count} dead letters in this time: expected {EXPORTED_MAX} at most;"
            " choose a shorter time, or use cometmq admin dlq export"
        )

    async def lines() -> AsyncIterator[bytes]:
        page: DeadLetterPage = first
        while page.letters:
            for letter in page.letters:
                if takes(query, letter):
                    yield json.dumps(letter.encode()).encode() + b"\n"
            page = await reads.admin.dead_letters(
                query.group, since=since, until=until, limit=READ_AT_ONCE, ranges=page.rest
            )

    return File(f"dead-letters-{query.group}.jsonl", lines())


EXPORT = Download(
    "/dead-letters/export", "Export dead letters", Selected, "application/x-ndjson", export
)
