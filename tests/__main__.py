"""The fast tests, as `make test` runs them: `python -m tests [arguments of pytest]`.

Processes take one test file after another, and each file is imported where it runs and nowhere else. pytest-xdist
imports every file in every process first, which costs a tenth of the whole. What all files need is imported once: the
processes are forks of one that has it. PROCESSES= is how many there are; three keep two processors busy, as some wait.
"""

import gc
import importlib
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress

import pytest

from tests import conftest  # It also sets what libraries read from the environment when they are imported.

# What most files import, and takes a second or more together. None of it starts threads.
PRELOADED = (
    *("torch", "torch.distributions", "torch.optim", "gymnasium", "stable_baselines3", "minigrid", "highway_env"),
    *("scipy.stats", "matplotlib.pyplot", "hydra.compose", "hydra.utils", "runners.train", "runners.run.build"),
)
# Of pytest: all passed, and no test was there.
QUIET_CODES = (0, 5)
SUMMARY = re.compile(r"(\d+) (passed|failed|skipped|deselected|errors?|xfailed|xpassed|warnings?)")


class Share:
    """A session of pytest that collects a file only when it has taken it from those that are left."""

    def __init__(self, next_file, screen: int, output: int) -> None:
        self.next_file = next_file  # its number, shared by all processes
        self.screen = screen
        self.output = output
        self.units: list = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        """Folders and files are ordered by ours and not selected by name or marker, as tests are."""
        collectors = [node for node in items if isinstance(node, pytest.Collector)]
        items[:] = [node for node in items if isinstance(node, pytest.Item)]
        yield
        items += collectors

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session):
        pending = list(session.perform_collect(genitems=False))
        while pending:
            node = pending.pop(0)
            if isinstance(node, pytest.Directory):
                pending += node.collect()
            else:
                self.units.append(node)
        conftest.pytest_collection_modifyitems(self.units)
        return True

    def _take(self):
        """The next file, or None at the end."""
        with self.next_file.get_lock():
            number = self.next_file.value
            self.next_file.value += 1
        count = len(self.units)
        if number >= count:
            return None
        if number % 30 == 0:
            os.write(self.screen, f"{number} of {count} files begun\n".encode())
        return self.units[number]

    def _items(self, session):
        unit = self._take()
        while unit is not None:
            # Collecting makes many objects that all stay: nobody looks for garbage among them.
            gc.disable()
            session.items = list(session.genitems(unit))
            session.config.hook.pytest_collection_modifyitems(
                session=session, config=session.config, items=session.items
            )
            gc.collect()
            gc.freeze()
            gc.enable()
            session.testscollected += len(session.items)
            yield from session.items
            unit = self._take()

    def pytest_runtest_logstart(self, nodeid):
        """Should this process die, its last words say where."""
        os.write(self.output, f"\nbegins {nodeid}\n".encode())

    def pytest_runtestloop(self, session):
        # One test ahead, so that fixtures of a session outlive a file.
        items = self._items(session)
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail or session.shouldstop:
                self.next_file.value = len(self.units)
                raise session.Failed(session.shouldfail or session.shouldstop)
            item = following
        return True


def run_share(arguments: list[str], next_file, output: int) -> int:
    """The exit code of one process, whose words go to a file."""
    screen = os.dup(1)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = pytest.main(["-p", "no:cacheprovider", *arguments], plugins=[Share(next_file, screen, output)])
    sys.stdout.flush()
    return int(code)


def start_share(arguments: list[str], next_file, output: int) -> int:
    """The number of a new process."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = run_share(arguments, next_file, output)
        finally:
            os._exit(code)
    return child


def show(words: str, status: int) -> Counter:
    """Print what a process says of failures; how many of its tests passed, failed, ..."""
    code = os.waitstatus_to_exitcode(status)
    *_, last = words.splitlines() or [""]
    if code < 0:
        last_begun = words.rpartition("\nbegins ")[2]
        print(f"ERROR a process of the tests was ended by signal {-code} in {last_begun}")
    elif code not in QUIET_CODES:
        # Failures stand below the first headline; a mistake in the arguments has none.
        start = re.search(r"^=+ (FAILURES|ERRORS) ", words, re.MULTILINE)
        print(words[start.start() if start else 0 :])
    # One is an error, and of several processes there are errors.
    plural = {"error": "errors", "warning": "warnings"}
    return Counter({plural.get(name, name): int(number) for number, name in SUMMARY.findall(last)})


def main(arguments: list[str]) -> int:
    """The exit code: that of the first process that did not pass."""
    began = time.monotonic()
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    next_file = multiprocessing.Value("i", 0)
    count = int(os.environ.get("PROCESSES", 3))
    outputs = [tempfile.TemporaryFile("w+") for _ in range(count)]  # noqa: SIM115
    children = [start_share(arguments, next_file, output.fileno()) for output in outputs]
    # Whoever is interrupted says so; this waits for them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    counts: Counter = Counter()
    for output, status in zip(outputs, statuses):
        output.seek(0)
        counts += show(output.read(), status)
    seconds = time.monotonic() - began
    print(", ".join(f"{number} {name}" for name, number in counts.items()), f"in {seconds:.1f} s")
    codes = [os.waitstatus_to_exitcode(status) for status in statuses]
    failed = [code for code in codes if code not in QUIET_CODES]
    return failed[0] if failed else min(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
