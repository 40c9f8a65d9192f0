"""The documentation agrees with the code, and its links lead somewhere."""

from __future__ import annotations

import builtins
import functools
import html
import importlib
import inspect
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import typer.main

import cometmq.client
from cometmq.access.user_settings import UserSettings
from cometmq.broker.config import BrokerSettings
from cometmq.cli.commands import app
from cometmq.cli.demo_figures import Figures
from cometmq.cli.demo_view import summary
from cometmq.client.settings import resolve_settings
from cometmq.console.config import ConsoleSettings
from cometmq.controller.config import ControllerSettings, EtcdSettings
from cometmq.filtersrv.config import FilterServerSettings
from cometmq.metrics.config import MetricsSettings
from cometmq.namesrv.config import NameServerSettings
from cometmq.remoting.config import RemotingSettings, TlsClientSettings, TlsSettings
from cometmq.store.config import StoreSettings
from cometmq.system.log_format import LogSettings
from cometmq.system.settings import describe, field_texts
from support.checks.cases import on_each
from support.clients.client_names import public_names
from tools.generate import configuration, pages
from tools.generate.root import stale

SOURCES = pages.ROOT / "src" / "cometmq"
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)
DIRECTIVE = re.compile(r"^\.\. auto(?:class|data|exception|function):: ([\w.]+)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
UNITS = {"ms": "ms", "s": "s", "bytes": "bytes", "mib": "MiB", "minutes": "min"}
"""What a word of a setting's name says of its unit."""
PAGE_LINES_MAX = 1_000
SETTINGS = (
    BrokerSettings,
    UserSettings,
    StoreSettings,
    NameServerSettings,
    FilterServerSettings,
    ControllerSettings,
    EtcdSettings,
    RemotingSettings,
    TlsSettings,
    TlsClientSettings,
    MetricsSettings,
    LogSettings,
)
KNOWN = {setting.key: setting for kind in SETTINGS for setting in describe(kind)}


def name_of(path: Path) -> str:
    return str(path.relative_to(pages.ROOT))


RUN_EXAMPLES = (
    "support/processes/examples.py",
    "spark/test_demo.py",
    "spark/test_examples.py",
    "spark/test_recipes.py",
    "integration/test_testing.py",
)
"""What runs examples, and names each that it runs."""
WITH_TESTS = pages.ROOT / "examples" / "orders"
"""An example whose own tests run all its files: `integration/test_orders.py`."""
PAGES = list(pages.pages())
on_each_page = on_each(PAGES, name_of)


def blocks(path: Path, language: str) -> Iterator[str]:
    for match in FENCE.finditer(path.read_text()):
        if match["language"] == language:
            yield textwrap.dedent(match["text"])


def anchors(path: Path) -> set[str]:
    """The anchors a Markdown viewer makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading).strip().lower() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def test_parts_made_from_the_code_are_fresh() -> None:
    """The pages of Spark have a test of their own, which runs where PySpark is installed."""
    assert stale(pages.files()) == [], "run make generate"


@on_each_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)

    assert broken == []


command_line = functools.cache(functools.partial(typer.main.get_command, app))


@on_each_page
def test_commands_in_the_text_exist_with_their_options(page: Path) -> None:
    root = command_line()
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.partition(" > ")[0], comments=True)
            if words and Path(words[0]).name == "cometmq":
                command, rest = root, words[1:]
                while getattr(command, "commands", None) and rest:
                    assert rest[0] in command.commands, line
                    command, rest = command.commands[rest[0]], rest[1:]
                command.make_context(words[0], rest)


@on_each_page
def test_configuration_in_the_text_is_understood(page: Path) -> None:
    for block in blocks(page, "properties"):
        for line in block.splitlines():
            if line and not line.startswith("#"):
                key, _, value = line.partition("=")
                assert key in KNOWN, line
                KNOWN[key].parse(value)


@on_each_page
def test_tables_of_settings_in_the_text_are_understood(page: Path) -> None:
    kinds = {kind.section: kind for kind in configuration.client_settings()}
    for block in blocks(page, "toml"):
        tables = tomllib.loads(block)
        msgspec.convert(tables.pop("console", {}), ConsoleSettings)
        assert tables.keys() <= kinds.keys()
        for section, table in tables.items():
            used = resolve_settings(kinds[section], environment={}, tables=tables)
            assert {name: getattr(used, name) for name in table} == table


def test_every_setting_of_clients_is_documented_with_unit_and_default() -> None:
    text = (pages.ROOT / "docs/reference/client-settings.md").read_text()
    for kind in configuration.client_settings():
        table = text.partition(f"## {kind.__name__}\n")[2].partition("\n## ")[0].splitlines()
        rows = {line.split("|")[1].strip(" `"): line for line in table if line.startswith("| `")}
        for setting in describe(kind):
            row, default = rows[setting.name], setting.default()
            assert setting.expectation in row
            assert field_texts(kind)[setting.name]
            shown = row.split("|")[2].strip(" `")
            if not setting.depends_on_machine:
                assert setting.parse(shown) == default if shown else not default, setting.name
            for word, unit in UNITS.items():
                if word in setting.name.split("_"):
                    assert setting.unit == unit, setting.name
                    assert f"({unit})" in row


def test_sample_file_of_clients_says_the_defaults() -> None:
    text = (pages.ROOT / "conf/client.toml").read_text()
    tables = tomllib.loads(re.sub(r"^#(?=\w)", "", text, flags=re.MULTILINE))
    for kind in configuration.client_settings():
        assert len(tables[kind.section]) == len(describe(kind))
        assert resolve_settings(kind, environment={}, tables=tables) == kind()


def described(pattern: str) -> list[str]:
    """The names that reference pages have directives for."""
    found = (pages.ROOT / "docs/reference").glob(pattern)
    return [match for path in found for match in DIRECTIVE.findall(path.read_text())]


def test_every_public_name_of_the_client_is_on_one_page() -> None:
    reference = pages.ROOT / "docs/reference"
    elsewhere = [(reference / name).read_text() for name in ("client-settings.md", "errors.md")]
    names = [path.rpartition(".")[2] for path in described("client/*.md")]
    public = public_names()

    assert len(names) == len(set(names))
    assert [
        name
        for name in sorted(public)
        if name not in names and not any(name in text for text in elsewhere)
    ] == []
    assert set(names) <= public.keys()


def test_the_list_of_the_clients_names_has_what_its_pages_have() -> None:
    text = (pages.ROOT / "docs/reference/client.md").read_text()

    assert sorted(re.findall(r"(?<=^   ~)\S+$", text, re.M)) == sorted(described("client/*.md"))


@pytest.mark.parametrize("name", ["embedded", "testing"])
def test_every_public_name_of_a_module_is_on_its_page(name: str) -> None:
    public = importlib.import_module(f"cometmq.{name}").__all__

    assert sorted(described(f"{name}.md")) == sorted(f"cometmq.{name}.{each}" for each in public)


def test_every_public_name_of_the_clients_optional_packages_is_on_their_page() -> None:
    names = described("client-parts.md")
    modules = {path.rpartition(".")[0] for path in names} - {"cometmq.client.idempotent.sqlalchemy"}

    assert len(modules) == 3
    for module in modules:
        public = importlib.import_module(module).__all__
        expected = {f"{module}.{each}" for each in public}
        assert {path for path in names if path.rpartition(".")[0] == module} == expected


def test_every_public_class_of_the_client_has_an_example() -> None:
    """`tests/client` runs them."""
    assert [
        name
        for name, thing in sorted(public_names().items())
        if inspect.isclass(thing) and "\nExample:\n" not in (inspect.getdoc(thing) or "")
    ] == []


def test_every_error_that_a_public_name_documents_can_be_imported() -> None:
    public = public_names()
    things = [*public.items()]
    for name, thing in public.items():
        if inspect.isclass(thing):
            things += [
                (f"{name}.{member}", what)
                for member, what in inspect.getmembers(thing)
                if not member.startswith("_") and callable(what)
            ]
    documented = {
        (where, error)
        for where, thing in things
        for error in re.findall(r"\b[A-Z]\w+Error\b", inspect.getdoc(thing) or "")
    }

    assert (
        sorted(
            (where, error) for where, error in documented if error not in {*public, *vars(builtins)}
        )
        == []
    )
    assert len(documented) > 100


def test_the_client_has_few_public_names() -> None:
    """What fewer applications need is in public submodules."""
    assert len(cometmq.client.__all__) <= 60


@on_each_page
def test_a_page_is_short_enough_to_read(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= PAGE_LINES_MAX


def test_every_page_is_listed_where_readers_choose_one() -> None:
    folder = pages.ROOT / "docs"
    start = folder / "README.md"
    listed = {
        (start.parent / target.partition("#")[0]).resolve()
        for target in LINK.findall(start.read_text())
    }
    parts = {folder / "reference/client", folder / "decisions"}

    assert [
        name_of(page)
        for page in pages.pages()
        if page.is_relative_to(folder)
        and page != start
        and page.parent not in parts
        and page not in listed
    ] == []


def test_every_example_is_shown_or_run() -> None:
    shown = {
        match.group(2)
        for path in pages.pages()
        for match in pages.INCLUDE.finditer(path.read_text())
    }
    found = (pages.ROOT / "examples").rglob("*.*")
    examples = [
        path
        for path in found
        if path.suffix in (".py", ".java", ".yml") and not path.is_relative_to(WITH_TESTS)
    ]
    tests = [(pages.ROOT / "tests" / name).read_text() for name in RUN_EXAMPLES]
    run = {name_of(path) for path in examples if any(path.stem in text for text in tests)}
    files = {name_of(path) for path in examples}

    assert all((pages.ROOT / name).is_file() for name in shown)
    assert files <= shown | run


LOOKED_UP = {"administer", "client-errors", "runbook"}
"""How-to pages that readers search for a command, a text or an alert: they have no steps."""


@pytest.mark.parametrize(
    "page", sorted((pages.ROOT / "docs/howto").glob("*.md")), ids=lambda page: page.stem
)
def test_a_how_to_page_says_what_it_gives_and_has_steps(page: Path) -> None:
    text = page.read_text()

    assert text.split("\n\n")[1].startswith("This page gives ")
    assert ("\n1. " in text) is (page.stem not in LOOKED_UP)


@on_each_page
def test_python_in_the_text_is_included_or_marked_to_run(page: Path) -> None:
    text = page.read_text()
    loose = [
        match.group(0)[:60]
        for match in FENCE.finditer(text)
        if (match["indent"], match["language"]) == ("", "python")
        and not text[: match.start()].rstrip().endswith("-->")
    ]

    assert loose == []


@on_each_page
def test_files_named_in_the_text_exist(page: Path) -> None:
    named = re.findall(r"`([\w/]+/[\w]+\.(?:py|md|conf))`", FENCE.sub("", page.read_text()))
    roots = (pages.ROOT, pages.ROOT / "src" / "cometmq")

    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


OBJECTS: dict[str, tuple[type, ...]] = {
    "admin": (cometmq.client.AdminClient,),
    "producer": (cometmq.client.TransactionProducer,),
    "consumer": (
        cometmq.client.PushConsumer,
        cometmq.client.PullConsumer,
        cometmq.client.SimpleConsumer,
    ),
}
"""What pages call objects of the client, and their classes."""


@on_each_page
def test_methods_of_the_client_in_the_text_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    named = re.findall(r"`(?:await )?(admin|producer|consumer)\.(\w+)", text)

    assert [
        f"{name}.{method}"
        for name, method in named
        if not any(hasattr(kind, method) for kind in OBJECTS[name])
    ] == []


NAMES = {
    "CometMQ": ("cometmq", "CometMQ, uvloop"),
    "CometMQ, interpreted": ("cometmq-interpreted", "CometMQ, interpreted"),
    "RocketMQ 5.3.3": ("rocketmq-5.3.3", "rocketmq-5.3.3, heap 2g"),
    "RocketMQ 4.9.7": ("rocketmq-4.9.7",),
    "NATS JetStream": ("nats",),
    "Kafka 4.1.0": ("kafka",),
    "rocketmq-log": ("files",),
    "Java client 5.3.3": ("Java 5.3.3, heap 512 MiB",),
}
"""The systems that the figures of our pages compare, and their names in the result files."""

SAME = ", the same"
"""The end of the title of a rival that has a row of its own, below ours."""


@pytest.mark.parametrize(
    ("page", "rows_min"), [("README.md", 3), ("docs/explanation/performance.md", 15)]
)
def test_figures_in_the_text_are_those_of_the_result_files(page: str, rows_min: int) -> None:
    """A new measurement changes both pages too."""
    path = pages.ROOT / page
    section = path.read_text().partition("\n## Figures\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if "benchmarks/results/" in line]
    wrong = []
    for row in rows:
        cells = (cell.strip().replace("`", "") for cell in row)
        _, flush, ours, figure, rival, other, times, source = cells
        ((title, results),) = re.findall(r"\[(.+)\]\((.+)\)", source)
        measured = list(_measured(path.parent / results, title, flush))
        if (ours, figure) not in [(name, rate) for name, rate, _ in measured]:
            wrong.append(f"{title}, {ours}: {figure}, measured {measured}")
        if rival and (rival, other, times) not in measured:
            wrong.append(f"{title}, {rival}: {other}, {times}, measured {measured}")

    assert len(rows) >= rows_min
    assert wrong == []


def test_extras_are_installed_from_the_clone() -> None:
    """The package is on no index yet, and the environment is active, as on the page Install."""
    other = re.compile(r"(?<!/)\bcometmq\[\w|\.venv/bin/pip install '\.\[")
    sources = [*SOURCES.rglob("*.py"), *(pages.ROOT / "examples").rglob("*.py")]
    found = [each.name for each in [*PAGES, *sources] if other.search(each.read_text("utf-8"))]
    assert not found, "expected: pip install '.[extra]'"


def test_texts_of_client_errors_are_those_of_the_code() -> None:
    """A developer searches the page for the text of an error."""
    packages = ("access", "broker", "client", "model", "protocol", "remoting", "system")
    files = [path for name in packages for path in (SOURCES / name).rglob("*.py")]
    files.append(SOURCES / "embedded.py")
    joined = re.compile(r"""["']\s*\n\s*f?["']""")  # texts that go on in the next line
    code = "\n".join(joined.sub("", path.read_text()) for path in files)
    page = (pages.ROOT / "docs/howto/client-errors.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    texts = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]

    assert len(texts) > 30
    assert [text for text in texts if text not in code] == []


README_LINES_MAX = 150


def test_the_readme_is_read_in_minutes() -> None:
    """The file begins with what needs no knowledge of RocketMQ; the package has the same words."""
    text = (pages.ROOT / "README.md").read_text()
    project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
    first = text.split("\n\n")[1].replace("\n", " ")

    assert len(text.splitlines()) <= README_LINES_MAX
    assert first.startswith(f"CometMQ is a {project['description'][2:]}: ")
    assert "RocketMQ" not in first
    assert LINK.findall(text)[0] == "docs/tutorial/orders.md"


def test_the_picture_of_the_demo_shows_what_it_prints_today() -> None:
    """When it does not: ``.venv/bin/python docs/images/record_demo.py``."""
    picture = (pages.ROOT / "docs/images/demo.svg").read_text()
    shown = html.unescape(re.sub(r"<[^>]+>", "", picture)).replace("\N{NO-BREAK SPACE}", " ")
    expected = [*summary(Figures(restart_s=1.5, outage_s=1.5)), "no message was lost"]

    assert f"cometmq {cometmq.__version__}" in shown
    assert " lost=0" in shown
    for line in expected:
        assert re.search(re.sub(r"\d+", r"\\d+", line), shown), line


def _measured(path: Path, title: str, flush: str) -> Iterator[tuple[str, str, str]]:
    """For each row with this title: our pages' name, the rate, and the ratio to it."""
    readme = {name: ours for ours, names in NAMES.items() for name in names}
    table = [line.split("|")[1:-1] for line in path.read_text().splitlines() if line[:1] == "|"]
    head = [name.strip() for name in table[0]]
    rows = [
        dict(zip(head, (cell.strip().replace("`", "") for cell in cells), strict=False))
        for cells in table
    ]
    for at, row in enumerate(rows):
        if row[head[0]] != title or row.get("flush") != flush:
            continue
        rivals = [other for other in rows[at:] if other[head[0]].endswith(SAME)]
        if row.get("server") == "files" and row["x"] and rivals:
            yield rivals[0][head[0]].removesuffix(SAME), rivals[0]["figure"], row["x"]
        if "x" in row:
            name = row.get("client") or row["server"]
            yield readme.get(name, name), row["figure"], row["x"]
        elif row["figure"] == "rate, k/s":
            for name, cell in row.items():
                rate, _, times = cell.partition("<br>")
                server = name.partition("<br>")[0]
                yield readme.get(server, server), f"{rate} k/s", times


def test_each_example_has_topics_of_its_own() -> None:
    """Readers follow several pages on one server: no example may meet the messages of another."""
    topics = re.compile(r'^TOPIC\b.*?= "([^"]+)"', re.MULTILINE)
    texts = [path.read_text() for path in sorted((pages.ROOT / "examples").glob("*.py"))]
    found = [topic for text in texts for topic in topics.findall(text)]
    assert len(found) > 20
    assert [topic for topic in found if found.count(topic) > 1] == []
