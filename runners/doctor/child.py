"""One check of the doctor, in this process: what it finds goes to the standard output, a line of JSON each.

python -m runners.doctor.child module:function '["argument"]'
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module


def main(argv: list[str]) -> int:
    """Run the check that `argv` names; whatever libraries print is kept apart from its findings."""
    findings = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def put(**line: object) -> None:
        print(json.dumps(line), file=findings, flush=True)

    target, arguments = argv
    module, _, name = target.partition(":")
    try:
        for finding in getattr(import_module(module), name)(*json.loads(arguments)):
            put(**finding._asdict())
    except Exception as error:
        put(error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return 1
    put(end=True)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # what a library does at exit is no part of the check
