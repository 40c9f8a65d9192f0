"""Dead letters: by group and reason, shown, exported, and sent again with a report."""

from cometmq.console.dead_letters.export import EXPORT
from cometmq.console.dead_letters.page import (
    DeadLetterGroups,
    GroupsQuery,
    Letters,
    LettersQuery,
    Reasons,
    ReasonsQuery,
    dead_letter_groups,
    dead_letters,
    reasons,
)
from cometmq.console.dead_letters.resends import RESEND
from cometmq.console.pages import Page

PAGES = (
    Page(
        "/dead-letters", "Dead letters", "dead_letters/groups.html", GroupsQuery,
        DeadLetterGroups, dead_letter_groups, is_tab=True,
    ),
    Page(
        "/dead-letters/group", "Dead letters of a group", "dead_letters/letters.html",
        LettersQuery, Letters, dead_letters,
    ),
    Page(
        "/dead-letters/reasons", "Reasons of dead letters", "dead_letters/reasons.html",
        ReasonsQuery, Reasons, reasons,
    ),
)  # fmt: skip
CHANGES = (RESEND,)
DOWNLOADS = (EXPORT,)

__all__ = ["CHANGES", "DOWNLOADS", "PAGES"]
