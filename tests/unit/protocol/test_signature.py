"""The signature of a request: HMAC-SHA1 over values in the order of their names, and the body."""

from __future__ import annotations

import base64
import hmac
import os
import subprocess
import sys
from pathlib import Path

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


SIGNS = """
import sys
{prepare}
import hashlib
from cometmq.protocol.signature import SigningKey
key = SigningKey("secret")
assert key.accepts(b"content", key.sign(b"content")), "refuses its own signature"
assert not key.accepts(b"other", key.sign(b"content")), "accepts a wrong signature"
print(type(hashlib.sha1(usedforsecurity=False)).__module__, key.sign(b"content").decode())
"""


def signature_of(folder: Path, prepare: str, openssl: str = "") -> tuple[str, str]:
    """Sign in another process; returns where its hash is from, and the signature."""
    settings = folder / "openssl.cnf"
    settings.write_text(openssl)
    ran = subprocess.run(
        [sys.executable, "-c", SIGNS.format(prepare=prepare)],
        env={**os.environ, "OPENSSL_CONF": str(settings)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    module, signature = ran.stdout.split()
    return module, signature


EXPECTED = base64.b64encode(hmac.digest(b"secret", b"content", "sha1")).decode()
ONLY_APPROVED = """
openssl_conf = start
[start]
alg_section = algorithms
[algorithms]
default_properties = fips=yes
"""


def test_python_without_openssl_signs(tmp_path: Path) -> None:
    found = signature_of(tmp_path, "sys.modules['_hashlib'] = None")
    assert found == ("_sha1", EXPECTED)


def test_openssl_that_refuses_sha1_for_security_signs(tmp_path: Path) -> None:
    """HMAC-SHA1 is approved where SHA-1 alone is not; which hash signs depends on OpenSSL."""
    refuses = """
import _hashlib
if not _hashlib.get_fips_mode():
    sys.exit("OpenSSL takes no notice of its settings")
"""
    _, signature = signature_of(tmp_path, refuses, ONLY_APPROVED)
    assert signature == EXPECTED
