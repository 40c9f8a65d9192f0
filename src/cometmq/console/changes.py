"""A change: a form, a preview of what it does, and its result, as pages and as JSON."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cometmq.client.errors import ClientError
from cometmq.console.access.audit import AuditLog
from cometmq.console.access.sessions import AttemptLimit
from cometmq.console.access.sign_in import RefusedError, address_of, body_of, is_same
from cometmq.console.forms import (
    Form,
    fields_of,
    form_of_fields,
    logged_values,
    shown_values,
    values_of,
    without_secrets,
)
from cometmq.console.pages import Role, encoded, status_of, within
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError, ConfigError
from cometmq.system.clock import Clock

BODY_BYTES_MAX = 1024 * 1024
FIELDS_MAX = 1_100
FORM_TOKEN, PREVIEWED = "form_token", "previewed"
CHANGE_S = 15.0


class Change(NamedTuple):
    """A change of the cluster.

    A GET of its path shows the form, filled with the query; a POST does it. A POST to the path
    after ``/api`` takes the form as JSON.
    """

    path: str
    title: str
    """An imperative, such as ``Create a topic``: the heading, and the text of the button."""
    form: type[Form]
    apply: Callable[[Reads, Any], Awaitable[msgspec.Struct]]
    result: type[msgspec.Struct]
    role: Role = Role.OPERATOR
    preview: Callable[[Reads, Any], Awaitable[msgspec.Struct]] | None = None
    """Shown before: the change is made when the form is sent again with the values of the preview.
    The JSON of it is the GET of the path after ``/api``."""
    previewed: type[msgspec.Struct] | None = None
    """What `preview` returns."""
    back: Callable[[Any], str] | None = None
    """Returns the address to go on with after the form; the tab above if there is none."""
    following: Callable[[Any, Any], tuple[str, str] | None] | None = None
    """Returns text and address of what follows, by the form and the result; None for nothing."""
    seconds: float = CHANGE_S
    """The longest time."""

    @property
    def api(self) -> str:
        """The path of the same as JSON."""
        return f"/api{self.path}"


class Site(Protocol):
    """What a change needs of the application."""

    def check_role(self, request: Request, role: Role) -> None:
        """Raise an `HTTPException` if the user of a request has a lower role."""

    def reads_of(self, request: Request) -> Reads:
        """Return the cluster as the user of a request may see it."""

    def page(self, request: Request, template: str, status: int, **values: Any) -> Response:
        """Return a page."""


class Changes:
    """The routes of the changes.

    Args:
        changes: of all features.
        site: the application.
        audit: gets a line before a change, which is not made if that fails, and one after it.
    """

    def __init__(self, changes: Sequence[Change], site: Site, audit: AuditLog) -> None:
        self._changes, self._site, self._audit = changes, site, audit
        self._refusals = AttemptLimit(Clock())

    @property
    def routes(self) -> list[Route]:
        """The routes, of pages and of JSON."""
        made = []
        for change in self._changes:
            made += [
                Route(change.path, self._form(change), methods=["GET"]),
                Route(change.path, self._sent(change), methods=["POST"]),
                Route(change.api, self._sent_as_json(change), methods=["POST"]),
            ]
            if change.preview is not None:
                made.append(Route(change.api, self._preview_as_json(change), methods=["GET"]))
        return made

    def _form(self, change: Change) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            self._site.check_role(request, change.role)
            pairs = request.query_params.multi_items()
            try:
                form_of_fields(change.form, pairs, is_sent=False)
            except ConfigError as error:
                unknown = {name for name, _ in pairs} - set(change.form.__struct_fields__)
                if unknown:
                    return self._show(request, change, {}, error=str(error), status=400)
            return self._show(
                request, change, _defaults(change.form) | shown_values(change.form, pairs)
            )

        return respond

    def _sent(self, change: Change) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            self._check_role(request, change)
            pairs, own = await _fields(request)
            signed_in = request.state.signed_in
            shown = shown_values(change.form, pairs)
            if signed_in is not None:
                token = signed_in.session.form_token
                if not is_same(own.get(FORM_TOKEN, ""), token):
                    text = "the form is of another session: check it, and send it again"
                    return self._show(request, change, shown, error=text, status=403)
            try:
                form = form_of_fields(change.form, pairs, is_sent=True)
                shown = values_of(form)
                if change.preview is not None and own.get(PREVIEWED) != _digest(form):
                    reads = self._site.reads_of(request)
                    preview = await _within(change, change.preview(reads, form))
                    return self._show(request, change, shown, preview=preview, form=form)
                result = await self._make(request, change, form)
            except CometError as error:
                status, text = status_of(error)
                return self._show(request, change, shown, error=text, status=status)
            back = change.back(form) if change.back else None
            following = change.following(form, result) if change.following else None
            return self._site.page(
                request, "change.html", 200,
                page=change, result=result, back=back, following=following, error="",
            )  # fmt: skip

        return respond

    def _sent_as_json(self, change: Change) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            self._check_role(request, change)
            try:
                if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                    raise RefusedError(415, "expected the content type application/json")
                body = await body_of(request, BODY_BYTES_MAX)
                form = msgspec.json.decode(body or b"{}", type=change.form)
                return _json(await self._make(request, change, form))
            except msgspec.DecodeError as error:
                return JSONResponse({"error": f"{error}: correct the body"}, 400)
            except RefusedError as error:
                return JSONResponse({"error": str(error)}, error.status, error.headers)
            except CometError as error:
                status, text = status_of(error)
                return JSONResponse({"error": text}, status)

        return respond

    def _preview_as_json(self, change: Change) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            self._site.check_role(request, change.role)
            assert change.preview is not None
            try:
                pairs = request.query_params.multi_items()
                form = form_of_fields(change.form, pairs, is_sent=False)
                reads = self._site.reads_of(request)
                return _json(await _within(change, change.preview(reads, form)))
            except CometError as error:
                status, text = status_of(error)
                return JSONResponse({"error": text}, status)

        return respond

    def _check_role(self, request: Request, change: Change) -> None:
        """Check that the user of a request may make a change; log that one may not.

        Raises:
            HTTPException: with the status 403.
        """
        try:
            self._site.check_role(request, change.role)
        except HTTPException as error:
            name, address = request.state.signed_in.user.name, address_of(request)
            if not self._refusals.wait_s(name):  # so that a user cannot fill the disk of the log
                with contextlib.suppress(OSError):
                    self._audit.add(
                        user=name, address=address, action=change.path.lstrip("/"),
                        result=f"refused: {error.detail}",
                    )  # fmt: skip
            raise

    async def _make(self, request: Request, change: Change, form: Form) -> msgspec.Struct:
        """Make a change, and log it.

        Raises:
            CometError: it was refused, or failed; or nothing can be logged, so it was not made.
        """
        signed_in = request.state.signed_in

        def log(result: str) -> None:
            self._audit.add(
                user=signed_in.user.name if signed_in else "",
                address=address_of(request),
                action=change.path.lstrip("/"),
                result=result,
                values=logged_values(form),
            )

        try:
            log("begun")
        except OSError as error:
            raise AuditError(f"the audit log cannot be written: {error.strerror}") from None
        outcome = "cut off"
        reads = self._site.reads_of(request)
        try:
            made = await _within(change, change.apply(reads, form))
            outcome = "done"
            return made
        except CometError as error:
            text = without_secrets(form, str(error))
            outcome = f"failed: {text}"
            if text != str(error):  # RocketMQ's brokers repeat a secret key that is too short
                raise ClientError(text) from None
            raise
        finally:
            reads.forget()
            with contextlib.suppress(OSError):  # the line before says that it was begun
                log(outcome)

    def _show(
        self,
        request: Request,
        change: Change,
        values: dict[str, str],
        *,
        error: str = "",
        status: int = 200,
        preview: msgspec.Struct | None = None,
        form: Form | None = None,
    ) -> Response:
        return self._site.page(
            request, "change.html", status,
            page=change, fields=fields_of(change.form), values=values, error=error,
            preview=preview, previewed=_digest(form) if form is not None else "", result=None,
        )  # fmt: skip


async def at_each(changes: Mapping[str, Callable[[], Awaitable[object]]]) -> None:
    """Make the parts of a change, one after the other, until one fails.

    Args:
        changes: by what has it then, such as the name of a broker.

    Raises:
        ClientError: one failed; the text names it, and those that have the change.
    """
    done: list[str] = []
    for name, make in changes.items():
        try:
            await make()
        except CometError as error:
            made = f"{', '.join(done)} has the change" if done else "nothing was changed before it"
            raise ClientError(f"{name}: {error}; {made}") from error
        done.append(name)


class AuditError(CometError):
    """The audit log cannot be written."""


async def _within(change: Change, made: Awaitable[msgspec.Struct]) -> msgspec.Struct:
    """Await what a change does, for as long as it may take.

    Raises:
        CometError: it takes longer.
    """
    text = (
        f"the cluster did not respond within {change.seconds:.0f} s, so that it is not known"
        " what was done: look before you try again"
    )
    async with within(change.seconds, text):
        return await made


async def _fields(request: Request) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return the fields of a form that was sent: those of the change, and those of the console.

    Raises:
        RefusedError: they cannot be read.
    """
    body = await body_of(request, BODY_BYTES_MAX)
    try:
        pairs = parse_qsl(body.decode(), max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError:
        raise RefusedError(400, "The form cannot be read.") from None
    own = (FORM_TOKEN, PREVIEWED)
    return [each for each in pairs if each[0] not in own], dict(
        each for each in pairs if each[0] in own
    )


def _defaults(kind: type[Form]) -> dict[str, str]:
    """Return the defaults of the fields as texts."""
    values: dict[str, str] = {}
    for field in msgspec.structs.fields(kind):
        if isinstance(field.default, bool):
            values[field.name] = str(field.default).lower()
        elif isinstance(field.default, str | int | float):
            values[field.name] = str(field.default)
    return values


def _digest(form: Form) -> str:
    """Return a digest of the values of a form, without its secrets: it marks a previewed form."""
    return hashlib.sha256(msgspec.json.encode(values_of(form))).hexdigest()


def _json(value: msgspec.Struct) -> Response:
    return Response(encoded(value), media_type="application/json")
