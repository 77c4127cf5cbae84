"""What a user finds: pages whose blocks run, docstrings, the README's length.

`doc_blocks_run` of `doc_blocks_found` blocks of README and guides ran, budgets cut; the others only install.
`docstring_share` counts public methods and properties that `help` describes, by words of their own or of what they
override; `docstring_share_own` those with words of their own.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.house import PACKAGES, ROOT


def run(folder: Path) -> dict[str, float]:
    """The figures; prints the blocks that failed."""
    from tests import doc_blocks

    found = {page: doc_blocks.blocks(text) for page, text in doc_blocks.pages().items()}
    failed = [line for page, blocks in found.items() if blocks for line in doc_blocks.run_page(page)]
    print(*failed, sep="\n")
    broken = len({line.split(": ")[0] for line in failed})
    every = [block for blocks in found.values() for block in blocks]
    return {
        "readme_lines": len((ROOT / "README.md").read_text().splitlines()),
        "doc_blocks_found": len(every),
        "doc_blocks_run": sum(block.runs for block in every) - broken,
        **docstrings(),
    }


def docstrings() -> dict[str, float]:
    """The share of public methods that are described, and by words of their own."""
    methods = [*public_methods()]
    described = [bool(inspect.getdoc(method)) for _, method in methods]
    own = [bool(getattr(method, "__doc__", None)) for _, method in methods]
    return {"docstring_share": sum(described) / len(methods), "docstring_share_own": sum(own) / len(methods)}


def public_methods() -> Iterator[tuple[str, Any]]:
    """(module.Class.name, method or property) of every public class of ours; what cannot be imported is left out."""
    names = [info.name for package in PACKAGES for info in pkgutil.walk_packages([str(ROOT / package)], f"{package}.")]
    for name in [*PACKAGES, *names]:
        with suppress(ImportError):
            importlib.import_module(name)
        for class_name, cls in vars(sys.modules.get(name, inspect)).items():
            if inspect.isclass(cls) and cls.__module__ == name and not class_name.startswith("_"):
                for key, value in vars(cls).items():
                    made = isinstance(value, property | classmethod | staticmethod)
                    defined = inspect.isfunction(value) and value.__name__ == key  # no default that is a function
                    if (made or defined) and not key.startswith("_"):
                        yield f"{name}.{class_name}.{key}", getattr(cls, key)


if __name__ == "__main__":
    print(*(name for name, method in public_methods() if not inspect.getdoc(method)), docstrings(), sep="\n")
