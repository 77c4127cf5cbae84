"""Pages of HTML that need no other file: a Jinja template and values; figures, pictures and videos embedded as data.

Values are text to a template, which escapes them. `base.html` holds the style; no page runs scripts or loads anything.
"""

import base64
import io
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from lodestar.files import make_parent
from runners.run.checkpoint import write_atomically


def write(path: Path, template: str, values: dict[str, Any]) -> Path:
    """Fill in a template, named as in `report/page.html`, and write the page; makes its folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parents[1]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template(template).render(values)
    make_parent(path)
    write_atomically(path, page)
    return path


def data_uri(data: bytes, kind: str) -> str:
    """A data URI; as an image it cannot run scripts, whatever its text says."""
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def figure(drawn: Figure | None, kind: str = "svg", **options: Any) -> str:
    """A matplotlib figure as a data URI, "svg" or "png"; "" for none."""
    if drawn is None:
        return ""
    media_type = "image/png"
    if kind == "svg":
        media_type = "image/svg+xml"
        # Without the date the same numbers give the same bytes.
        options["metadata"] = {"Date": None}
    buffer = io.BytesIO()
    drawn.savefig(buffer, format=kind, **options)
    return data_uri(buffer.getvalue(), media_type)


def picture(pixels: np.ndarray | None, width: int = 0) -> str:
    """An image (H, W, 3) as a data URI, at its size or scaled to a width; "" for none."""
    if pixels is None:
        return ""
    image = Image.fromarray(pixels)
    if width:
        height = round(width * image.height / image.width)
        # A very wide image still needs a row.
        image = image.resize((width, max(height, 1)))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return data_uri(buffer.getvalue(), "image/png")
