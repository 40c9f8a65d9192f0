"""Half messages whose transactions are undecided, and checks that are resumed."""

from cometmq.console.transactions.page import PAGES, RESUME

CHANGES = (RESUME,)

__all__ = ["CHANGES", "PAGES"]
