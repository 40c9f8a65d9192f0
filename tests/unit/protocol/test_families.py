"""The packages of headers and bodies, whose modules are loaded when a name is imported."""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from types import ModuleType

import msgspec
import pytest

from cometmq.protocol import bodies, headers


@pytest.mark.parametrize("package", [bodies, headers], ids=lambda package: package.__name__)
def test_each_struct_of_a_family_can_be_imported_from_the_package(package: ModuleType) -> None:
    named = [name for names in package.FAMILIES.values() for name in names]
    assert len(set(named)) == len(named)
    for family, names in package.FAMILIES.items():
        module = import_module(f"{package.__name__}.{family}")
        assert [getattr(package, name) for name in names] == [
            getattr(module, name) for name in names
        ]
        for name, value in vars(module).items():
            is_struct = isinstance(value, type) and issubclass(value, (msgspec.Struct, Enum))
            if is_struct and value.__module__ == module.__name__ and not name.startswith("_"):
                assert name in names or family == "base"


@pytest.mark.parametrize("package", [bodies, headers], ids=lambda package: package.__name__)
def test_a_name_of_no_family_cannot_be_imported(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"{package.__name__}' has no attribute 'Mystery"):
        _ = package.Mystery
