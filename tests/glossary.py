"""Which tags docs/runs.md explains."""

import re
from pathlib import Path

DOCS = (Path(__file__).parents[1] / "docs" / "runs.md").read_text(encoding="utf-8")
TAGS = dict(
    re.findall(r"^\| `(.+?)` \| (.+) \|$", re.split(r"^## ", DOCS.partition("| tag |")[2], flags=re.M)[0], re.M)
)


def explain(tag: str) -> str | None:
    """The glossary's sentence for a tag, or None for a tag it does not know; the most literal entry wins."""
    for pattern in sorted(TAGS, key=lambda pattern: (pattern.count("<"), -len(pattern))):
        expression = re.escape(pattern).replace("<name>", r"\w+").replace("<metric>", r"[\w/]+")
        if re.fullmatch(expression, tag):
            return TAGS[pattern]
    return None
