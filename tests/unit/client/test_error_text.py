"""Texts of errors in failed messages."""

from __future__ import annotations

from cometmq.client._supervision import ERROR_CHARS_MAX, class_and_text
from cometmq.system.failure_log import log_text


class ShopError(Exception):
    """An application's own."""


def test_an_error_says_its_module_its_class_and_its_text() -> None:
    assert class_and_text(ShopError("no stock")) == f"{__name__}.ShopError: no stock"
    assert class_and_text(KeyError("k")) == "builtins.KeyError: 'k'"


def test_a_long_error_is_cut() -> None:
    assert len(class_and_text(ShopError("x" * 5000))) == ERROR_CHARS_MAX


def test_characters_that_separate_properties_are_replaced() -> None:
    assert class_and_text(ValueError("a\x01b\x02c\nd\te")) == "builtins.ValueError: a b c d e"


class MuteError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise LookupError("no text")


def test_an_error_whose_text_raises_has_a_text_nevertheless() -> None:
    assert class_and_text(MuteError()) == f"{__name__}.MuteError: (str() raised LookupError)"
    assert log_text(MuteError()) == "(str() raised LookupError)"


def test_characters_that_no_message_can_hold_are_replaced() -> None:
    assert class_and_text(OSError("no \udcfffile")) == "builtins.OSError: no ?file"
