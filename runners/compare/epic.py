"""EPIC distances, of a reward to the target of its card and of two rewards: both are canonicalised, or there is none.

Canonical rewards are asked about transitions that never happened. A reward of the next state alone is canonical as it
is. The task's own reward can be asked where a table or a visit of every state gives it for each state and action.
"""

import itertools
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Discrete

from envs.make import make
from envs.transitions import Transitions
from rewards import compare as distances
from runners.compare.candidate import GAMMA, Candidate, Card
from runners.compare.sample import load_or_enumerate

# Rows that EPIC canonicalises, and transitions that are made up for each.
MAX_CANONICAL_ROWS = 256
MADE_UP_TRANSITIONS = 32
# Of values fitted to rows that do not follow each other; see rewards.compare.
FITTED = {"gamma": 0.9, "ridge": 1e-3}

# An observation and an action.
Pair = tuple[bytes, int]


def epic(candidate: Candidate, target: np.ndarray, goal: int | None) -> Card | None:
    """EPIC distance to the target, both canonicalised; None where one of them cannot be asked about what is made up."""
    if goal is None and candidate.reward.requires - {"obs", "action"}:
        return None
    rows = _epic_rows([candidate])
    if rows is None:
        return None
    kind = "a reward of the state"
    if _needs_made_up(candidate):
        kind = f"canonicalised with {len(rows)} x {MADE_UP_TRANSITIONS} made-up transitions"
    values = _canonical_reward(candidate, rows)
    if goal is None:
        task_reward = _task_of_state_and_action(candidate)
        if task_reward is None:
            return None
        try:
            task = _canonical_scores(task_reward, candidate.sample.batch[rows], candidate.seed)
        except KeyError:
            # The enumeration did not meet this observation.
            return None
        return {"distance": distances.epic(values, task), "goal": None, "kind": kind}
    # A goal's truth is a reward of the next state alone, which is canonical as it is.
    truth = candidate.sample.truth[rows, goal]
    return {
        "distance": distances.epic(values, target[rows]),
        "goal": distances.epic(values, truth),
        "kind": kind,
    }


def _task_of_state_and_action(candidate: Candidate) -> Callable[[Transitions], np.ndarray] | None:
    """The task's reward of any observation and action; None where it is not known, or depends on more than these.

    Asking for an observation that was not met when they were listed is a KeyError.
    """
    rewards = _rewards_of_the_table(candidate)
    if rewards is None:
        rewards = _rewards_of_every_state(candidate)
    if not rewards:
        return None
    reward_of: dict[Pair, float] = {}
    for pair, reward in rewards:
        if reward_of.setdefault(pair, reward) != reward:
            return None

    def task(batch: Transitions) -> np.ndarray:
        pairs = zip(batch.obs, batch.action)
        return np.array([reward_of[obs.tobytes(), int(action)] for obs, action in pairs])

    return task


def _rewards_of_the_table(candidate: Candidate) -> list[tuple[Pair, float]] | None:
    """Rewards of every outcome in a table P[s][a] of (probability, next, reward, ends), as Gymnasium's toy text has."""
    spec = candidate.spec
    with closing(make(spec.env, **spec.options)) as env:
        world = env.unwrapped
        space = env.observation_space
        table = getattr(world, "P", None)
    if not isinstance(table, dict) or not isinstance(space, Discrete):
        return None
    state_type = np.dtype(space.dtype).type
    rewards = []
    for state, row in table.items():
        for action, outcomes in row.items():
            pair = (state_type(state).tobytes(), int(action))
            for _, _, reward, _ in outcomes:
                rewards.append((pair, float(reward)))
    return rewards


def _rewards_of_every_state(candidate: Candidate) -> list[tuple[Pair, float]]:
    """Rewards of every action in every state of a small world without chance; empty of others."""
    mdp = load_or_enumerate(candidate.spec)
    if mdp is None or isinstance(mdp.sample.batch.obs, dict):
        return []
    batch = mdp.sample.batch
    rows = zip(batch.obs, batch.action, batch.reward)
    return [((obs.tobytes(), int(action)), float(reward)) for obs, action, reward in rows]


def _epic_rows(candidates: list[Candidate]) -> np.ndarray | None:
    """The rows that canonical rewards are compared on: all that count, or some where transitions are made up for each.

    None where a reward cannot be scored on transitions that never happened: a memory, or what only a recording has.
    """
    sample = candidates[0].sample
    for candidate in candidates:
        reads = candidate.reward.requires
        recorded = reads & {"reward", "obs_frame", "obs_text", "obs_signals"}
        frames_alone = "frame" in reads and candidate.reward.embedding is None
        if candidate.stream.has_memory or recorded or (frames_alone and _needs_made_up(candidate)):
            return None
    rows = np.flatnonzero(sample.counted)
    if not any(map(_needs_made_up, candidates)):
        return rows
    rng = np.random.default_rng(candidates[0].seed)
    return rng.choice(rows, min(MAX_CANONICAL_ROWS, len(rows)), replace=False)


def _needs_made_up(candidate: Candidate) -> bool:
    """Whether its canonical form needs made-up transitions: a reward of the next state alone is canonical as it is."""
    return bool(candidate.reward.requires & {"obs", "action"})


def _canonical_reward(candidate: Candidate, rows: np.ndarray) -> np.ndarray:
    """A reward in EPIC's canonical form, float64, one for each of some rows."""
    if not _needs_made_up(candidate):
        return candidate.values[rows]
    batch = candidate.batch[rows].replace(frame=None, obs_frame=None)
    return _canonical_scores(candidate.score, batch, candidate.seed)


def _canonical_scores(score: Callable[[Transitions], np.ndarray], batch: Transitions, seed: int) -> np.ndarray:
    # One seed for both rewards of a distance: they are asked about the same made-up transitions.
    rng = np.random.default_rng([seed, 1])
    return distances.epic_canonical(score, batch, gamma=GAMMA, samples=MADE_UP_TRANSITIONS, rng=rng)


class PairDistance(NamedTuple):
    """How far apart two rewards are."""

    # EPIC, or Pearson where one of them cannot be canonicalised.
    name: str
    value: float
    # On the sample's distribution.
    starc: float


def distances_between(candidates: list[Candidate]) -> dict[tuple[str, str], PairDistance]:
    """Pair of rewards -> their EPIC distance, both canonicalised, else Pearson's, and the STARC distance."""
    between = {}
    for one, other in itertools.combinations(candidates, 2):
        uniform = one.sample.uniform
        batch = one.sample.batch[uniform]
        features = distances.state_features(batch)
        starc = distances.starc_on_distribution(
            one.values[uniform], other.values[uniform], *features, batch.terminated, **FITTED
        )
        rows = _epic_rows([one, other])
        if rows is None:
            # The distance of rewards as they are is a function of Pearson's correlation.
            name = "Pearson"
            counted = one.sample.counted
            values = (one.values[counted], other.values[counted])
        else:
            name = "EPIC"
            values = (_canonical_reward(one, rows), _canonical_reward(other, rows))
        between[one.name, other.name] = PairDistance(name, distances.epic(*values), starc)
    return between
