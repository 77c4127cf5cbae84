"""The site: `make docs` builds it into docs/_build/html, with warnings as errors."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
# Notebooks run in processes of their own.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")

import generate  # noqa: E402

project = "Lodestar"
project_copyright = "2026, Lodestar"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # seconds of a cell
nb_output_stderr = "remove"
nb_merge_streams = True

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
