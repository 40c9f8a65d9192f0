"""The packages of headers and bodies, whose modules are loaded when a name is imported."""

from __future__ import annotations

import pkgutil
from enum import Enum
from importlib import import_module
from types import ModuleType

import msgspec
import pytest

from cometmq.protocol import bodies, headers


@pytest.mark.parametrize("package", [bodies, headers], ids=lambda package: package.__name__)
def test_each_struct_of_a_family_can_be_imported_from_the_package(package: ModuleType) -> None:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for name, value in vars(import_module(found.name)).items():
            is_struct = isinstance(value, type) and issubclass(value, (msgspec.Struct, Enum))
            if is_struct and value.__module__ == found.name and not name.startswith("_"):
                assert getattr(package, name) is value


@pytest.mark.parametrize("package", [bodies, headers], ids=lambda package: package.__name__)
def test_a_name_of_no_family_cannot_be_imported(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"{package.__name__}' has no attribute 'Mystery"):
        _ = package.Mystery
