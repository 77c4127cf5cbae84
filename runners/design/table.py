"""Rewards of a finite model by linear programs: few states, the same optimal policy, good actions shown early.

exprd      among rewards |R| <= max |R0| that are 0 outside the active states Z and keep the optimal policy, with gaps
           at least as large, the most informative one (see `runners.compare.finite`), less l1 * sum |R|. Z begins with
           the states that the task rewards; `states=` others are added, in each turn the one that helps most of all
adaptive   among those, the one that moves a learner's policy pi most towards the expert: the largest
           sum_s mu_T mu_L sum_a pi(a|s)^2 (A0(s, a) - E_pi A0) (R(s, a) - E_pi R), A0 the expert's advantage. It is
           solved once, for the policy of `of_run=`, and does not follow the training: design it again to follow

Sources: Devidze et al. 2021, "Explicable Reward Design for Reinforcement Learning Agents" (NeurIPS 2021); the same
authors 2024, "Informativeness of Reward Functions in Reinforcement Learning" (AAMAS 2024).
Differences: SciPy's HiGHS; one policy instead of a loop over all optimal ones, which are exponentially many: another
optimal action may become worse, a bad one never good.
When it fails: more than 600 pairs of state and action; a clustered recording whose model is wrong; few states where
moves go astray: a learner that has not found the goal collects their rewards again and again (`benchmarks exprd`).
"""

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from envs.make import make
from envs.recording import record
from envs.transitions import map_obs
from envs.types import Array
from rewards.design.code import layout_of
from runners.compare.finite import (
    CELLS,
    HORIZONS,
    FiniteModel,
    clustered,
    enumerated,
    gaps,
    informativeness,
    optimal,
    tabular,
    ties,
)
from runners.compare.sample import SampleSpec, load_or_enumerate
from runners.design.config import DesignConfig
from runners.design.explors import explors
from runners.offline import load
from runners.run.build import load_run
from runners.run.checkpoint import write_atomically
from runners.run.config import UsageError

PAIRS = 600  # of a state and an action
DRAWS = 32  # actions of a policy in each state


def solve(config: DesignConfig) -> Path:
    """Make the model, solve, print the table, and write table.json; returns its path."""
    model, task, obs = model_of(config)
    gamma = float(getattr(config.train.agent, "gamma", None) or 0.99)
    if config.method == "exprd":
        count = config.states or len(task)
        reward, active = exprd(task, model.transition, gamma, count, config.l1)
    elif config.method == "explors":
        reward, active = task + explors(task, model, gamma, config.episodes, config.train.seed)[0], [*range(len(task))]
    else:
        beginner = np.full(task.shape, 1 / task.shape[1])
        learner = learner_of(config, model, obs) if config.of_run else beginner
        reward, active = adaptive(task, model, gamma, learner), [*range(len(task))]
    print(f"{'exact' if model.exact else 'clustered'} model, {len(task)} states; state: reward of each action")
    shown = [state for state in active if reward[state].any()]
    for state in sorted(shown, key=lambda state: -np.abs(reward[state]).max())[:20]:
        obs = np.round(model.states[state], 2)
        where = f"one-hot {obs.argmax()}" if len(obs) > 8 and obs.sum() == obs.max() == 1 else obs.tolist()
        print(f"  {where}: {np.round(reward[state], 3).tolist()}")
    early = [informativeness(each, task, model.transition, gamma) or 0.0 for each in (reward, task)]
    tied = ties(reward, model.transition, gamma)
    print(f"informativeness {early[0]:.2f}, of the task's own {early[1]:.2f}; best actions tie in {tied:.0%} of states")
    path = config.folder / "table.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    page = {"command": config.command("runners.design"), "informativeness": early[0], "gamma": gamma}
    page |= {"states": model.states.tolist(), "rewards": reward.tolist()}
    write_atomically(path, json.dumps(page) + "\n")
    print(f"use it:  python -m runners.train env={config.train.env} reward=table reward.table.file={path}")
    return path


