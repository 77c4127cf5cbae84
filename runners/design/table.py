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

import gymnasium as gym
import numpy as np
from scipy.optimize import linprog

from envs.make import make
from envs.recording import record
from envs.transitions import Transitions, index_obs
from envs.types import Array
from lodestar.files import make_parent
from rewards.design.code import layout_of
from runners.compare.finite import (
    HORIZONS,
    MAX_RECORDING_CELLS,
    FiniteModel,
    gaps,
    informativeness,
    model_of_clusters,
    model_of_states,
    optimal_values,
    read_table,
    ties,
)
from runners.compare.sample import SampleSpec, load_or_enumerate
from runners.design.config import DesignConfig
from runners.design.explors import explors
from runners.offline import load
from runners.run.build import load_run
from runners.run.checkpoint import write_atomically
from runners.run.config import UsageError

# Pairs of a state and an action that can be solved for.
MAX_PAIRS = 600
# How often a policy acts in each state, to see how likely each action is.
POLICY_DRAWS = 32
MAX_PRINTED_STATES = 20


def solve(config: DesignConfig) -> Path:
    """Make the model, solve, print the table, and write table.json; returns its path."""
    model, task, obs = model_of(config)
    gamma = float(getattr(config.train.agent, "gamma", None) or 0.99)
    states, actions = task.shape
    active = list(range(states))
    if config.method == "exprd":
        reward, active = exprd(task, model.transition, gamma, config.states or states, config.l1)
    elif config.method == "explors":
        f, _ = explors(task, model, gamma, config.episodes, config.train.seed)
        reward = task + f
    else:
        learner = np.full(task.shape, 1 / actions)
        if config.of_run:
            learner = learner_of(config, model, obs)
        reward = adaptive(task, model, gamma, learner)
    print_largest(model, reward, active)
    informative = informativeness(reward, task, model.transition, gamma) or 0.0
    task_informative = informativeness(task, task, model.transition, gamma) or 0.0
    tied = ties(reward, model.transition, gamma)
    print(
        f"informativeness {informative:.2f}, of the task's own {task_informative:.2f}; "
        f"best actions tie in {tied:.0%} of states"
    )
    path = config.folder / "table.json"
    make_parent(path)
    page = {
        "command": config.command("runners.design"),
        "informativeness": informative,
        "gamma": gamma,
        "states": model.states.tolist(),
        "rewards": reward.tolist(),
    }
    write_atomically(path, json.dumps(page) + "\n")
    print(f"use it:  python -m runners.train env={config.train.env} reward=table reward.table.file={path}")
    return path


def print_largest(model: FiniteModel, reward: np.ndarray, active: list[int]) -> None:
    """Print the active states with the largest rewards."""
    kind = "exact" if model.exact else "clustered"
    print(f"{kind} model, {len(reward)} states; state: reward of each action")
    size = np.abs(reward).max(axis=1)
    for state in sorted(active, key=lambda state: -size[state])[:MAX_PRINTED_STATES]:
        if size[state] == 0:
            return
        obs = np.round(model.states[state], 2)
        shown = obs.tolist()
        if len(obs) > 8 and obs.sum() == obs.max() == 1:
            shown = f"one-hot {obs.argmax()}"
        print(f"  {shown}: {np.round(reward[state], 3).tolist()}")


def model_of(config: DesignConfig) -> tuple[FiniteModel, np.ndarray, Array]:
    """The environment's own table, or all its states, or clusters of a recording; the task's rewards; the rows' obs."""
    run = config.train
    with closing(make(run.env, max_episode_steps=run.max_episode_steps, **run.env_options)) as env:
        if config.data:
            batch, _ = load(config.data)
            model, obs, rewards = model_of_recording(env, batch)
        else:
            exact = read_table(env) or model_of_every_state(config, env)
            model, obs, rewards = exact or model_of_recording(env, record(env, None, config.frames))
    task = model.table(np.asarray(rewards, np.float64))
    if task.size > MAX_PAIRS:
        raise UsageError(f"{run.env} has {task.size} pairs of state and action, at most {MAX_PAIRS} can be solved for")
    never_ends = np.allclose(model.transition.sum(axis=2), 1)
    indifferent = np.ptp(rewards) == 0 and never_ends
    if indifferent or not np.ptp(optimal_values(task, model.transition, 0.99), axis=1).any():
        raise UsageError(f"by the task's reward all actions are as good in this model of {run.env}; give data= with it")
    return model, task, obs


def model_of_every_state(config: DesignConfig, env: gym.Env) -> tuple[FiniteModel, Array, np.ndarray] | None:
    """The model, and obs and reward of its rows; None where states cannot be enumerated."""
    run = config.train
    mdp = load_or_enumerate(
        SampleSpec(run.env, run.env_options, 20, frame_size=None, max_episode_steps=run.max_episode_steps)
    )
    if mdp is None:
        return None
    rows = mdp.sample.batch
    return model_of_states(mdp, layout_of(env.observation_space)), rows.obs, rows.reward


def model_of_recording(env: gym.Env, rows: Transitions) -> tuple[FiniteModel, Array, np.ndarray]:
    """The model of a recording, and obs and reward of its rows."""
    # Clusters that make at most a quarter of the pairs that can be solved for.
    cells = MAX_PAIRS // int(getattr(env.action_space, "n", 1)) // 4
    cells = max(2, min(MAX_RECORDING_CELLS, cells))
    return model_of_clusters(rows, layout_of(env.observation_space), env.action_space, cells), rows.obs, rows.reward


