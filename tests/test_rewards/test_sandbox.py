"""The sandbox: right numbers come back, and what would harm us does not get out, whichever wall it passes."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rewards.llm.sandbox import process as module
from rewards.llm.sandbox import worker
from rewards.llm.sandbox.process import Sandbox, SandboxError

ROOT = Path(__file__).resolve().parents[2]
SQUARES = "def factors(obs, action):\n    return np.stack([obs[:, 0] ** 2, action[:, 0] * obs[:, 1]], axis=1)"
OBS = np.array([[1, 2], [3, 4], [-5, 6]], np.float32)
ACTION = np.array([[1], [0.5], [-1]], np.float32)
RESULT = [[1, 2], [9, 2], [25, -6]]
# What escapes through Python's own objects: the functions of os, and the builtins.
OS = (
    "    kinds = ().__class__.__base__.__subclasses__()\n"
    "    os = [kind for kind in kinds if kind.__name__ == '_wrap_close'][0].__init__.__globals__\n"
)
EVERYTHING = OS + "    builtins = os['__builtins__']\n"


def pid_of(sandbox):
    """The sandbox's process; None without one."""
    held = sandbox._stop and sandbox._stop.peek()
    return held and held[2][0].pid


def box(body, *, obs_size=2, action_size=1, **limits):
    return Sandbox(f"def factors(obs, action):\n{body}", obs_size, action_size, **{"timeout": 20.0, **limits})


@pytest.fixture
def no_check(monkeypatch):
    """The first wall taken away: everything runs."""
    monkeypatch.setattr(module, "check", lambda source: source)


def test_factors_are_computed_row_by_row_and_in_large_batches():
    sandbox = Sandbox(SQUARES, 2, 1, timeout=20)
    assert sandbox.width == 2
    assert np.array_equal(sandbox(OBS, ACTION), np.array(RESULT, np.float32))
    many = sandbox(np.tile(OBS, (20_000, 1)), np.tile(ACTION, (20_000, 1)))
    assert many.dtype == np.float32
    assert np.array_equal(many, np.tile(np.array(RESULT, np.float32), (20_000, 1)))
    assert sandbox(OBS[:0], ACTION[:0]).shape == (0, 2)
    assert sandbox.counts == {"calls": 1 + 1 + 4, "failures": 0, "not finite": 0}
    assert sandbox.contained == (not sandbox.notes())


def test_code_may_write_into_what_it_is_given_but_our_arrays_stay():
    sandbox = box("    obs[:, 0] = 7\n    action *= 0\n    return obs + action")
    assert sandbox(OBS, ACTION)[:, 0].tolist() == [7, 7, 7]
    assert OBS[0, 0] == 1
    assert ACTION[0, 0] == 1


def test_nothing_is_remembered_from_one_call_to_the_next():
    source = "SEEN = []\ndef factors(obs, action):\n    SEEN.append(1)\n    return obs * 0 + len(SEEN)"
    sandbox = Sandbox(source, 2, 1)
    for _ in range(3):
        assert sandbox(OBS, ACTION).tolist() == [[1, 1]] * 3


def test_values_that_are_not_finite_become_0_and_are_counted():
    sandbox = box("    return np.stack([1 / obs[:, 0], obs[:, 0]], axis=1)")
    obs = np.array([[2, 0], [0, 0]], np.float32)
    assert sandbox(obs, ACTION[:2]).tolist() == [[0.5, 2], [0, 0]]
    assert sandbox.counts["not finite"] == 2 + 1  # two rows of zeros when it was built
    assert "3 rows had factors that were not finite" in sandbox.notes()[-1]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    return obs[:, 0]", r"returned an array \(2,\) for 2 rows; return an array \(2, k\)"),
        ("    return obs[:1]", r"returned an array \(1, 2\) for 2 rows"),
        ("    return 1.0", r"returned a float for 2 rows"),
        ("    return", r"returned a NoneType"),
        ("    return np.zeros((len(obs), 65))", r"k up to 64"),
        ("    return np.zeros((len(obs), 0))", r"return an array \(2, k\)"),
        ("    return obs[:, 5:6] + obs[:, 9]", r"IndexError: .* in the line: return obs\[:, 5:6\] \+ obs\[:, 9\]"),
        ("    return factors(obs, action)", r"RecursionError"),
        ("    return np.stack([obs, action])", r"ValueError: all input arrays must have the same shape"),
    ],
)
def test_code_that_answers_nonsense_is_refused_with_its_own_error(body, said):
    with pytest.raises(SandboxError, match=said):
        box(body)


LOOPS = "".join("    " * (i + 1) + f"for {name} in range(64):\n" for i, name in enumerate("abcdef"))