def model_of(config: DesignConfig) -> tuple[FiniteModel, np.ndarray, Array]:
    """The environment's own table, or all its states, or clusters of a recording; the task's rewards; the rows' obs."""
    run = config.train
    with closing(make(run.env, max_episode_steps=run.max_episode_steps, **run.env_options)) as env:
        layout, actions = layout_of(env.observation_space), env.action_space
        if not config.data and (known := tabular(env)) is not None:
            model, obs, rewards = known
        else:
            spec = SampleSpec(run.env, run.env_options, 20, frame_size=None, max_episode_steps=run.max_episode_steps)
            if not config.data and (mdp := load_or_enumerate(spec)) is not None:
                model, rows = enumerated(mdp, layout), mdp.sample.batch
            else:
                rows = load(config.data)[0] if config.data else record(env, None, config.frames)
                most = PAIRS // int(getattr(actions, "n", 1)) // 4
                model = clustered(rows, layout, actions, states=max(2, min(CELLS, most)))
            obs, rewards = rows.obs, rows.reward
    task = model.table(np.asarray(rewards, np.float64))
    if task.size > PAIRS:
        raise UsageError(f"{run.env} has {task.size} pairs of state and action, at most {PAIRS} can be solved for")
    same = np.ptp(rewards) == 0 and np.allclose(model.transition.sum(axis=2), 1)  # and nothing ends
    if same or not np.ptp(optimal(task, model.transition, 0.99), axis=1).any():
        raise UsageError(f"by the task's reward all actions are as good in this model of {run.env}; give data= with it")
    return model, task, obs


def learner_of(config: DesignConfig, model: FiniteModel, obs: Array) -> np.ndarray:
    """How often the policy of a run takes each action in the states of a model made of rows with these obs, (S, A)."""
    trained = load_run(Path(config.of_run), config.train.trust).model
    states, actions = model.transition.shape[:2]
    first = [int(np.argmax(model.cell[:, 0] == state)) for state in range(states)]
    taken = np.zeros((states, actions))
    for _ in range(DRAWS):
        action, _ = trained.predict(map_obs(lambda x: x[first], obs), deterministic=False)
        chosen = np.asarray(action, int).ravel() - int(getattr(trained.action_space, "start", 0))
        taken[np.arange(states), chosen] += 1 / DRAWS
    return taken


@dataclass
class Ahead:
    """By how much the optimal action is ahead of each other one: rows that are multiplied with rewards (S * A,)."""

    pairs: np.ndarray  # state and other action of each row, (M, 2)
    policy: np.ndarray  # the optimal action of each state
    least: np.ndarray  # what the task's own values differ by, 0 for another optimal action, (M,)
    forever: np.ndarray  # (M, S * A)
    steps: list[np.ndarray]  # the same of values of h steps after the first, h in HORIZONS

    @classmethod
    def of(cls, task: np.ndarray, transition: np.ndarray, gamma: float) -> "Ahead":
        """For rewards (S, A) of the task."""
        (states, actions), q = task.shape, optimal(task, transition, gamma)
        gap, best = gaps(q)
        policy = q.argmax(axis=1)
        pairs = np.argwhere(np.arange(actions) != policy[:, None])
        least = np.where(best[tuple(pairs.T)], 0, gap[pairs[:, 0]] / (1 + 1e-5))  # else rounding leaves no solution
        on, off = pairs[:, 0] * actions + policy[pairs[:, 0]], pairs[:, 0] * actions + pairs[:, 1]
        step, one = np.zeros((task.size, task.size)), np.eye(task.size)
        step[:, np.arange(states) * actions + policy] = gamma * transition.reshape(task.size, states)
        values, steps = one, []
        for h in range(max(HORIZONS) + 1):
            values = one + step @ values if h else one
            if h in HORIZONS:
                steps.append(values[on] - values[off])
        forever = np.linalg.inv(one - step)
        return cls(pairs, policy, least, forever[on] - forever[off], steps)


