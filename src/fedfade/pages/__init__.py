"""Pages for a browser: one file each, which loads nothing from outside and runs nothing but ours.

A page is a row of parts. The kind of a part names a template `KIND.html`, which shows its `text`,
and, where there is one, a script `KIND.js`, which is given its `data`:

    page_html("who should send where?", [PagePart("comparison", "quickstart", text, data)])

Whatever a template or a script is given is escaped: it may come from a stranger's folder.
"""

import base64
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import jinja2

from fedfade.shown import plain

_SHARED = ("page.js", "chart.js")
"""Scripts that those of the parts are written with."""


class PagePart(NamedTuple):
    """One part of a page."""

    kind: str
    title: str
    text: Mapping[str, Any]  # for the template
    data: object = None  # for the script


def page_html(title: str, parts: Sequence[PagePart], refresh_s: int | None = None) -> str:
    """A page as the text of a file; with `refresh_s` a browser reads it again so often."""
    own = [name for part in parts if (name := f"{part.kind}.js") in _names()]
    code = "\n".join(map(_file, dict.fromkeys((*_SHARED, *own))))
    script = f'(() => {{\n"use strict";\n{code}\nstart();\n}})();'
    style = _file("style.css")
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    template = _templates().get_template("page.html")
    given = {"title": title, "parts": parts, "refresh_s": refresh_s}
    return template.render(given, script=script, style=style, policy=policy)


def png_source(png: bytes) -> str:
    """A picture as the `src` of an image, in few colours: a third of the bytes."""
    from PIL import Image  # only where a page has a picture

    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(128).save(small, "png")
    return f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode('ascii')}"


def _names() -> set[str]:
    return {place.name for place in resources.files(__package__).iterdir()}


@cache
def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How a content policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


@cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_spelled_out,
    )
    made.filters["data"] = _data
    return made


def _spelled_out(value: object) -> object:
    """Control characters as text; escaping comes after this."""
    return plain(value) if type(value) is str else value  # not what a template calls safe


def _data(value: object) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(_clean(value), allow_nan=False, separators=(",", ":"))
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _clean(value: Any) -> Any:
    """Plain data with null for what is no number."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {plain(str(name)): _clean(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    return value