def learner_of(config: DesignConfig, model: FiniteModel, obs: Array) -> np.ndarray:
    """How often the policy of a run takes each action in the states of a model made of rows with these obs, (S, A)."""
    policy = load_run(Path(config.of_run), config.train.trust).model
    frequency = np.zeros(model.transition.shape[:2])
    states = np.arange(len(frequency))
    # One row of each state is enough: the policy reads its observation.
    rows = [int(np.argmax(model.cell[:, 0] == state)) for state in states]
    for _ in range(POLICY_DRAWS):
        action, _ = policy.predict(index_obs(obs, rows), deterministic=False)
        first_action = int(getattr(policy.action_space, "start", 0))
        frequency[states, np.asarray(action, int).ravel() - first_action] += 1 / POLICY_DRAWS
    return frequency


@dataclass
class Ahead:
    """By how much the optimal action is ahead of each other one: rows that are multiplied with rewards (S * A,)."""

    # State and other action of each row, (M, 2).
    pairs: np.ndarray
    # The optimal action of each state.
    policy: np.ndarray
    # What the task's own values differ by, 0 for another optimal action, (M,).
    least: np.ndarray
    # Of values of the whole future, (M, S * A).
    forever: np.ndarray
    # The same of values of h steps after the first, h in HORIZONS.
    steps: list[np.ndarray]

    @classmethod
    def of(cls, task: np.ndarray, transition: np.ndarray, gamma: float) -> "Ahead":
        """For rewards (S, A) of the task."""
        states, actions = task.shape
        q = optimal_values(task, transition, gamma)
        gap, best = gaps(q)
        policy = q.argmax(axis=1)
        pairs = np.argwhere(np.arange(actions) != policy[:, None])
        state, other = pairs.T
        # A little less than the gap, else rounding leaves no solution.
        least = np.where(best[state, other], 0, gap[state] / (1 + 1e-5))

        # Indices of the pairs among rewards (S * A,).
        on_policy = np.arange(states) * actions + policy
        chosen = on_policy[state]
        unchosen = state * actions + other
        one = np.eye(task.size)
        step = np.zeros((task.size, task.size))
        step[:, on_policy] = gamma * transition.reshape(task.size, states)
        values = one
        steps = []
        for h in range(max(HORIZONS) + 1):
            if h > 0:
                values = one + step @ values
            if h in HORIZONS:
                steps.append(values[chosen] - values[unchosen])
        forever = np.linalg.inv(one - step)
        return cls(pairs, policy, least, forever[chosen] - forever[unchosen], steps)


def exprd(
    task: np.ndarray, transition: np.ndarray, gamma: float, states: int, l1: float = 0.0
) -> tuple[np.ndarray, list[int]]:
    """The reward (S, A), and its active states: those that the task rewards, and the best `states` others."""
    ahead = Ahead.of(task, transition, gamma)
    rewarded = task.any(axis=1)
    active = np.flatnonzero(rewarded).tolist()
    others = np.flatnonzero(~rewarded).tolist()
    if states >= len(others):
        active += others
        states = 0
    reward, _ = program(task, ahead, active, l1)
    for _ in range(states):
        programs = {state: program(task, ahead, [*active, state], l1) for state in others}
        best = min(programs, key=lambda state: programs[state][1])
        reward, _ = programs[best]
        active.append(best)
        others.remove(best)
    return reward, active


def program(task: np.ndarray, ahead: Ahead, active: list[int], l1: float) -> tuple[np.ndarray, float]:
    """The best reward (S, A) with these active states, and what it loses.

    Variables are the rewards (S * A,), then the losses of each horizon and state, then with `l1` the sizes |R|.
    """
    states, actions = task.shape
    size = task.size
    losses = states * len(HORIZONS)
    bad = ahead.least > 0
    of_state = np.eye(states)[ahead.pairs[bad, 0]]

    # The gaps of the whole future: ahead >= least.
    rows = [np.pad(-ahead.forever, ((0, 0), (0, losses)))]
    bounds = [-ahead.least]
    # Those of each horizon, as far as they hold: loss >= least - ahead.
    for step, horizon in zip(ahead.steps, np.eye(len(HORIZONS))):
        rows.append(np.c_[-step[bad], np.kron(horizon, -of_state)])
        bounds.append(-ahead.least[bad])
    matrix = np.concatenate(rows)
    cost = np.r_[np.zeros(size), np.full(losses, 1 / losses)]
    largest = np.abs(task).max() * np.isin(np.arange(states), active)
    largest = largest.repeat(actions)
    limits = [*zip(-largest, largest), *[(0.0, None)] * losses]

    if l1:
        # R <= u and -R <= u, where u costs l1.
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
    states, actions = task.shape
    ahead = Ahead.of(task, model.transition, gamma)
    expert = np.eye(actions)[ahead.policy]
    # mu_T mu_L: how often both policies are in each state, discounted.
    visits = np.ones(states)
    for policy in (expert, learner):
        flow = np.einsum("sa,sat->ts", policy, model.transition)
        visits *= np.linalg.solve(np.eye(states) - gamma * flow, (1 - gamma) * model.start)

    # Q0 stands for A0, as V0 cancels. `gain` is what the objective has for each R(s, a).
    q = optimal_values(task, model.transition, gamma)
    centred = learner**2 * (q - (learner * q).sum(axis=1, keepdims=True))
    gain = visits[:, None] * (centred - learner * centred.sum(axis=1, keepdims=True))
    cost = -gain.ravel() / max(np.abs(gain).max(), 1e-12)

    # No reward where all actions are as good.
    gap, _ = gaps(q)
    silent = (gap == 0)[:, None] & (task == 0)
    largest = np.where(silent, 0, np.abs(task).max()).ravel()
    solution = linprog(cost, -ahead.forever, -ahead.least, bounds=[*zip(-largest, largest)], method="highs")
    if solution.x is None:
        print(f"the program failed ({solution.message}); the task's own reward is kept")
        return task
    return solution.x.reshape(task.shape)
