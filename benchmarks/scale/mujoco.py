"""MuJoCo's robots as array programs, beside bare physics and beside Gymnasium's environments.

    mujoco_batched_over_bare_<robot>   steps per CPU-second of 16 robots as one program, one thread, over those of a
                                       loop of nothing but the same physics: controls in, frame_skip times mj_step
    mujoco_batched_over_bare           the least of the five
    mujoco_batched_threads2_<robot>    steps per second on two threads over one; needs two free cores
    mujoco_batched_threads2            the least of the five
    mujoco_bare_threads2_<robot>       the same of two robots that never wait for each other, at the same time: what the
                                       machine had to give
    mujoco_bare_threads2               the least of the five
    mujoco_batched_equal               environment steps compared with Gymnasium's, of all robots: to the last bit equal
                                       in physics, observation, reward and ends; the first that differs is an error

The loop over rows is Python's beside bare physics, and compiled (extra `fast`) where threads are compared. Actions are
uniform, episodes end and begin as they come, in the bare loop by putting the physics where the program put it. Ratios
are medians over rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.speed.measure import Measure, interleave, ratio

ROUNDS, N = 7, 16
STEPS = {"HalfCheetah": 320, "Hopper": 160, "Walker2d": 120, "Ant": 60, "Humanoid": 40}  # of each environment
COMPARED = 1200  # steps of each of four environments; HalfCheetah's and Ant's episodes then reach their limit


def run(folder: Path, rounds: int = ROUNDS, share: float = 1.0) -> dict[str, float]:
    """Measure; about three minutes on two free cores. `share` of the steps are taken."""
    path = folder / "scale-mujoco.csv"
    path.unlink(missing_ok=True)
    figures: dict[str, float] = {"mujoco_batched_equal": 0}
    for robot, full in STEPS.items():
        steps = max(int(full * share), 1)
        variants = {
            "bare": _bare(robot, steps),
            "one thread, Python": _program(robot, steps, 1, False),
            "one thread": _program(robot, steps, 1, True),
            "two threads": _program(robot, steps, 2, True),
            "two robots, one thread": _alone(robot, steps, 1),
            "two robots, two threads": _alone(robot, steps, 2),
        }
        rates = interleave(path, robot, rounds, variants)
        name = robot.lower()
        figures[f"mujoco_batched_over_bare_{name}"] = ratio(rates["cpu"], "one thread, Python", "bare")
        figures[f"mujoco_batched_threads2_{name}"] = ratio(rates["wall"], "two threads", "one thread")
        both = "two robots, two threads", "two robots, one thread"
        figures[f"mujoco_bare_threads2_{name}"] = ratio(rates["wall"], *both)
        figures["mujoco_batched_equal"] += equal(robot, max(int(COMPARED * share), 1))
    for figure in ("mujoco_batched_over_bare", "mujoco_batched_threads2", "mujoco_bare_threads2"):
        figures[figure] = min(value for key, value in figures.items() if key.startswith(f"{figure}_"))
    return figures


def equal(robot: str, steps: int, n: int = 4) -> int:
    """Environment steps in which a program equals Gymnasium's environments; an AssertionError where it does not."""
    import mujoco

    from envs.make import make_batched

    env = make_batched(f"{robot}-v5", n, num_threads=2)
    originals: list[Any] = [gym.make(f"{robot}-v5").unwrapped for _ in range(n)]
    obs, _ = env.reset()
    begun = np.ones(n, bool)
    physics = np.empty_like(env.state["physics"])
    for row in _actions(env, steps):
        for i in np.flatnonzero(begun).tolist():
            same = np.array_equal(_begin(originals[i], env.state["physics"][i, 1:]), obs[i])
            assert same, f"{robot} {i}: the first observation differs"
        obs, rewards, terminated, truncated, infos = env.step(row)
        begun = terminated | truncated
        for i, original in enumerate(originals):
            expected, reward, ends, *_ = original.step(row[i])
            mujoco.mj_getState(original.model, original.data, physics[i], env.kind)
            seen = infos["final_obs"][i] if begun[i] else obs[i]
            same = begun[i] or np.array_equal(physics[i], env.state["physics"][i])  # else it is of the next episode
            same = same and np.array_equal(seen, expected.astype(np.float32))
            assert same and rewards[i] == np.float32(reward) and terminated[i] == ends, f"{robot} {i} differs"
    env.close()
    return steps * n


def _begin(original: Any, physics: np.ndarray) -> np.ndarray:
    """Bring one of Gymnasium's robots, as its reset does, to positions and velocities; the observation there."""
    import mujoco

    model = original.model
    mujoco.mj_resetData(model, original.data)
    original.set_state(physics[: model.nq], physics[model.nq : model.nq + model.nv])
    return original._get_obs().astype(np.float32)


def _actions(env: Any, steps: int) -> np.ndarray:
    space, rng = env.single_action_space, np.random.default_rng(0)
    return rng.uniform(space.low, space.high, (steps, *env.action_space.shape)).astype(np.float32)


def _program(robot: str, steps: int, threads: int, compiled: bool) -> Measure:
    def measure() -> tuple[int, Callable[[], Any]]:
        from envs.batched import mujoco as program
        from envs.make import make_batched

        program.COMPILE_AFTER_STEPS = 0 if compiled else steps * N
        env = make_batched(f"{robot}-v5", N, num_threads=threads)
        actions = _actions(env, steps)
        env.reset()

        def work() -> None:
            for row in actions:
                env.step(row)
            env.close()

        return steps * N, work

    return measure


def _bare(robot: str, steps: int) -> Measure:
    """The physics of `_program`, which is played first to see where episodes begin."""
    begun: list[tuple[np.ndarray, np.ndarray]] = []  # before each step: rows, their physics

    def measure() -> tuple[int, Callable[[], Any]]:
        import mujoco

        from envs.make import make_batched

        env = make_batched(f"{robot}-v5", N)
        actions = _actions(env, steps)
        if not begun:
            env.reset()
            began = np.ones(N, bool)
            for row in actions:
                begun.append((np.flatnonzero(began), env.state["physics"][began]))
                began = np.logical_or(*env.step(row)[2:4])
        model, skip, kind = env.world.model, env.world.frame_skip, env.kind
        robots = [mujoco.MjData(model) for _ in range(N)]
        controls = [data.ctrl for data in robots]

        def work() -> None:
            for row, (places, states) in zip(actions, begun):
                for place, state in zip(places, states):
                    mujoco.mj_setState(model, robots[place], state, kind)
                for data, control, action in zip(robots, controls, row):
                    control[:] = action
                    mujoco.mj_step(model, data, skip)

        return steps * N, work

    return measure


def _alone(robot: str, steps: int, threads: int) -> Measure:
    """Two robots, at rest at first, by one call of MuJoCo each, one after the other or on two threads."""

    def measure() -> tuple[int, Callable[[], Any]]:
        import mujoco

        world: Any = gym.make(f"{robot}-v5").unwrapped
        robots = [mujoco.MjData(world.model) for _ in range(2)]
        pool = ThreadPoolExecutor(threads)

        def work() -> None:
            list(pool.map(lambda data: mujoco.mj_step(world.model, data, steps * N // 2 * world.frame_skip), robots))
            pool.shutdown()

        return steps * N, work

    return measure
