"""Sign-in to the console by a provider of OpenID Connect, in Chromium with axe."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from test_console import WAIT_S, WIDTHS, Look, look

from cometmq.console.access.users import add_user
from cometmq.console.pages import Role
from cometmq.remoting.ports import free_port

__all__ = ["look"]
SETTINGS = """
[console]
base_url = "{url}"
[console.openid]
name = "Example login"
issuer = "{issuer}"
client_id = "console"
[console.openid.roles]
administrator = ["operations"]
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console with a provider, without a cluster."""
    folder = tmp_path_factory.mktemp("console")
    add_user(folder / "users", "ada", Role.READER, "correct horse battery")
    with ExitStack() as stack:

        def started(command: list[str], said: str) -> str:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env={**os.environ, "COMETMQ_CONSOLE_OPENID_SECRET": "any"},
            )  # fmt: skip
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout is not None
            found = (re.search(said, line) for line in process.stdout)
            return next(each[1] for each in found if each)

        issuer = started(["oidc_provider_mock", "--port", "0"], r"running on (http://\S+)")
        claims = {"groups": ["operations"], "preferred_username": "grace"}
        httpx.put(f"{issuer}/users/s-1", json=claims, timeout=WAIT_S).raise_for_status()
        port = free_port()
        site = f"http://127.0.0.1:{port}"
        settings = folder / "console.toml"
        settings.write_text(SETTINGS.format(url=site, issuer=issuer))
        command = ["cometmq", "console", "-n", "127.0.0.1:1", "--port", str(port)]
        command += ["--users", str(folder / "users"), "--config", str(settings)]
        started(command, r"console ready at (\S+)/ ")
        yield site


@pytest.mark.needs("chromium")
def test_a_user_of_a_provider_signs_in_and_out_in_a_browser(url: str, look: Look) -> None:
    axe = importlib.import_module("axe_playwright_python.sync_playwright").Axe()
    for width, scheme in zip(WIDTHS, ("light", "dark"), strict=True):
        page = look(f"{url}/audit", width, scheme)
        assert axe.run(page).response["violations"] == []
        page.get_by_role("link", name="Sign in with Example login").click()
        page.get_by_placeholder("sub").fill("s-1")
        page.get_by_role("button", name="Authorize", exact=True).click()
        page.wait_for_url(f"{url}/audit")
        page.get_by_role("row", name="openid:grace").first.wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_text("You are signed out of the console.").wait_for()
        assert axe.run(page).response["violations"] == []
        page.get_by_role("link", name="sign out there").click()
        page.wait_for_url(re.compile("/oauth2/end_session"))
        page.context.close()
