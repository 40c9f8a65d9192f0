"""The OpenAPI schema of the API, made of the structs of pages, changes and downloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

import cometmq
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


class Failure(msgspec.Struct):
    """Why a request of the API failed."""

    error: str


def schema_of(
    pages: Sequence[Page], changes: Sequence[Change], downloads: Sequence[Download]
) -> dict[str, Any]:
    """Return the schema, version 3.1."""
    kinds: list[type[msgspec.Struct]] = [page.result for page in pages]
    for change in changes:
        kinds += [change.form, change.result, *filter(None, [change.previewed])]
    _, components = msgspec.json.schema_components([*kinds, Failure], ref_template=REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "CometMQ console", "version": cometmq.__version__},
        "paths": {page.api: {"get": _operation(page)} for page in pages}
        | {change.api: _change(change) for change in changes}
        | {download.api: {"get": _download(download)} for download in downloads},
        "components": {
            "schemas": components,
            "securitySchemes": {
                "session": {"type": "apiKey", "in": "cookie", "name": "cometmq_session"}
            },
        },
        "security": [{"session": []}, {}],
    }


def _operation(page: Page) -> dict[str, Any]:
    return {
        "operationId": page.load.__name__,
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
        "operationId": download.open.__name__,
        "summary": download.title,
        "description": f"Needs the role {download.role.name.lower()}.",
        "parameters": _parameters(download.query),
        "responses": responses,
    }


def _change(change: Change) -> dict[str, Any]:
    name = change.path.strip("/").replace("/", "_").replace("-", "_")
    description = f"Needs the role {change.role.name.lower()}."
    schema = {"$ref": REF.format(name=change.form.__name__)}
    made: dict[str, Any] = {
        "post": {
            "operationId": name,
            "summary": change.title,
            "description": description,
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": _responses("What was done.", change.result),
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
