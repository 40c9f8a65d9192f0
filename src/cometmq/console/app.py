"""The application: the routes of all features, and the guard before them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from cometmq.client import AdminClient
from cometmq.console import (
    accounts,
    cluster,
    dead_letters,
    doctor,
    groups,
    messages,
    overview,
    settings,
    static_topics,
    timers,
    topics,
    transactions,
)
from cometmq.console.access import audit_page
from cometmq.console.access.audit import AuditLog
from cometmq.console.access.sign_in import RefusedError, SignIns
from cometmq.console.access.users import Users
from cometmq.console.changes import Change, Changes
from cometmq.console.charts import HEIGHT, WIDTH
from cometmq.console.config import ConsoleSettings
from cometmq.console.downloads import Download, Downloads
from cometmq.console.forms import described
from cometmq.console.guard import Guard, is_loopback_address
from cometmq.console.live import Stream, Streams
from cometmq.console.openapi import schema_of
from cometmq.console.pages import (
    Page,
    Role,
    changed,
    encoded,
    environment,
    query_of,
    status_of,
    within,
)
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError, ConfigError

if TYPE_CHECKING:
    from cometmq.console.access.openid import OpenIdSignIns

PAGE_S = 15.0
"""Seconds for a page, however slow the cluster is."""
Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class Options(NamedTuple):
    """How the console is served."""

    host: str = "127.0.0.1"
    port: int = 8082
    users: Path | None = None
    """The file of users; None for no sign-in, which is possible on loopback only."""
    audit_log: Path | None = None
    """None for ``audit.log`` beside the file of users; without users, for none."""
    read_only: bool = False
    """Whether changes are refused, whatever the role."""
    certificate: Path | None = None
    key: Path | None = None
    examine: doctor.Examine | None = None
    """Runs the checks of the page Doctor; None for no such page."""
    settings: ConsoleSettings = ConsoleSettings()
    """Of the TOML file: the provider of users, and the accounts of roles."""

    @property
    def has_sign_in(self) -> bool:
        """Whether visitors sign in."""
        return self.users is not None or self.settings.openid is not None


class Console:
    """The application.

    Args:
        admin: the client of the cluster, which its owner starts and closes.
        options: of the console.
        more: further pages.
        more_changes: further changes.
        admins: the clients of roles that have an account of their own.

    Raises:
        ConfigError: the options do not fit together, or a file cannot be used.
    """

    def __init__(
        self,
        admin: AdminClient,
        options: Options,
        more: Sequence[Page] = (),
        more_changes: Sequence[Change] = (),
        admins: Mapping[Role, AdminClient] | None = None,
    ) -> None:
        check(options)
        audit_path = options.audit_log
        if audit_path is None and options.users is not None:
            audit_path = options.users.with_name("audit.log")
        self._audit = AuditLog(audit_path)
        self._reads = Reads(admin)
        self._reads_of_roles = {role: Reads(each) for role, each in (admins or {}).items()}
        """Each has what it keeps for itself: an account sees nothing that another one has read."""
        self.samples = overview.Samples(self._reads)
        self._samples = {self._reads: self.samples}
        self._samples |= {each: overview.Samples(each) for each in self._reads_of_roles.values()}
        self._doctors = {
            each: doctor.Doctor(each.admin, options.examine)
            for each in self._samples
            if options.examine
        }
        self._templates = environment()
        overview.prepare(self._templates)
        groups.prepare(self._templates)
        self._histories = groups.LagHistories(groups.sample)
        self._templates.globals |= {
            "described": described, "chart_width": WIDTH, "chart_height": HEIGHT,
        }  # fmt: skip
        self.streams = Streams(self._templates, self.check_role, self.reads_of)
        self.pages: tuple[Page, ...] = (
            *overview.pages(self._samples.__getitem__),
            *topics.PAGES,
            *static_topics.PAGES,
            *groups.pages(self._histories),
            *messages.PAGES,
            *dead_letters.PAGES,
            *timers.PAGES,
            *transactions.PAGES,
            *cluster.PAGES,
            *settings.PAGES,
            *accounts.PAGES,
            *(doctor.pages(self._doctors.__getitem__) if self._doctors else ()),
            *audit_page.pages(self._audit),
            *more,
        )
        self.changes: tuple[Change, ...] = (
            ()
            if options.read_only
            else (
                *topics.CHANGES,
                *messages.CHANGES,
                *dead_letters.CHANGES,
                *timers.CHANGES,
                *transactions.CHANGES,
                *static_topics.CHANGES,
                *groups.CHANGES,
                *cluster.CHANGES,
                *settings.CHANGES,
                *accounts.CHANGES,
                *more_changes,
            )
        )
        self._roles = {each.path: each.role for each in self.pages}
        self._roles |= {each.path: each.role for each in self.changes}
        self.downloads: tuple[Download, ...] = (
            *messages.DOWNLOADS,
            *dead_letters.DOWNLOADS,
        )
        self._roles |= {each.path: each.role for each in self.downloads}
        self._tabs = [page for page in self.pages if page.is_tab]
        self.sign_ins = self._sign_ins(options)
        self._openid = self._openid_of(options)
        served = Starlette(
            routes=self._routes(),
            exception_handlers={HTTPException: self._http_error, RefusedError: self._refused},
            lifespan=self._lifespan,
        )
        served.router.redirect_slashes = False  # it makes an address of the header Host
        who = self.sign_ins.who if self.sign_ins else None
        self.app: ASGIApp = Guard(served, who, options.settings.base_url, options.settings.networks)

    def _sign_ins(self, options: Options) -> SignIns | None:
        if not options.has_sign_in:
            return None
        users = Users(options.users) if options.users else None
        openid = options.settings.openid
        provider = openid.name if openid else ""
        return SignIns(users, self._audit, self._templates, self._roles, provider)

    def _openid_of(self, options: Options) -> OpenIdSignIns | None:
        if options.settings.openid is None or self.sign_ins is None:
            return None
        try:
            from cometmq.console.access.openid import OpenIdSignIns
        except ImportError as missing:
            raise ConfigError(
                f"[console.openid] needs the extra oidc (no module {missing.name}):"
                " pip install '.[oidc]'"
            ) from None
        return OpenIdSignIns(options.settings, self.sign_ins)

    def _routes(self) -> list[Route | Mount]:
        static = StaticFiles(directory=Path(__file__).parent / "static")
        made: list[Route | Mount] = [
            Mount("/static", static),
            Route("/api/openapi.json", self._schema(), methods=["GET"]),
            *(self.sign_ins.routes if self.sign_ins else ()),
            *(self._openid.routes if self._openid else ()),
        ]
        for page in self.pages:
            made.append(Route(page.path, self._html(page), methods=["GET"]))
            made.append(Route(page.api, self._json(page), methods=["GET"]))
        parts = (
            *overview.live(self._samples.__getitem__),
            *topics.live(),
            *self._histories.live(),
        )
        for live in parts:
            made.append(Route(live.path, Stream(live, self.streams), methods=["GET"]))
        made += Downloads(self.downloads, self).routes
        return [*made, *Changes(self.changes, self, self._audit).routes]

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: object) -> AsyncIterator[None]:
        sampling = [
            asyncio.create_task(each.run(), name="console samples")
            for each in self._samples.values()
        ]
        try:
            yield
        finally:
            for task in sampling:
                task.cancel()
            await asyncio.wait(sampling)
            for each in self._doctors.values():
                await each.close()

    def _html(self, page: Page) -> Endpoint:
        async def respond(request: Request) -> Response:
            self.check_role(request, page.role)
            try:
                query = query_of(page.query, request.query_params.multi_items())
                data = await self._load(request, page, query)
            except CometError as error:
                return self._error_page(request, *status_of(error))
            return self.page(
                request, page.template, 200, page=page, query=query, data=data,
                link=lambda **changes: changed(query, **changes),
            )  # fmt: skip

        return respond

    def _json(self, page: Page) -> Endpoint:
        async def respond(request: Request) -> Response:
            self.check_role(request, page.role)
            try:
                query = query_of(page.query, request.query_params.multi_items())
                content = encoded(await self._load(request, page, query))
            except CometError as error:
                status, text = status_of(error)
                return JSONResponse({"error": text}, status)
            return Response(content, media_type="application/json")

        return respond

    def _schema(self) -> Endpoint:
        content = schema_of(
            self.pages, self.changes, self.downloads, has_sign_in=self.sign_ins is not None
        )

        async def respond(_request: Request) -> Response:
            return JSONResponse(content)

        return respond

    async def _load(self, request: Request, page: Page, query: Any) -> Any:
        text = f"the cluster did not respond within {PAGE_S:.0f} s: see the overview, or try again"
        async with within(PAGE_S, text):
            return await page.load(self.reads_of(request), query)

    def check_role(self, request: Request, role: Role) -> None:
        """Check that the user of a request has a role, or a higher one.

        Raises:
            HTTPException: with the status 403.
        """
        if not self._has_role(request, role):
            user = request.state.signed_in.user
            raise HTTPException(
                403,
                f"expected the role {role.name.lower()} or higher: {user.name} has the role"
                f" {user.role.name.lower()}",
            )

    def _has_role(self, request: Request, role: Role) -> bool:
        signed_in = request.state.signed_in
        return signed_in is None or signed_in.user.role >= role

    def reads_of(self, request: Request) -> Reads:
        """Return the cluster as the user of a request may see it."""
        signed_in = request.state.signed_in
        if signed_in is None:
            return self._reads
        return self._reads_of_roles.get(signed_in.user.role, self._reads)

    def page(self, request: Request, template: str, status: int, **values: Any) -> Response:
        """Return a page.

        Args:
            request: which it is the response to.
            template: of the page, below ``console``.
            status: of HTTP.
            values: for the template.
        """
        path = request.scope["path"]
        tab = next(each.path for each in reversed(self._tabs) if path.startswith(each.path))
        found = self._templates.get_template(template)
        return HTMLResponse(found.render(**self._common(request, tab), **values), status)

    def _common(self, request: Request, here: str = "") -> dict[str, Any]:
        def may(path: str) -> bool:
            role = self._roles.get(path)
            return role is not None and self._has_role(request, role)

        tabs = [each for each in self._tabs if self._has_role(request, each.role)]
        return {"tabs": tabs, "here": here, "signed_in": request.state.signed_in, "may": may}

    def _error_page(self, request: Request, status: int, text: str) -> Response:
        heading = _HEADINGS.get(status, "That did not work")
        template = self._templates.get_template("error.html")
        content = template.render(**self._common(request), heading=heading, text=text)
        return HTMLResponse(content, status)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if request.scope["path"].startswith("/api/"):
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)
        return self._error_page(request, error.status_code, error.detail)

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        return self._error_page(request, error.status, str(error))


_HEADINGS = {
    400: "The address has a mistake",
    403: "Not allowed",
    404: "Not found",
    405: "Not a page",
    502: "The cluster refused, or did not respond",
    504: "The cluster is slow",
}


def check(options: Options) -> None:
    """Check that the options fit together.

    Raises:
        ConfigError: they do not.
    """
    is_local = options.host == "localhost" or is_loopback_address(options.host)
    if not options.has_sign_in and not is_local:
        raise ConfigError(
            f"--host {options.host} without --users: expected a file of users or [console.openid],"
            " since every visitor could read all messages otherwise; 'cometmq console-user' makes a"
            " file"
        )
    if not options.has_sign_in and options.settings.accounts:
        raise ConfigError(
            "[console.accounts] without --users: expected a file of users or [console.openid],"
            " since no visitor has a role otherwise"
        )
    if options.users is None and options.has_sign_in and options.audit_log is None:
        raise ConfigError("[console.openid] without --users: expected --audit-log, a file")
    if (options.certificate is None) != (options.key is None):
        raise ConfigError("expected both --certificate and --key, or neither of them")