@pytest.mark.parametrize(
    ("body", "limits", "said"),
    [
        (LOOPS + "    " * 7 + "pass\n    return obs", {"timeout": 0.5}, r"took too long"),
        (
            "    x = 7\n    for i in range(64):\n        x = x ** 16\n    return obs",
            {"timeout": 0.5},
            r"too long|memory",
        ),
        ("    x = np.ones((1000000, 1000000))\n    return obs", {}, r"memory|Memory"),
        ("    x = [0] * 1000000000\n    return obs", {}, r"memory|Memory"),
        ("    x = np.arange(900000000.0)\n    return obs", {"memory": 64}, r"memory|Memory"),
        ("    x = [1]\n    for i in range(64):\n        x = x + x\n    return obs", {"memory": 64}, r"memory|Memory"),
        ("    x = np.tile(obs, (100000, 100000))\n    return obs", {}, r"memory|Memory"),
    ],
)
def test_code_that_runs_away_is_stopped(body, limits, said):
    with pytest.raises(SandboxError, match=said):
        box(body, **limits)


FILES = (
    "builtins['open']('{path}', 'w')",
    "os['open']('{path}', 66)",
    "os['mkdir']('{path}')",
    "os['symlink']('/', '{path}')",
    "os['rename']('/tmp', '{path}')",
    "builtins['open']('/proc/self/environ')",
    "builtins['open']('/proc/' + str(os['getppid']()) + '/environ')",
    "builtins['open']('/etc/passwd')",
    "os['listdir']('/')",
    "os['listdir']('.')",
)
OTHERS = (
    "os['fork']()",
    "os['posix_spawn']('/bin/sh', ['sh', '-c', 'touch {path}'], {{}})",
    "os['execv']('/bin/sh', ['sh', '-c', 'touch {path}'])",
    "os['kill'](os['getppid'](), 9)",
    "os['setsid']()",
    "os['pipe']()",
    "refuse() if os['system']('touch {path}') != 0 else 0",
    "refuse() if c.socket(2, 1, 0) == -1 else 0",
    "refuse() if c.ptrace(16, os['getppid'](), 0, 0) == -1 else 0",
    "refuse() if c.prctl(22, 0, 0, 0, 0) == -1 else 0",
)


def all_refused(actions, path):
    """Run each of them behind the first wall; those that the kernel did not say no to."""
    body = EVERYTHING + "    Refused, str = builtins['PermissionError'], builtins['str']\n"
    body += "    c = os['sys'].modules['ctypes'].CDLL(None)\n    found = []\n"
    body += "    def refuse():\n        raise Refused\n"
    for action in actions:
        body += f"    try:\n        {action.format(path=path)}\n        found.append(0.0)\n"
        body += "    except Refused:\n        found.append(1.0)\n"
    found = box(body + "    return np.ones((len(obs), 1)) * np.array(found)")(OBS, ACTION)
    assert found.shape == (3, len(actions))
    return [action for action, answer in zip(actions, found[0]) if answer != 1]


@pytest.mark.usefixtures("no_check")
@pytest.mark.parametrize("actions", [FILES, OTHERS], ids=["files", "processes and network"])
def test_behind_the_first_wall_the_kernel_refuses(actions, tmp_path):
    if not box("    return obs").contained:
        pytest.skip("this kernel does not filter what a process asks of it")
    path = tmp_path / "written"
    assert all_refused(actions, path) == []
    assert not path.exists()


@pytest.mark.usefixtures("no_check")
def test_behind_the_first_wall_there_is_no_key_in_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-CANARY")
    body = OS + "    found = 'CANARY' in str(os['environ'])\n    return obs * 0 + found"
    monkeypatch.setattr(module, "BUILTINS", (*module.BUILTINS, "str"))
    assert not box(body)(OBS, ACTION).any()


@pytest.mark.usefixtures("no_check")
def test_behind_the_first_wall_there_is_no_folder_to_import_from():
    assert box(OS + "    return obs[:, :1] * 0 + os['sys'].path.__len__()")(OBS, ACTION).tolist() == [[0]] * 3


@pytest.mark.usefixtures("no_check")
def test_behind_the_first_wall_an_answer_that_is_forged_is_no_answer():
    head = "os['write'](0, b'\\xff\\xff\\xff\\x7f\\xff\\xff\\xff\\x7f')"
    with pytest.raises(SandboxError, match=r"factors returned 2147483647 numbers a row"):
        box(OS + f"    {head}\n    return obs")


def test_after_failures_in_a_row_factors_are_0_and_a_note_says_so():
    sandbox = box("    return np.zeros((len(obs), 1 + int(obs[0, 0] > 10))) + 3")
    assert sandbox(OBS, ACTION).tolist() == [[3]] * 3
    assert sandbox(OBS + 10, ACTION).tolist() == [[0]] * 3
    assert sandbox.counts["failures"] == 3
    assert pid_of(sandbox) is None
    assert sandbox(OBS, ACTION).tolist() == [[0]] * 3  # from then on
    assert "failed 3 times in a row and is 0 from then on: factors returned 2 numbers a row" in sandbox.notes()[-1]


def test_a_process_that_is_killed_is_started_again_and_counted():
    sandbox = Sandbox(SQUARES, 2, 1, timeout=20)
    os.kill(pid_of(sandbox), signal.SIGKILL)
    assert np.array_equal(sandbox(OBS, ACTION), np.array(RESULT, np.float32))
    assert sandbox.counts["failures"] == 1
    assert not sandbox.broken
    assert "failed 1 times, last: factors ended its process" in sandbox.notes()[-1]


