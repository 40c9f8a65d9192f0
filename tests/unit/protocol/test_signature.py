"""The signature of a request: HMAC-SHA1 over values in the order of their names, and the body."""

from __future__ import annotations

import base64
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.signature import SigningKey, signed_content


@given(secret=st.text(st.characters(codec="utf-8"), max_size=200), content=st.binary())
def test_a_signature_is_an_hmac(secret: str, content: bytes) -> None:
    digest = hmac.digest(secret.encode(), content, "sha1")
    assert SigningKey(secret).sign(content) == base64.b64encode(digest)
    assert SigningKey(secret).accepts(content, base64.b64encode(digest))
    assert not SigningKey(secret).accepts(content + b"x", base64.b64encode(digest))


def test_values_are_signed_by_the_order_of_their_names_without_the_signature() -> None:
    fields = {
        "b": "2",
        "Signature": "no",
        "a": "1",
        "AccessKey": "k",
        "SecurityToken": "t",
    }
    assert signed_content(fields, b"body") == b"kt12body"
    assert signed_content({}, b"") == b""


@pytest.mark.parametrize(("version", "content"), [(399, b"T"), (401, b"trueT"), (None, b"trueT")])
def test_old_clients_do_not_sign_the_flag_of_unique_keys(
    version: int | None, content: bytes
) -> None:
    fields = {"_UNIQUE_KEY_QUERY": "true", "topic": "T"}
    assert signed_content(fields, b"", version=version) == content


def test_no_text_of_a_key_shows_the_secret() -> None:
    assert "hidden" not in repr(SigningKey("hidden-secret"))