def exprd(
    task: np.ndarray, transition: np.ndarray, gamma: float, states: int, l1: float = 0.0
) -> tuple[np.ndarray, list[int]]:
    """The reward (S, A), and its active states: those that the task rewards, and the best `states` others."""
    ahead = Ahead.of(task, transition, gamma)
    active = np.flatnonzero(task.any(axis=1)).tolist()
    others = np.flatnonzero(~task.any(axis=1)).tolist()
    if states >= len(others):
        active += others
        return program(task, ahead, active, l1)[0], active
    reward, _ = program(task, ahead, active, l1)
    for _ in range(states):
        programs = {state: program(task, ahead, [*active, state], l1) for state in others}
        best = min(programs, key=lambda state: programs[state][1])
        reward = programs[best][0]
        active.append(best)
        others.remove(best)
    return reward, active


def program(task: np.ndarray, ahead: Ahead, active: list[int], l1: float) -> tuple[np.ndarray, float]:
    """The best reward (S, A) with these active states, and what it loses.

    Variables are the rewards (S * A,), then the losses of each horizon and state, then with `l1` the sizes |R|.
    """
    states, size = len(task), task.size
    losses = states * len(HORIZONS)
    bad = ahead.least > 0
    of_state = np.eye(states)[ahead.pairs[bad, 0]]

    # The gaps of the whole future: ahead >= least.
    rows = [np.pad(-ahead.forever, ((0, 0), (0, losses)))]
    bounds = [-ahead.least]
    # Those of each horizon, as far as they hold: loss >= least - ahead.
    for index, step in enumerate(ahead.steps):
        place = np.eye(len(HORIZONS))[index]
        rows.append(np.c_[-step[bad], np.kron(place, -of_state)])
        bounds.append(-ahead.least[bad])
    matrix = np.concatenate(rows)
    cost = np.r_[np.zeros(size), np.full(losses, 1 / losses)]
    most = np.abs(task).max() * np.isin(np.arange(states), active)
    most = most.repeat(task.shape[1])
    limits = [*zip(-most, most), *[(0.0, None)] * losses]

    if l1:  # R <= u and -R <= u, where u costs l1
        one = np.eye(size)
        none = np.zeros((size, losses))
        matrix = np.r_[np.pad(matrix, ((0, 0), (0, size))), np.c_[one, none, -one], np.c_[-one, none, -one]]
        bounds.append(np.zeros(2 * size))
        cost = np.r_[cost, np.full(size, l1)]
        limits += [(0.0, None)] * size
    solution = linprog(cost, matrix, np.concatenate(bounds), bounds=limits, method="highs")
    if solution.x is None:
        raise UsageError(f"no reward in {len(active)} states keeps the optimal policy ({solution.message})")
    return solution.x[:size].reshape(task.shape), float(solution.fun)


def adaptive(task: np.ndarray, model: FiniteModel, gamma: float, learner: np.ndarray) -> np.ndarray:
    """The reward (S, A) for a learner whose policy is (S, A); the task's own if the program fails."""
    transition, ahead = model.transition, Ahead.of(task, model.transition, gamma)
    expert, one, visits = np.eye(task.shape[1])[ahead.policy], np.eye(len(task)), np.ones(len(task))
    for each in (expert, learner):
        visits *= np.linalg.solve(one - gamma * np.einsum("sa,sat->ts", each, transition), (1 - gamma) * model.start)
    q = optimal(task, transition, gamma)
    centred = learner**2 * (q - (learner * q).sum(axis=1, keepdims=True))  # of A0, as V0 cancels
    gain = visits[:, None] * (centred - learner * centred.sum(axis=1, keepdims=True))
    silent = (gaps(q)[0] == 0)[:, None] & (task == 0)  # where all actions are as good
    most = np.where(silent, 0, np.abs(task).max()).ravel()
    scaled = -gain.ravel() / max(np.abs(gain).max(), 1e-12)
    found = linprog(scaled, -ahead.forever, -ahead.least, bounds=[*zip(-most, most)], method="highs")
    if found.x is None:
        print(f"the program failed ({found.message}); the task's own reward is kept")
        return task
    return found.x.reshape(task.shape)
