"""Consumer groups: a list, one group with members and lag, one member, and what changes them."""

from __future__ import annotations

from jinja2 import Environment

from cometmq.console.groups import changes, members, page, resets
from cometmq.console.groups.lag_history import LagHistories, charts_of
from cometmq.console.groups.page import sample
from cometmq.console.pages import Page

CHANGES = (*changes.CHANGES, *resets.CHANGES)

__all__ = ["CHANGES", "LagHistories", "pages", "prepare", "sample"]


def pages(histories: LagHistories) -> tuple[Page, ...]:
    """Return the pages of this feature."""
    return (*page.pages(histories), members.PAGE)


def prepare(templates: Environment) -> None:
    """Give the templates what this feature needs."""
    templates.globals["lag_charts_of"] = charts_of
