"""The application: the routes of all features, and the guard before them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    topics,
)
from cometmq.console.access import audit_page
from cometmq.console.access.audit import AuditLog
from cometmq.console.access.sign_in import RefusedError, SignIns
from cometmq.console.access.users import Users
from cometmq.console.changes import Change, Changes
from cometmq.console.charts import HEIGHT, WIDTH
from cometmq.console.forms import described
from cometmq.console.guard import Guard, is_loopback_address
from cometmq.console.live import Stream, Streams
from cometmq.console.openapi import schema_of
from cometmq.console.pages import (
    Page,
    Role,
    TooSlowError,
    changed,
    encoded,
    environment,
    query_of,
    status_of,
)
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError, ConfigError

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


class Console:
    """The application.

    Args:
        admin: the client of the cluster, which its owner starts and closes.
        options: of the console.
        more: further pages.
        more_changes: further changes.

    Raises:
        ConfigError: the options do not fit together, or a file cannot be used.
    """

    def __init__(
        self,
        admin: AdminClient,
        options: Options,
        more: Sequence[Page] = (),
        more_changes: Sequence[Change] = (),
    ) -> None:
        check(options)
        audit_path = options.audit_log
        if audit_path is None and options.users is not None:
            audit_path = options.users.with_name("audit.log")
        self._audit = AuditLog(audit_path)
        reads = Reads(admin)
        self.samples = overview.Samples(reads)
        self._doctor = doctor.Doctor(admin, options.examine) if options.examine else None
        self._templates = environment()
        overview.prepare(self._templates)
        self._templates.globals |= {
            "described": described, "chart_width": WIDTH, "chart_height": HEIGHT,
        }  # fmt: skip
        self.streams = Streams(self._templates, self.check_role, self.reads_of)
        self.pages: tuple[Page, ...] = (
            *overview.pages(self.samples),
            *topics.PAGES,
            *static_topics.PAGES,
            *groups.PAGES,
            *messages.PAGES,
            *dead_letters.PAGES,
            *cluster.PAGES,
            *settings.PAGES,
            *accounts.PAGES,
            *(self._doctor.pages if self._doctor else ()),
            *audit_page.pages(self._audit),
            *more,
        )
        self.changes: tuple[Change, ...] = (
            ()
            if options.read_only
            else (
                *messages.CHANGES,
                *static_topics.CHANGES,
                *cluster.CHANGES,
                *settings.CHANGES,
                *accounts.CHANGES,
                *more_changes,
            )
        )
        self._roles = {each.path: each.role for each in self.pages}
        self._roles |= {each.path: each.role for each in self.changes}
        self._tabs = [page for page in self.pages if page.is_tab]
        self._reads = reads
        self.sign_ins = self._sign_ins(options)
        served = Starlette(
            routes=self._routes(),
            exception_handlers={HTTPException: self._http_error, RefusedError: self._refused},
            lifespan=self._lifespan,
        )
        served.router.redirect_slashes = False  # it makes an address of the header Host
        self.app: ASGIApp = Guard(served, self.sign_ins.who if self.sign_ins else None)

    def _sign_ins(self, options: Options) -> SignIns | None:
        if options.users is None:
            return None
        return SignIns(Users(options.users), self._audit, self._templates, self._roles)

    def _routes(self) -> list[Route | Mount]:
        static = StaticFiles(directory=Path(__file__).parent / "static")
        made: list[Route | Mount] = [
            Mount("/static", static),
            Route("/api/openapi.json", self._schema(), methods=["GET"]),
            *(self.sign_ins.routes if self.sign_ins else ()),
        ]
        for page in self.pages:
            made.append(Route(page.path, self._html(page), methods=["GET"]))
            made.append(Route(page.api, self._json(page), methods=["GET"]))
        for live in (*overview.live(self.samples),):
            made.append(Route(live.path, Stream(live, self.streams), methods=["GET"]))
        return [*made, *Changes(self.changes, self, self._audit).routes]

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: object) -> AsyncIterator[None]:
        sampling = asyncio.create_task(self.samples.run(), name="console samples")
        try:
            yield
        finally:
            sampling.cancel()
            await asyncio.wait([sampling])
            if self._doctor is not None:
                await self._doctor.close()

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
        content = schema_of(self.pages, self.changes)

        async def respond(_request: Request) -> Response:
            return JSONResponse(content)

        return respond

    async def _load(self, request: Request, page: Page, query: Any) -> Any:
        try:
            async with asyncio.timeout(PAGE_S):
                return await page.load(self.reads_of(request), query)
        except TimeoutError:
            raise TooSlowError(
                f"the cluster did not respond within {PAGE_S:.0f} s: see the overview, or try again"
            ) from None

    def check_role(self, request: Request, role: Role) -> None:
        """Check that the user of a request has a role, or a higher one.

        Raises:
            HTTPException: with the status 403.
        """
        if not self._has_role(request, role):
            raise HTTPException(403, f"expected the role {role.name.lower()} or higher")

    def _has_role(self, request: Request, role: Role) -> bool:
        signed_in = request.state.signed_in
        return signed_in is None or signed_in.user.role >= role

    def reads_of(self, request: Request) -> Reads:
        """Return the cluster as the user of a request may see it."""
        return self._reads

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
    if options.users is None and not is_local:
        raise ConfigError(
            f"--host {options.host} without --users: expected a file of users, since every visitor"
            " could read all messages otherwise; 'cometmq console-user' makes one"
        )
    if (options.certificate is None) != (options.key is None):
        raise ConfigError("expected both --certificate and --key, or neither of them")
