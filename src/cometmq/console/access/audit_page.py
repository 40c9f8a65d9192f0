"""The page of the audit log, for administrators."""

from __future__ import annotations

import msgspec

from cometmq.console.access.audit import AuditLog, Entry
from cometmq.console.pages import Page, PageNumber, Paging, Query, Role, Search, paged
from cometmq.console.reads import Reads


class AuditQuery(Query):
    """Which entries."""

    search: Search = ""
    page: PageNumber = 1


class Audit(msgspec.Struct):
    """Entries, the newest first."""

    entries: list[Entry]
    paging: Paging


def pages(log: AuditLog) -> tuple[Page, ...]:
    """Return the page of an audit log."""

    async def audit(_reads: Reads, query: AuditQuery) -> Audit:
        wanted = query.search.strip().lower()
        found = [each for each in log.recent() if wanted in _text(each)]
        entries, paging = paged(found, query.page)
        return Audit(list(entries), paging)

    return (
        Page(
            "/audit", "Audit", "access/audit.html", AuditQuery, Audit, audit,
            role=Role.ADMINISTRATOR, is_tab=True,
        ),
    )  # fmt: skip


def _text(entry: Entry) -> str:
    values = (entry.user, entry.address, entry.action, entry.result, *entry.values.values())
    return " ".join(values).lower()
