"""/openapi.json and /docs: the API described by its own types, on a page without scripts or anything from elsewhere."""

from __future__ import annotations

import html
import json
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse

router = APIRouter()
Schema = dict[str, Any]


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())


@router.get("/docs", include_in_schema=False)
def docs(request: Request) -> HTMLResponse:
    described = request.app.openapi()
    sections = [
        _section(method.upper(), path, operation, described)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    title = html.escape(described["info"]["title"])
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<link rel="stylesheet" href="/docs.css"><h1>{title}</h1><p>As data: <a href="/openapi.json">openapi.json</a></p>'
        + "".join(sections)
    )


@router.get("/docs.css", include_in_schema=False)
def style() -> HTMLResponse:
    return HTMLResponse(
        "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
        "table{border-collapse:collapse}td,th{text-align:left;padding:.2rem 1rem .2rem 0;vertical-align:top}"
        "code{font-size:.95em}",
        media_type="text/css",
    )


def _section(method: str, path: str, operation: Schema, described: Schema) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(_kind(field, described))}"
        f"<td>{'required' if needed else ''}<td>{html.escape(_limits(field))}"
        for name, field, needed in _fields(operation, described)
    )
    table = f"<table><tr><th>field<th>type<th><th>limits{rows}</table>" if rows else ""
    words = html.escape(str(operation.get("description", "")))
    return f"<h2><code>{method} {html.escape(path)}</code></h2><p>{words}</p>{table}"


def _fields(operation: Schema, described: Schema) -> list[tuple[str, Schema, bool]]:
    """Of the body: name, type, whether it must be there."""
    found = []
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = _follow(content["schema"], described)
        needed = schema.get("required", [])
        found += [(name, field, name in needed) for name, field in schema.get("properties", {}).items()]
    return found


def _follow(schema: Schema, described: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    named: Schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return named


def _kind(schema: Schema, described: Schema) -> str:
    """A type in words: `string`, `list of integer`, `string or list of string`."""
    if "anyOf" in schema:
        return " or ".join(_kind(s, described) for s in schema["anyOf"] if s.get("type") != "null")
    if "$ref" in schema:
        fields = _follow(schema, described).get("properties", {})
        return "{" + ", ".join(f"{name}: {_kind(field, described)}" for name, field in fields.items()) + "}"
    if "enum" in schema or "const" in schema:
        return " or ".join(json.dumps(v) for v in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}), described)}"
    return str(schema.get("format") or schema.get("type") or "anything")


def _limits(schema: Schema) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    parts = [s for s in schema.get("anyOf", [schema]) if s.get("type") != "null"]
    return ", ".join(f"{word} {part[key]:g}" for part in parts for key, word in words.items() if key in part)
