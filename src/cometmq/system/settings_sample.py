"""Sample configuration files, made from the settings classes and the docstrings of their fields."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Mapping

from cometmq.system import java_properties
from cometmq.system.settings import Setting, describe

_WIDTH = 96


@functools.cache
def field_texts(settings: type) -> Mapping[str, str]:
    """Return field name → docstring of a settings class, on one line each."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(settings)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def sample(title: str, parts: Mapping[str, Iterable[type]]) -> str:
    """Return a properties file that names every key, commented out, at its default.

    Args:
        title: the comment at the top.
        parts: heading → the settings classes below it.
    """
    lines = [f"# {line}" for line in textwrap.wrap(title, _WIDTH)]
    seen: set[str] = set()
    for heading, settings_classes in parts.items():
        lines += ["", f"# ---- {heading} ".ljust(_WIDTH + 2, "-")]
        for settings_class in settings_classes:
            for setting in describe(settings_class):
                if setting.key not in seen:
                    seen.add(setting.key)
                    lines += ["", *_entry(setting, field_texts(settings_class)[setting.name])]
    return "\n".join(lines) + "\n"


def _entry(setting: Setting, text: str) -> list[str]:
    words = f"{text} Expected: {setting.expectation}."
    if setting.remote:
        words += " Can be changed while the server runs."
    lines = [f"# {line}" for line in textwrap.wrap(words, _WIDTH)]
    return [*lines, "#" + java_properties.render({setting.key: _default_text(setting)}).rstrip()]


def _default_text(setting: Setting) -> str:
    """The default as text; one that depends on the machine is left to the machine."""
    return "" if setting.depends_on_machine else setting.render(setting.default())
