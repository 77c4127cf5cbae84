"""Links of README, docs and notebooks that lead nowhere in a clone, which has no generated pages.

python -m benchmarks links
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.house import ROOT

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s\"\\]+)\)")
EXTERNAL = re.compile(r"https?://|mailto:")


def run(folder: Path) -> dict[str, float]:
    """The figures; prints each broken link."""
    del folder
    followed, broken = check_links(ROOT, pages(ROOT))
    print(*broken, sep="\n")
    return {"docs_links": followed, "docs_links_broken": len(broken)}


def pages(root: Path) -> list[Path]:
    """What people read first: README and its neighbours, docs, and notebooks; nothing that is generated."""
    docs = root / "docs"
    written = [*docs.glob("*.md"), *docs.glob("guide/*.md"), *docs.glob("notebooks/*.ipynb")]
    return sorted([*root.glob("*.md"), *written])


def check_links(root: Path, files: list[Path]) -> tuple[int, list[str]]:
    """How many links within `root` the files have, and those whose file or heading is missing."""
    followed = 0
    broken = []
    for path in files:
        # A block is shown as it stands.
        text = FENCED.sub("", path.read_text())
        for target in LINK.findall(text):
            if EXTERNAL.match(target):
                continue
            followed += 1
            place, _, anchor = target.partition("#")
            page = (path.parent / place).resolve() if place else path
            if not page.exists() or (anchor and anchor not in anchors(page.read_text())):
                broken.append(f"{path.relative_to(root)} -> {target}")
    return followed, broken


def anchors(text: str) -> set[str]:
    """What a page's headings are called in addresses."""
    names = set()
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        names.add(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"))
    return names
