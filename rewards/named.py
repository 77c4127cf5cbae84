"""Objects built by name with options, such as judges: unknown names and options get one sentence."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any


def make_named(what: str, table: Mapping[str, str], name: str, /, **options: Any) -> Any:
    """Import and build `table[name]`, "module:Class"; `seed` and `device` are passed only to classes that take them.

    Raises:
        ValueError: for an unknown name or option, with the nearest, or a missing one.
    """
    kind = check_named(what, table, name, **options)
    accepted = inspect.signature(kind).parameters
    return kind(**{key: value for key, value in options.items() if key in accepted})


def check_named(what: str, table: Mapping[str, str], name: str, /, **options: Any) -> Any:
    """The class that `make_named` would build, not built.

    Raises:
        ValueError: as `make_named`, but for what the class itself refuses.
    """
    if name not in table:
        raise ValueError(f"there is no {what} {name!r}; {nearest(name, list(table))}")
    module, _, attribute = table[name].partition(":")
    kind = getattr(import_module(module), attribute)
    accepted = inspect.signature(kind).parameters
    silent = ("seed", "device")
    known = [key for key in accepted if key not in silent]
    for key in options:
        if key not in known and key not in silent:
            raise ValueError(f"the {what} {name} has no option {key!r}; {nearest(key, known)}")
    for key in known:
        if key not in options and accepted[key].default is inspect.Parameter.empty:
            raise ValueError(f"the {what} {name} needs {key}; give it among the {what}'s options")
    return kind


def nearest(given: str, names: Sequence[str]) -> str:
    """Half a sentence that offers the nearest of `names`, or all."""
    near = difflib.get_close_matches(str(given), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names) or 'none'}"
