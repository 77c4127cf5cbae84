"""The site: `make docs` builds it into docs/_build, with warnings as errors."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import generate  # noqa: E402

project = "Lodestar"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

default_role = "code"  # docstrings write `name`
autodoc_typehints = "none"  # the signature has them
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "Lodestar"
html_copy_source = html_show_sourcelink = False
html_static_path = ["style"]
html_css_files = ["wide.css"]
html_theme_options = {
    "source_repository": "https://github.com/lodestar-rl/lodestar/",
    "source_branch": "main",
    "source_directory": "docs/",
}


def setup(app):
    """Called by Sphinx: the pages that the code knows are written before it reads any."""
    generate.write(HERE / "reference")
    app.connect("autodoc-process-docstring", generate.as_rst)
