"""The documentation as a site: a reader finds pages by searching, and mistakes end the build."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import toolchain

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LIST = "# Pages\n\n## Start\n\n| Page |\n|---|\n| [First](first.md) |\n"
pytestmark = pytest.mark.needs("chromium")


def build(pages: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run the command of ``make docs-site`` with other folders."""
    words = ["-m", "sphinx", "--quiet", "-W", "--keep-going", "-d", site.parent / "cache"]
    command = [sys.executable, *words, pages, site]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module", autouse=True)
def _builder() -> None:
    if find_spec("sphinx") is None:
        if not toolchain.ON_CI:
            pytest.skip("needs Sphinx: make setup-docs installs it")
        subprocess.run([sys.executable, ROOT / "make_venv.py", "docs"], check=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    done = build(DOCS, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def page(address: str, profile: Path) -> str:
    """What a browser without a network shows at an address, when its scripts have run."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"]
    options += ["--virtual-time-budget=20000", "--dump-dom"]
    command = [toolchain.command("chromium"), *options, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return html.unescape(done.stdout)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("sqlite outbox", "howto/outbox.html"),
        ("create_topic", "reference/client/admin-client.html"),
        ("flushDiskType", "reference/configuration.html"),
    ],
)
def test_a_search_without_a_server_finds_the_page(
    site: Path, tmp_path: Path, words: str, found: str
) -> None:
    shown = page(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}", tmp_path)
    results = re.findall(r'<li class="[^"]*"><a href="([^"#?]+)', shown)

    assert found in [each.removeprefix(f"{site.as_uri()}/") for each in results], results


def test_the_site_opens_with_the_list_of_pages(site: Path, tmp_path: Path) -> None:
    shown = page((site / "index.html").as_uri(), tmp_path)

    assert "Send and receive in ten minutes" in shown
    assert 'href="tutorial/first-messages.html"' in shown


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    text = (site / "README.html").read_text()

    loaded = re.findall(r'<(?:script|link|img)\b[^>]*\b(?:src|href)="(https?://[^"]+)', text)
    assert [each for each in loaded if not each.startswith("https://cometmq.github.io/")] == []


def mistakes(tmp_path: Path, first: str, **others: str) -> str:
    """Build a small site with a page of this text, and return what the build says."""
    pages = tmp_path / "project" / "docs"
    pages.mkdir(parents=True)
    shutil.copy(DOCS / "conf.py", pages)
    for name, text in {"README": LIST, "first": first, **others}.items():
        (pages / f"{name}.md").write_text(text)
    done = build(pages, tmp_path / "site")
    assert (done.returncode == 0) == (not done.stderr), done.stderr
    return done.stderr


def test_a_site_without_mistakes_is_built(tmp_path: Path) -> None:
    assert mistakes(tmp_path, "# First\n\n[here](#first), [there](README.md#start)\n") == ""


@pytest.mark.parametrize(
    ("first", "others", "said"),
    [
        pytest.param("# First\n\n[x](gone.md)\n", {}, "gone.md", id="link to no page"),
        pytest.param("# First\n\n[x](../gone.py)\n", {}, "gone.py", id="link to no file"),
        pytest.param("# First\n\n[x](README.md#no)\n", {}, "no", id="link to no heading"),
        pytest.param("# First\n", {"second": "# Second\n"}, "second.md", id="unlisted page"),
        pytest.param(
            "# First\n\n```{eval-rst}\n.. autoclass:: cometmq.client.Gone\n```\n",
            {},
            "Gone",
            id="no class of this name",
        ),
    ],
)
def test_a_mistake_ends_the_build(
    tmp_path: Path, first: str, others: dict[str, str], said: str
) -> None:
    assert said in mistakes(tmp_path, first, **others)
