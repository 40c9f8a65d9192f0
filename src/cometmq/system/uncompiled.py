"""Stands in for the ``cython`` module where hot code runs interpreted and Cython is not installed.

Compiled modules never import it.
"""


class cython:  # noqa: N801 (the name of the module it stands in for)
    """The part of Cython's module that interpreted code uses."""

    compiled = False
    """Whether the asking module runs as machine code."""
