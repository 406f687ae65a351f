"""The OpenAPI document as one HTML page without scripts: paths by subject, then every schema as a table."""

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from photonlite.server.bodies.schema_parts import Json

STYLE: Final = """
:root { color-scheme: light dark; --text: #1d2129; --quiet: #5b6472; --line: #d9dee6; --back: #fff; --panel: #f5f7fa;
  --link: #0b57b7; --get: #12703f; --post: #8a4300; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ef; --quiet: #a2abba; --line: #353c48; --back: #14171c;
  --panel: #1d2229; --link: #8ab8ff; --get: #6fd59c; --post: #f2b070; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
header, main, nav { max-width: 62rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 2rem; }
h1 { margin: 0; font-size: 1.8rem; }
h2 { margin: 2.5rem 0 .3rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h3 { margin: 1.6rem 0 .3rem; font-size: 1.05rem; }
h4 { margin: .9rem 0 .2rem; font-size: .85rem; color: var(--quiet); text-transform: uppercase; letter-spacing: .04em; }
p { margin: .3rem 0; max-width: 46rem; }
a { color: var(--link); }
nav { padding-top: 1rem; }
nav ul { margin: .2rem 0; padding: 0; list-style: none; columns: 18rem; }
nav li { break-inside: avoid; }
nav a { display: block; padding: .2rem 0; text-decoration: none; overflow-wrap: anywhere; }
code, pre { font: .9em/1.45 ui-monospace, monospace; }
pre { margin: .3rem 0; padding: .7rem; overflow-x: auto; background: var(--panel); border-radius: 6px; }
details { margin: .6rem 0; border: 1px solid var(--line); border-radius: 8px; background: var(--back); }
summary { display: flex; flex-wrap: wrap; gap: .2rem .8rem; align-items: baseline; padding: .6rem .8rem;
  cursor: pointer; border-radius: 8px; }
summary:hover { background: var(--panel); }
summary code { font-weight: 600; overflow-wrap: anywhere; }
.body { padding: .2rem .8rem .8rem; }
.method { min-width: 3.2rem; font: 600 .85rem ui-monospace, monospace; }
.get { color: var(--get); }
.post { color: var(--post); }
.quiet { color: var(--quiet); }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: .94rem; }
th { text-align: left; font-weight: 600; color: var(--quiet); font-size: .85rem; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td:first-child { white-space: nowrap; }
td:last-child { width: 50%; }
:target { scroll-margin-top: 1rem; outline: 2px solid var(--link); outline-offset: 4px; border-radius: 4px; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
"""


def page(document: Json) -> str:
    """Write the page.

    Args:
        document: See `schema.document`.
    """
    info = document["info"]
    parts = [
        f"<header><h1>{_text(info['title'])} {_text(info['version'])}</h1><p>{_text(info['summary'])} ",
        "The same for programs: <a href='/openapi.json'>openapi.json</a>.</p></header>",
        f"<nav aria-label='Paths'><ul>{''.join(_links(document))}</ul></nav><main>",
        *(part for tag in document["tags"] for part in _tag(tag, document)),
        "<h2 id='schemas'>Schemas</h2>",
        *(part for name, schema in document["components"]["schemas"].items() for part in _schema(name, schema)),
        "</main>",
    ]
    head = "<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
    title = f"<title>{_text(info['title'])}: interface</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}{title}</head><body>{''.join(parts)}</body></html>"


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _links(document: Json) -> Iterator[str]:
    for path, method, operation in _operations(document):
        yield f"<li><a href='#{_text(operation['operationId'])}'>{_method(method)} <code>{_text(path)}</code></a></li>"


def _tag(tag: Json, document: Json) -> Iterator[str]:
    yield f"<h2>{_text(tag['name'])}</h2><p>{_prose(tag['description'])}</p>"
    for path, method, operation in _operations(document):
        if tag["name"] in operation["tags"]:
            yield from _operation(path, method, operation)


