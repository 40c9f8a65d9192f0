"""The OpenAPI schema of the API, made of the structs of the pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

import cometmq
from cometmq.console.pages import Page

REF = "#/components/schemas/{name}"


class Failure(msgspec.Struct):
    """Why a request of the API failed."""

    error: str


def schema_of(pages: Sequence[Page]) -> dict[str, Any]:
    """Return the schema, version 3.1."""
    kinds = [page.result for page in pages]
    _, components = msgspec.json.schema_components([*kinds, Failure], ref_template=REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "CometMQ console", "version": cometmq.__version__},
        "paths": {page.api: {"get": _operation(page)} for page in pages},
        "components": {
            "schemas": components,
            "securitySchemes": {
                "session": {"type": "apiKey", "in": "cookie", "name": "cometmq_session"}
            },
        },
        "security": [{"session": []}, {}],
    }


def _operation(page: Page) -> dict[str, Any]:
    queries, parts = msgspec.json.schema_components([page.query], ref_template=REF)
    name = queries[0]["$ref"].rpartition("/")[2]
    found = parts[name]
    return {
        "operationId": page.load.__name__,
        "summary": page.title,
        "description": f"Needs the role {page.role.name.lower()}.",
        "parameters": [
            {"name": key, "in": "query", "required": key in found.get("required", ())}
            | {"schema": schema}
            for key, schema in found["properties"].items()
        ],
        "responses": {
            "200": _content("The content of the page.", page.result.__name__),
            **{
                code: _content(text, Failure.__name__)
                for code, text in (
                    ("400", "A parameter is wrong."),
                    ("401", "No user is signed in."),
                    ("403", "The role of the user is too low."),
                    ("404", "There is nothing of this name."),
                    ("502", "The cluster refused or did not respond."),
                    ("504", "The cluster took too long."),
                )
            },
        },
    }


def _content(text: str, kind: str) -> dict[str, Any]:
    schema = {"$ref": REF.format(name=kind)}
    return {"description": text, "content": {"application/json": {"schema": schema}}}
