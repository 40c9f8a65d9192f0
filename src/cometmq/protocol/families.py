"""Packages whose modules, their families, are loaded when a name of them is first imported."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def loader(package: str, families: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package: it loads the family of a name.

    Args:
        package: the package's name.
        families: the names that each of its modules has for users of the package.
    """

    def load(name: str) -> Any:
        for family, names in families.items():
            if name in names:
                return getattr(import_module(f"{package}.{family}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
