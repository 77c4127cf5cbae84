"""Keys and passwords: kept out of what is printed and written, and refused where they would be written down.

A key belongs into an environment variable, which a configuration names (`key: OPENAI_API_KEY`). Secrets are
recognized by the variable's name; in a web address they stand before the `@`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from runners.run.config import UsageError

NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
LOGIN = re.compile(r"(\w://)[^/\s@'\"]+@")  # https://user:password@host
SHORTEST = 8  # characters; what is shorter may be a word of its own


def secrets() -> dict[str, str]:
    """Environment variables whose names mark their values as secret."""
    return {name: value for name, value in os.environ.items() if NAMES.search(name) and len(value) >= SHORTEST}


def masked(text: str) -> str:
    """A text without the secrets of the environment, and without logins in web addresses."""
    for value in sorted(secrets().values(), key=len, reverse=True):
        text = text.replace(value, "***")
    return LOGIN.sub(r"\1***@", text)


def refuse(arguments: Iterable[str]) -> None:
    """Keep secrets out of a command line, which is written down with the run.

    Raises:
        UsageError: naming the key, and the variable whose value was given.
    """
    known = secrets()
    for argument in arguments:
        key = argument.partition("=")[0]
        name = next((name for name, value in known.items() if value in argument), None)
        if name is not None:
            raise UsageError(
                f"{key} holds the value of ${name}, which would be written down; give the name {name} instead"
            )
        if LOGIN.search(argument):
            raise UsageError(
                f"{key} holds a web address with a login, which would be written down; put a key into an environment "
                "variable and give the variable's name as key="
            )
