"""The OpenAPI schema of the API, made of the structs of pages, changes and downloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

import cometmq
from cometmq.console.access.sign_in import API, Credentials
from cometmq.console.changes import Change
from cometmq.console.downloads import Download
from cometmq.console.pages import Page

REF = "#/components/schemas/{name}"


FAILURES = {
    "400": "A parameter is wrong.",
    "401": "No user is signed in.",
    "403": "The role of the user is too low.",
    "404": "There is nothing of this name.",
    "502": "The cluster refused or did not respond.",
    "504": "The cluster took too long.",
}


BODY_FAILURES = {
    "408": "The body took too long.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
}
SIGN_IN_FAILURES = BODY_FAILURES | {
    "403": "The user or the password is wrong.",
    "429": "Too many attempts: Retry-After says how long to wait.",
    "503": "The users cannot be read, or too many sign in at once.",
}


class FormToken(msgspec.Struct):
    """What forms of a session have to send."""

    form_token: str


class Failure(msgspec.Struct):
    """Why a request of the API failed."""

    error: str


def schema_of(
    pages: Sequence[Page],
    changes: Sequence[Change],
    downloads: Sequence[Download],
    *,
    has_sign_in: bool,
) -> dict[str, Any]:
    """Return the schema, version 3.1.

    Args:
        pages: of all features.
        changes: of all features.
        downloads: of all features.
        has_sign_in: whether requests need a session.
    """
    kinds: list[type[msgspec.Struct]] = [page.result for page in pages]
    for change in changes:
        kinds += [change.form, change.result, *filter(None, [change.previewed])]
    sign_in = [Credentials, FormToken] if has_sign_in else []
    _, components = msgspec.json.schema_components([*kinds, *sign_in, Failure], ref_template=REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "CometMQ console", "version": cometmq.__version__},
        "paths": {page.api: {"get": _operation(page)} for page in pages}
        | {change.api: _change(change) for change in changes}
        | {download.api: {"get": _download(download)} for download in downloads}
        | ({API: {"post": _sign_in()}} if has_sign_in else {}),
        "components": {
            "schemas": components,
            "securitySchemes": {
                "session": {"type": "apiKey", "in": "cookie", "name": "cometmq_session"}
            },
        },
        "security": [{"session": []}] if has_sign_in else [],
    }


def _sign_in() -> dict[str, Any]:
    return {
        "operationId": "sign_in",
        "summary": "Sign in",
        "description": "The response has the cookie of the session.",
        "security": [],
        "requestBody": _body(Credentials),
        "responses": _responses("A session has begun.", FormToken)
        | {code: _content(text, Failure.__name__) for code, text in SIGN_IN_FAILURES.items()},
    }


def _name(path: str) -> str:
    """Return the name of an operation: no other path has it."""
    return path.removeprefix("/api/").replace("/", "_").replace("-", "_")


def _body(kind: type[msgspec.Struct]) -> dict[str, Any]:
    schema = {"$ref": REF.format(name=kind.__name__)}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _operation(page: Page) -> dict[str, Any]:
    return {
        "operationId": _name(page.api),
        "summary": page.title,
        "description": f"Needs the role {page.role.name.lower()}.",
        "parameters": _parameters(page.query),
        "responses": _responses("The content of the page.", page.result),
    }


def _download(download: Download) -> dict[str, Any]:
    file = {"type": "string", "format": "binary"}
    responses = _failures() | {
        "200": {"description": "The file.", "content": {download.media_type: {"schema": file}}}
    }
    return {
        "operationId": _name(download.api),
        "summary": download.title,
        "description": f"Needs the role {download.role.name.lower()}.",
        "parameters": _parameters(download.query),
        "responses": responses,
    }


def _change(change: Change) -> dict[str, Any]:
    name = _name(change.api)
    description = f"Needs the role {change.role.name.lower()}."
    made: dict[str, Any] = {
        "post": {
            "operationId": name,
            "summary": change.title,
            "description": description,
            "requestBody": _body(change.form),
            "responses": _responses("What was done.", change.result)
            | {code: _content(text, Failure.__name__) for code, text in BODY_FAILURES.items()},
        }
    }
    if change.previewed is not None:
        made["get"] = {
            "operationId": f"preview_{name}",
            "summary": f"{change.title}: what it would do",
            "description": description,
            "parameters": _parameters(change.form),
            "responses": _responses("What it would do.", change.previewed),
        }
    return made


def _parameters(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    queries, parts = msgspec.json.schema_components([query], ref_template=REF)
    found = parts[queries[0]["$ref"].rpartition("/")[2]]
    return [
        {"name": key, "in": "query", "required": key in found.get("required", ())}
        | {"schema": schema}
        for key, schema in found["properties"].items()
    ]


def _responses(text: str, result: type[msgspec.Struct]) -> dict[str, Any]:
    return {"200": _content(text, result.__name__)} | _failures()


def _failures() -> dict[str, Any]:
    return {code: _content(text, Failure.__name__) for code, text in FAILURES.items()}


def _content(text: str, kind: str) -> dict[str, Any]:
    schema = {"$ref": REF.format(name=kind)}
    return {"description": text, "content": {"application/json": {"schema": schema}}}
