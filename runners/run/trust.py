"""What building a saved run would reach beyond it: code that its configuration names, servers, files.

Checkpoints, recordings and configurations are data, and reading them executes nothing. But a configuration may name an
environment as `module:Id`, which imports the module, a judge on a server, which is sent texts and a key, and files in
which answers are kept. On a command line that is intended; in a file that came from elsewhere it may be a trap.
So commands that load a saved run refuse it without `trust=true`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from runners.run.config import UsageError

HERE = ("localhost", "127.0.0.1", "::1")
WRITTEN = ("cache", "transcript", "answers")  # options of rewards that name a file of theirs
CODE = re.compile(r"[A-Za-z_]\w*([.:][A-Za-z_]\w*)+")  # a dotted name, which an environment may import


def require(trusted: bool, where: str, env: str, env_options: Any = None, rewards: Any = None) -> None:
    """Stop unless the user trusts what a saved configuration names; `where` says which configuration it is.

    Raises:
        UsageError: with what would happen.
    """
    wants = [] if trusted else sorted({*_reach(env, env_options or {}, rewards or {})})
    if wants:
        raise UsageError(
            f"{where} was saved with {', '.join(wants)}; add trust=true if the run is yours, or from a source you trust"
        )


def _reach(env: str, env_options: Any, rewards: Any) -> Iterator[str]:
    module = env.rpartition(":")[0]
    if module and module not in sys.modules:  # an import that is over executes nothing
        yield f"env={env}, which imports the module {module}"
    for value in _texts(env_options):
        if CODE.fullmatch(value):
            yield f"the name {value}, which an environment may import"
    for options in rewards.values():
        for field in WRITTEN:
            if options.get(field):
                yield f"the file {options[field]}, which would be written to"
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
