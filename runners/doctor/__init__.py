"""What is here, what is not, and what to do about it: `python -m runners.doctor`.

Every check runs in a process of its own with a limit of time (`ask`): one that crashes or hangs is a line, never the
end. The process that asks imports nothing but the standard library, so that it works where everything is missing.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any, NamedTuple, NoReturn


class Finding(NamedTuple):
    """One line."""

    # What was looked at.
    name: str
    # "ok", "warning" (works, with a drawback), "optional" (not there, nor needed), "missing" (or broken).
    state: str
    # What was seen, with versions and units.
    found: str
    # What to do about it, in words or as a command; "" if there is nothing to do.
    fix: str = ""
    # Whether nothing can be trained without it; what is not required is never "missing".
    required: bool = True

    @classmethod
    def of(cls, name: str, found: str, fix: str = "", required: bool = True) -> "Finding":
        """A warning if there is something to fix, else ok."""
        return cls(name, "warning" if fix else "ok", found, fix, required)

    @classmethod
    def broken(cls, name: str, found: str, fix: str = "", required: bool = True) -> "Finding":
        """Missing, or a warning where training does without it."""
        return cls(name, "missing" if required else "warning", found, fix, required)


def ask(
    name: str, target: str, *arguments: Any, fix: str = "", required: bool = True, timeout: float = 60, **variables: str
) -> list[Finding]:
    """Run a check, "module:function", in a process of its own: what it found, and a line if it did not come to its end.

    That line has the `name`, `fix` and `required`. The arguments are plain data. After `timeout` seconds the process is
    killed, and all it started. `variables` are of its environment, beside those of this process.
    """
    child = "import runners.doctor; runners.doctor.run()"
    command = [sys.executable, "-X", "faulthandler", "-c", child, target, json.dumps(arguments)]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **variables},
            start_new_session=True,
        )
    except OSError as error:
        return [Finding.broken(name, f"no process could be started for it ({error})", fix, required)]
    hung = False
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        hung = True
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    findings: list[Finding] = []
    failure = ""
    for text in out.splitlines():
        # The line that was being written when the process died is left out.
        if text.startswith("{") and text.endswith("}"):
            line = json.loads(text)
            if "end" in line:
                return findings
            if "name" in line:
                findings.append(Finding(**line))
            failure = line.get("error", failure)
    if hung:
        failure = f"did not answer within {timeout:g} s"
    failure = failure or _death(process.returncode, err)
    return [*findings, Finding.broken(name, failure, fix, required)]


def run() -> NoReturn:
    """The check that the arguments name, in this process: a line of JSON a finding, apart from what libraries print."""
    # What libraries print on the standard output goes to the standard error.
    findings = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def write_finding(**line: object) -> None:
        print(json.dumps(line), file=findings, flush=True)

    try:
        for finding in resolve_name(sys.argv[1])(*json.loads(sys.argv[2])):
            write_finding(**finding._asdict())
        write_finding(end=True)
    except Exception as error:
        write_finding(error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    sys.stdout.flush()
    os._exit(0)


def _death(code: int, err: str) -> str:
    """How a process ended, and the innermost line that faulthandler names, or the last line."""
    ending = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    place = "it said nothing"
    for line in filter(None, map(str.strip, err.splitlines())):
        place = line
        if line.startswith("File "):
            break
    return f"its process died ({ending}): {place[:200]}"
