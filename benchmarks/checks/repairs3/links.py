"""Links in a stranger's run folder where commands write: how many were tried, and how many were written through."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.faults.links import links


def measure() -> dict[str, float]:
    """links_tried: a command, a name and what the link leads to; links_written: 0 if all that stayed as it was."""
    with tempfile.TemporaryDirectory() as folder:
        found = links(Path(folder), quick=False)
    print(found.words)
    return found.figures
