"""Prompts of a policy for every direction (`algo=hilp`), without learning on: a goal, or any reward.

    python -m runners.offline data=play.safetensors algo=hilp out=all.safetensors prompt.place=[0.5,-0.5]
    python -m runners.offline data=play.safetensors algo=hilp policy=all.safetensors prompt=clip prompt.goal="..."

A reward scores the recording. A plan over recorded segments (`agents.offline.plan`) then says in each state what to aim
at, and z is the direction there. A goal is a reward of 1 where it is at most a step away. The source's own prompt of a
reward, the one direction that fits its scores best, leads to few rewards (`benchmarks hilp_prompts`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

import rewards
from agents.offline.hilp import HILP, HILPConfig, on_sphere
from agents.offline.plan import SEGMENT_STEPS, Plan
from envs.recording import episodes
from envs.transitions import Transitions
from rewards.demonstrations.hilp import Hilbert
from runners.run.config import UsageError, Values

if TYPE_CHECKING:
    from runners.offline import OfflineConfig

# Of observations and of actions.
Spaces = tuple[gym.Space, gym.Space]


def zero_shot(config: "OfflineConfig", batch: Transitions, spaces: Spaces, build: Callable[[Any], HILP]) -> HILP:
    """The policy in `policy=`, or one that `build` makes of phi, with its prompt."""
    if config.policy:
        model = HILP.load(config.policy, *spaces, seed=config.seed, device=config.device)
        size, features, hidden = model.kept["sizes"]
        hilbert = Hilbert(size, features, hidden, torch.Generator()).to(config.device)
        hilbert.load_state_dict(model.kept["phi"])
        model.phi = hilbert.phi
    else:
        model = learn_policy(config, batch, spaces, build)
    set_prompt(model, config.prompt, config.prompt_options, batch, spaces)
    return model


def learn_policy(config: "OfflineConfig", batch: Transitions, spaces: Spaces, build: Callable[[Any], HILP]) -> HILP:
    """Learn phi, and of it a policy for every direction, which keeps phi."""
    # An untrained agent refuses the spaces that it cannot use.
    vector = HILP(HILPConfig(), *spaces).own.vector
    features = config.agent_options.get("features", HILPConfig.features)
    settings: Any = rewards.config_of("hilp", config.reward_options | {"features": features})
    obs = vector(batch.obs)
    next_obs = vector(batch.next_obs)
    hilbert = Hilbert.from_episodes(obs, next_obs, episodes(batch), settings, config.seed, config.device)
    model = build(hilbert.phi)
    model.kept = {
        "sizes": [model.own.obs_size, settings.features, settings.hidden],
        "phi": dict(hilbert.state_dict()),
    }
    model.learn(config.steps)
    return model


def set_prompt(model: HILP, name: str, given: Values, batch: Transitions, spaces: Spaces) -> None:
    """Give the policy its prompt, `goal` or a reward, with its options."""
    phi = model.phi
    before = phi(model.own.vector(batch.obs))
    after = phi(model.own.vector(batch.next_obs))
    goal = None
    if name == "goal":
        goal = phi(goal_of(given, model, batch))
        distance = np.linalg.norm(after - goal, axis=1)
        # Where the goal was never reached, the nearest state is rewarded.
        scores = (distance <= max(1, distance.min())).astype(np.float32)
    else:
        scores = score_recording(name, given, batch, spaces, model.config.gamma)
    last = np.zeros(len(before), int)
    for rows in episodes(batch):
        last[rows] = rows.stop - 1
    plan = Plan(before, after, scores, last, np.asarray(batch.terminated, bool))

    def prompt(vector: np.ndarray) -> np.ndarray:
        here = phi(vector)
        to_aim = plan.aim(here) - here
        if goal is not None:
            to_goal = goal - here
            is_near = np.linalg.norm(to_goal, axis=1, keepdims=True) <= SEGMENT_STEPS
            to_aim = np.where(is_near, to_goal, to_aim)
        return on_sphere(torch.from_numpy(to_aim)).numpy()

    model.prompt = prompt


def score_recording(name: str, given: Values, batch: Transitions, spaces: Spaces, gamma: float) -> np.ndarray:
    """A reward's scores of all transitions, (N,); a UsageError where there is nothing to prefer."""
    mix = rewards.make({name: {"scale": "none", **given}}, *spaces, gamma=gamma)
    refuse_missing(batch, mix, f"prompt={name}")
    # A mix scores steps of environments, (T, N).
    scores, _ = mix.total(batch[:, None], mix.initial_memory(1), 0)
    if not np.ptp(scores) > 0:
        raise UsageError(f"prompt={name} is worth the same in every recorded transition, so there is nothing to go for")
    return scores[:, 0]


def goal_of(options: Values, model: HILP, batch: Transitions) -> np.ndarray:
    """The goal as a vector (1, D): `place`, or what the transition `row` led to; of neither, the last one."""
    place = options.get("place", [])
    row = options.get("row", -1)
    count = len(batch.step)
    unknown = options.keys() - {"row", "place"}
    if unknown:
        fix = "give prompt.row=, prompt.place= or, for a reward, prompt=NAME"
        raise UsageError(f"prompt.{min(unknown)}= is none of a goal's options; {fix}")
    if place and np.shape(place) != (model.own.obs_size,):
        raise UsageError(f"prompt.place={place} has not the {model.own.obs_size} numbers of an observation; give these")
    if not (isinstance(row, int) and -count <= row < count):
        raise UsageError(f"prompt.row={row} is not among the {count} rows of the data")
    if place:
        return np.array([place], np.float32)
    row %= count
    return model.own.vector(batch[row : row + 1].next_obs)


def refuse_missing(batch: Transitions, reads: Any, who: str) -> None:
    """A UsageError for what `reads` requires and the data lacks."""
    lacking = set()
    for name in reads.requires:
        if getattr(batch, name) is None:
            lacking.add(name.removeprefix("obs_"))
    missing = sorted(lacking)
    if missing:
        options = {"frame": f"frames={reads.frame_size or 224}", "text": "text=true", "signals": "signals=true"}
        fix = " ".join(options.get(name, name) for name in missing)
        raise UsageError(f"{who} reads {', '.join(missing)}, which the data lacks; record with {fix}")
