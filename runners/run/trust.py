"""What a run's folder may name, and what it may hold.

Checkpoints, recordings and configurations are data, and reading them executes nothing. But a configuration may name an
environment as `module:Id`, which imports the module, a judge on a server, which is sent texts and a key, and files in
which answers are kept. On a command line that is intended; in a file that came from elsewhere it may be a trap.
So commands that load a saved run refuse it without `trust=true`.

Keys and passwords are kept out of what is printed and written, and refused where they would be written down. A key
belongs into an environment variable, which a configuration names (`key: OPENAI_API_KEY`). Secrets are recognized by the
variable's name; in a web address they stand before the `@`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from runners.run.config import UsageError

HERE = ("localhost", "127.0.0.1", "::1")
WRITTEN = ("cache", "transcript", "answers")  # options of rewards that name a file of theirs
CODE = re.compile(r"[A-Za-z_]\w*([.:][A-Za-z_]\w*)+")  # a dotted name, which an environment may import
NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
LOGIN = re.compile(r"(\w://)[^/\s@'\"]+@")  # https://user:password@host
SHORTEST = 8  # characters; what is shorter may be a word of its own


def require(trusted: bool, where: str, env: str, env_options: Any = None, rewards: Any = None) -> None:
    """A UsageError unless the user trusts what a saved configuration, which `where` names, would reach."""
    wants = [] if trusted else sorted({*_reach(env, env_options or {}, rewards or {})})
    if wants:
        raise UsageError(
            f"{where} was saved with {', '.join(wants)}; add trust=true if the run is yours, or from a source you trust"
        )


def _reach(env: str, env_options: Any, rewards: Any) -> Iterator[str]:
    module = env.rpartition(":")[0]
    if module and module not in sys.modules:  # an import that is over executes nothing
        yield f"env={env}, which imports the module {module}"
    for value in filter(CODE.fullmatch, _texts(env_options)):
        yield f"the name {value}, which an environment may import"
    for options in rewards.values():
        for file in filter(None, map(options.get, WRITTEN)):
            yield f"the file {file}, which would be written to"
    for value in _texts(rewards):
        host = urlsplit(value).hostname if re.match(r"\w+://", value) else None
        if host and host not in HERE:
            yield f"a server at {host}, which would be sent what is seen and a key of yours"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def secrets() -> dict[str, str]:
    """Environment variables whose names mark their values as secret."""
    return {name: value for name, value in os.environ.items() if NAMES.search(name) and len(value) >= SHORTEST}


def masked(text: str) -> str:
    """A text without the secrets of the environment, and without logins in web addresses."""
    for value in sorted(secrets().values(), key=len, reverse=True):
        text = text.replace(value, "***")
    return LOGIN.sub(r"\1***@", text)


def refuse(arguments: Iterable[str]) -> None:
    """A UsageError if there is a secret in a command line, which is written down with the run."""
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
