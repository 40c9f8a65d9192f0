"""Dead letters: which groups have some, and those of one group."""

from cometmq.console.dead_letters.page import PAGES

__all__ = ["PAGES"]