def test_a_process_that_stands_still_is_given_up_and_started_again():
    sandbox = Sandbox(SQUARES, 2, 1, timeout=1)
    os.kill(pid_of(sandbox), signal.SIGSTOP)
    assert np.array_equal(sandbox(OBS, ACTION), np.array(RESULT, np.float32))
    assert "took too long" in sandbox.failure


def gone(pid):
    """Whether a process has ended, within a while."""
    for _ in range(400):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="looks for limits in /proc")
def test_the_process_has_room_for_nothing_but_its_memory():
    sandbox = box("    return obs", memory=64)
    names = {"file size": 0, "core file size": 0, "processes": 0, "open files": 3}
    lines = Path(f"/proc/{pid_of(sandbox)}/limits").read_text().splitlines()
    for name, value in names.items():
        line = next(line for line in lines if line.startswith(f"Max {name}"))
        assert line[26:].split()[:2] == [str(value)] * 2, line
    soft = next(line for line in lines if line.startswith("Max address space"))[26:].split()[0]
    used = 1024 * int(re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{pid_of(sandbox)}/status").read_text())[1])
    assert used <= int(soft) <= used + 64 * 2**20
    sandbox.close()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_the_process_ends_with_its_owner_and_leaves_no_folder(tmp_path):
    script = (
        "from rewards.llm.sandbox.process import Sandbox\n"
        f"box = Sandbox({SQUARES!r}, 2, 1)\nprint(box._stop.peek()[2][0].pid, flush=True)\ninput()"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.communicate()
    assert gone(pid)
    assert not list(tmp_path.glob("factors-*"))
    sandbox = Sandbox(SQUARES, 2, 1)
    pid = pid_of(sandbox)
    del sandbox
    assert gone(pid)


def test_while_nothing_is_asked_it_lives_as_long_as_its_parent(monkeypatch):
    waits = iter(([], [0], []))
    monkeypatch.setattr(worker.select, "select", lambda *_: (next(waits), [], []))
    monkeypatch.setattr(worker.os, "_exit", sys.exit)
    worker.wait_for_request(os.getppid())
    with pytest.raises(SystemExit, match="0"):
        worker.wait_for_request(os.getpid())


def test_an_error_is_explained_by_the_line_of_the_code_that_raised_it():
    source = "def half(x):\n    return 1 / x\n\ny = 3\nhalf(0)\n"
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile(source, "factors", "exec"), {})
    assert worker.explain(caught.value, source) == "ZeroDivisionError: division by zero, in the line: return 1 / x"
    assert worker.explain(ValueError("none"), source) == "ValueError: none"


def test_only_the_parts_of_numpy_that_are_there_can_be_imported():
    assert worker.within_numpy("numpy.linalg", None) is np.linalg
    for name in ("os", "numpy.nowhere", "numpy", "numpylinalg"):
        with pytest.raises(ImportError, match=f"{name} cannot be imported here"):
            worker.within_numpy(name)


def test_the_process_writes_and_reads_all_of_it_piece_by_piece(monkeypatch):
    sent, (there, here) = [], os.pipe()
    monkeypatch.setattr(worker.os, "write", lambda file, view: sent.append(bytes(view[:3])) or len(sent[-1]))
    worker.give(np.arange(2, dtype=np.uint32))
    assert b"".join(sent) == np.arange(2, dtype=np.uint32).tobytes() and len(sent) == 3
    monkeypatch.undo()
    os.write(here, b"abc")
    threading.Timer(0.05, lambda: (os.write(here, b"def"), os.close(here))).start()
    monkeypatch.setattr(worker.os, "_exit", sys.exit)
    with open(there) as file:
        monkeypatch.setattr(worker.sys, "stdin", file)
        assert worker.take(6) == b"abcdef"
        with pytest.raises(SystemExit, match="0"):
            worker.take(1)


def test_it_outlives_the_thread_that_started_it():
    made = []
    thread = threading.Thread(target=lambda: made.append(Sandbox(SQUARES, 2, 1, timeout=20)))
    thread.start()
    thread.join()
    assert np.array_equal(made[0](OBS, ACTION), np.array(RESULT, np.float32))
    assert made[0].counts["failures"] == 0


def test_saved_code_is_checked_again_and_takes_the_place_of_its_own():
    sandbox, other = Sandbox(SQUARES, 2, 1), box("    return obs * 0")
    other.load_state_dict(sandbox.state_dict())
    assert np.array_equal(other(OBS, ACTION), np.array(RESULT, np.float32))
    with pytest.raises(SandboxError, match=r"the name 'open' is not known"):
        other.load_state_dict({"source": "def factors(obs, action):\n    return open(1)", "broken": False})
    with pytest.raises(ValueError, match=r"the saved code gives 1 factors, this reward reads 2"):
        other.load_state_dict({"source": "def factors(obs, action):\n    return obs[:, :1]", "broken": False})
