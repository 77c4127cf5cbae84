"""Worker processes give the numbers of one process, share memory that vanishes with them, and fail in a sentence."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envs.make import make, make_vec
from envs.vector.in_process import InProcess
from envs.vector.workers import WorkerError, Workers, share

ROOT = Path(__file__).resolve().parents[2]
WORLDS = {
    "CartPole-v1": {},
    "MiniGrid-Empty-5x5-v0": {"max_episode_steps": 20, "frame_size": 16, "text": True},
    "NetHackScore-v0": {"max_episode_steps": 25, "adapt": False},  # a Dict of arrays
}


def _makers(env_id: str, n: int, **kwargs) -> list:
    return [functools.partial(make, env_id, seed=i, **kwargs) for i in range(n)]


def _assert_equal(a, b) -> None:
    assert isinstance(a, dict) == isinstance(b, dict)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            _assert_equal(a[key], b[key])
    else:
        np.testing.assert_array_equal(a, b)


def _faulty(row: int) -> gym.Env:
    class Faulty(gym.Env):
        """Breaks when it is told to."""

        observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            if action == 1:
                raise ZeroDivisionError(f"no friction in {row}")
            return np.zeros(1, np.float32), 0.0, False, False, {}

    return Faulty()


def _unmakeable(row: int) -> gym.Env:
    # The parent makes the first one too, only to see its spaces.
    if row == 2:
        raise FileNotFoundError("no such level")
    return _faulty(row)


@pytest.mark.parametrize(("env_id", "processes"), [(name, 2) for name in WORLDS] + [("CartPole-v1", 3)])
def test_any_number_of_processes_gives_the_numbers_of_one(env_id: str, processes: int) -> None:
    one = InProcess(_makers(env_id, 5, **WORLDS[env_id]))
    many = Workers(_makers(env_id, 5, **WORLDS[env_id]), processes)
    assert many.groups == (slice(0, 3), slice(3, 5)) and many.spec.id == env_id
    for ours, theirs in zip(many.reset(seed=3), one.reset(seed=3)):
        _assert_equal(ours, theirs)
    rng, ends = np.random.default_rng(0), 0
    for number in range(120):
        actions = rng.integers(one.single_action_space.n, size=5)
        for ours, theirs in zip(many.step(actions), one.step(actions)):
            _assert_equal(ours, theirs)
        ends += int((one._slots.terminated | one._slots.truncated).sum())
        if number == 60:
            saved = many.snapshot()
            assert saved == one.snapshot()
    assert ends >= 10
    _assert_equal(many.restore(saved), one.restore(saved))
    mask = {"reset_mask": np.array([True, False, False, True, False])}
    for ours, theirs in zip(many.reset(options=mask), one.reset(options=mask)):
        _assert_equal(ours, theirs)
    many.close()


def test_the_groups_step_by_turns_and_together_make_a_step() -> None:
    one, many = InProcess(_makers("CartPole-v1", 4)), Workers(_makers("CartPole-v1", 4), 2)
    one.reset()
    many.reset()
    actions = np.array([0, 1, 1, 0])
    many.send(actions[:2], 0)
    for _ in range(60):
        expected = one.step(actions)
        many.send(actions[2:], 1)
        first = [x.copy() for x in many.recv(0)[:4]]  # the group steps again before they are compared
        many.send(actions[:2], 0)
        second = many.recv(1)
        for a, b, whole in zip(first, second, expected[:4]):
            np.testing.assert_array_equal(np.concatenate([a, b]), whole)
    with pytest.raises(RuntimeError, match=r"recv\(1\) has nothing to wait for: the next is group 0"):
        many.recv(1)
    many.recv(0)
    many.close()


def test_each_worker_has_a_part_of_both_groups() -> None:
    rows = range(8)
    shares = [[list(rows[share(group, w, 2)]) for group in (slice(0, 4), slice(4, 8))] for w in range(2)]
    assert shares == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    assert [list(rows[share(slice(3, 8), w, 4)]) for w in range(4)] == [[4], [5], [6], [3, 7]]
    assert list(rows[share(slice(0, 1), 1, 2)]) == []


def test_an_environment_that_raises_is_named() -> None:
    many = Workers([functools.partial(_faulty, i) for i in range(4)], 2)
    many.reset()
    with pytest.raises(WorkerError, match=r"^environment 2 raised ZeroDivisionError: no friction in 2") as caught:
        many.step(np.array([0, 0, 1, 0]))
    assert 'raise ZeroDivisionError(f"no friction in {row}")' in caught.value.__notes__[0]
    assert many.closed and not any(worker.process.is_alive() for worker in many._workers)
    with pytest.raises(RuntimeError, match="these environments are closed; make new ones"):
        many.step(np.zeros(4, int))
    with pytest.raises(WorkerError, match="environment 2 raised FileNotFoundError: no such level"):
        Workers([functools.partial(_unmakeable, i) for i in range(4)], 2)


def test_a_killed_worker_is_a_sentence_within_seconds_and_an_interrupted_one_goes_on() -> None:
    many = make_vec("CartPole-v1", 4, backend="workers", processes=2, workers={"restarts": 0})
    many.reset()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(many._workers[1].process.pid, number)
    many.step(np.zeros(4, int))
    os.kill(many._workers[1].process.pid, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(WorkerError, match="worker process 1, with the environments 1, 3, was killed by signal 9"):
        for _ in range(3):
            many.step(np.zeros(4, int))
    assert time.monotonic() - begin < 3
    many.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"], ids=["forgotten", "killed"])
def test_workers_end_with_their_parent_and_leave_no_memory_behind(end: str) -> None:
    script = (
        "import os\n"
        "from envs.make import make_vec\n"
        "if __name__ == '__main__':\n"
        "    many = make_vec('CartPole-v1', 4, backend='workers', processes=2)\n"
        "    many.reset()\n"
        "    pids = [worker.process.pid for worker in many._workers]\n"
        "    shared = [line for pid in pids for line in open(f'/proc/{pid}/maps') if '/dev/shm' in line]\n"
        "    assert shared and all('(deleted)' in line for line in shared), shared\n"
        "    print(*pids, flush=True)\n"
        f"    {end}\n"
    )
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.stderr == "" and answer.returncode == (-9 if end else 0)
    pids = list(map(int, answer.stdout.split()))
    assert len(pids) == 2
    limit = time.monotonic() + 5
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < limit, "the workers outlive their parent"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _unsendable() -> gym.Env:
    env = make("CartPole-v1")
    env.unwrapped.secret = (x for x in "generators cannot be pickled")
    return env


def test_one_environment_is_one_group_and_no_process_is_idle() -> None:
    many = Workers([_unsendable], 8)
    assert many.groups == (slice(0, 1),) and many.processes == 1
    assert many.get_attr("gravity") == (9.8,)
    with pytest.raises(WorkerError, match=r"environment 0 raised .*pickle"):  # and no worker that waits for ever
        many.get_attr("secret")
    many.close()
    many.close()
    with pytest.raises(ValueError, match="4 environments in processes=0 make no vector; give at least 1 of both"):
        Workers(_makers("CartPole-v1", 4), 0)


def test_a_fork_of_a_process_that_had_workers_can_have_its_own():
    make_vec("CartPole-v1", 2, backend="workers", processes=1).close()  # starts the server that forks workers

    def child():
        many = make_vec("CartPole-v1", 2, backend="workers", processes=1)
        many.reset(seed=0)
        many.close()
        os._exit(7)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 7