def _operation(path: str, method: str, operation: Json) -> Iterator[str]:
    yield f"<details open id='{_text(operation['operationId'])}'><summary>{_method(method)}<code>{_text(path)}</code>"
    yield f"<span>{_text(operation['summary'])}</span></summary><div class='body'>"
    if "description" in operation:
        yield f"<p>{_prose(operation['description'])}</p>"
    content = operation.get("requestBody", {}).get("content", {})
    if content:
        yield f"<h4>Body</h4>{_bodies(content)}"
    for example in (media["example"] for media in content.values() if "example" in media):
        yield f"<pre tabindex='0'>{_text(json.dumps(example, ensure_ascii=False, indent=2))}</pre>"
    if operation.get("parameters"):
        fields = {parameter["name"]: {**parameter, **parameter["schema"]} for parameter in operation["parameters"]}
        needed = [parameter["name"] for parameter in operation["parameters"] if parameter["required"]]
        yield f"<h4>{_places(operation['parameters'])}</h4>{_fields(fields, needed)}"
    yield f"<h4>Answers</h4>{_answers(operation['responses'])}</div></details>"


def _places(parameters: list[Json]) -> str:
    words = {"query": "Query string, where the image is the body", "path": "Path", "header": "Headers"}
    return " and ".join(dict.fromkeys(words[parameter["in"]] for parameter in parameters))


def _bodies(content: Json) -> str:
    """List media types; those with the same kind of body share a line."""
    kinds: dict[str, list[str]] = {}
    for media_type, media in content.items():
        kinds.setdefault(_type(media["schema"]), []).append(f"<code>{_text(media_type)}</code>")
    return "".join(f"<p>{', '.join(types)}: {kind}</p>" for kind, types in kinds.items())


def _answers(responses: Json) -> str:
    rows = []
    for status, answer in sorted(responses.items()):
        kinds = "<br>".join(
            f"{_answer_type(media_type, media['schema'])} <span class='quiet'>{_text(media_type)}</span>"
            for media_type, media in answer.get("content", {}).items()
        )
        rows.append(f"<tr><td><code>{status}</code></td><td>{kinds}</td><td>{_prose(answer['description'])}</td></tr>")
    return _table(("Status", "Body", "When"), rows)


def _answer_type(media_type: str, schema: Json) -> str:
    return f"events: {_type(schema['properties']['data'])}" if media_type == "text/event-stream" else _type(schema)


def _schema(name: str, schema: Json) -> Iterator[str]:
    yield f"<h3 id='schema-{_text(name)}'>{_text(name)}</h3>"
    if "description" in schema:
        yield f"<p>{_prose(schema['description'])}</p>"
    if "properties" in schema:
        yield _fields(schema["properties"], schema.get("required", []))
    else:
        yield f"<p>{_type(schema)}</p>"


def _fields(properties: Mapping[str, Json], needed: list[str]) -> str:
    rows = [
        f"<tr><td><code>{_text(name)}</code>{'' if name in needed else ' <span class=quiet>optional</span>'}</td>"
        f"<td>{_type(schema)}</td><td>{_prose(schema.get('description', ''))}</td></tr>"
        for name, schema in properties.items()
    ]
    return _table(("Field", "Value", "Meaning"), rows)


def _table(titles: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _type(schema: Json) -> str:
    """Say in a few words what a schema allows; a schema with a name becomes a link."""
    if "$ref" in schema:
        name = _text(schema["$ref"].rpartition("/")[2])
        return f"<a href='#schema-{name}'>{name}</a>"
    if "const" in schema:
        return f"<code>{_text(_compact(schema['const']))}</code>"
    if "enum" in schema:
        return ", ".join(f"<code>{_text(_compact(value))}</code>" for value in schema["enum"])
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(map(_type, schema[choice]))
    return _plain_type(schema)


def _plain_type(schema: Json) -> str:
    if "contentSchema" in schema:
        return _type(schema["contentSchema"])
    kinds = schema.get("type", "anything")
    if kinds == "array":
        return f"list of {_type(schema['items'])}"
    if kinds == "object" and "properties" in schema:
        inner = ", ".join(f"<code>{_text(name)}</code>: {_type(value)}" for name, value in schema["properties"].items())
        return f"object ({inner})"
    words = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    limits = [
        f"{word} {_compact(schema[key])}"
        for key, word in (("minimum", "from"), ("maximum", "to"), ("maxLength", "up to"), ("default", "default"))
        if key in schema
    ]
    return _text(", ".join([words, *limits]))


def _method(method: str) -> str:
    return f"<span class='method {method}'>{method.upper()}</span>"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _prose(value: str) -> str:
    """Write a description: what stands between backticks is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", _text(value))


def _text(value: str) -> str:
    return escape(value, quote=True)
