"""Which tags the glossary of `runners.run.progress` explains."""

import re

from runners.run.progress import TAGS


def explain(tag: str) -> str | None:
    """The glossary's sentence for a tag, or None for a tag it does not know; the most literal entry wins."""
    for pattern in sorted(TAGS, key=lambda pattern: (pattern.count("<"), -len(pattern))):
        expression = re.escape(pattern).replace("<name>", r"\w+").replace("<metric>", r"[\w/]+")
        if re.fullmatch(expression, tag):
            return TAGS[pattern]
    return None
