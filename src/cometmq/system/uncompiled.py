"""Stands in for the ``cython`` module where hot code runs interpreted and Cython is not installed.

Compiled modules never import it. Source: ours.
"""


class cython:  # noqa: N801 (the name of the module it stands in for)
    """All that interpreted code asks of Cython."""

    compiled = False
    """Whether the asking module runs as machine code."""
