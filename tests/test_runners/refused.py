"""Runs command lines that must be refused, each in a fork of this process, and prints what came of them as JSON.

    python refused.py FILE [N]     all lines of a file such as bad_lines.txt, or N light ones, drawn by a seed

A fork per line starts as a fresh process does, without its seconds of imports: lines below "without torch" are forked
before this process loads torch.
"""

import contextlib
import importlib
import io
import json
import os
import random
import shlex
import signal
import sys
import time
from pathlib import Path

import runners.cli.compose

LIMIT = 60  # seconds a line may take before it counts as hanging


def sections(file, n):
    """(without torch or not, lines) of the file, or of `n` light lines drawn from it."""
    light, heavy = (part.strip().splitlines() for part in Path(file).read_text().split("# ---- with torch"))
    light = [line for line in light if line and not line.startswith("#")]
    heavy = [line for line in heavy if line]
    drawn = set(random.Random(0).sample(light, n)) if n else {*light, *heavy}
    return [(True, [line for line in light if line in drawn]), (False, [line for line in heavy if line in drawn])]


def run(line):
    """Exit code or what was raised, stderr, stdout, and whether torch was loaded."""
    name, *sys.argv[1:] = shlex.split(line)
    err, out = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
            module = importlib.import_module(f"runners.{name}")
            main = getattr(module, "main", None) or importlib.import_module(f"runners.{name}.__main__").main
            code = main()
    except BaseException as error:
        code = f"{type(error).__name__}: {error}"
    return code, err.getvalue()[-3000:], out.getvalue()[-3000:], "torch" in sys.modules


def forked(line):
    """What `run` returns, from a fork."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(LIMIT)
        os.write(write, json.dumps(run(line)).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(said) if said else [f"died with status {status}", "", "", False]


def faults(result, light):
    """What is wrong with how a line was refused, in words; nothing if it is one sentence and an exit code."""
    code, err, out, torch = result
    said = err.strip() or ("" if len(out.split("\n")) < 3 else "the help")  # an empty command line prints the help
    return [
        *([f"exit code {code}"] if not isinstance(code, int) or not 0 < code < 128 else []),
        *(["traceback"] if "Traceback" in err else []),
        *([f"{err.strip().count(chr(10)) + 1} lines"] if "\n" in err.strip() else []),
        *(["silent"] if not said else []),
        *(["torch"] if torch and light else []),
    ]


if __name__ == "__main__":
    for light, lines in sections(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0):
        if not light and lines:
            import stable_baselines3  # noqa: F401

            import runners.run.build  # noqa: F401
        for line in lines:
            start = time.perf_counter()
            result = forked(line)
            seconds = round(time.perf_counter() - start, 2)
            print(json.dumps([line, faults(result, light), result[1].strip()[-400:], seconds]), flush=True)
