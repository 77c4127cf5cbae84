"""Prompts of a policy for every direction (`algo=hilp`), without learning on: a goal, or one direction for a reward.

    python -m runners.offline data=play.safetensors algo=hilp out=all.safetensors prompt.place=[0.5,-0.5]
    python -m runners.offline data=play.safetensors algo=hilp policy=all.safetensors prompt=clip prompt.goal="..."

A reward scores the recording, and the direction that fits its scores best is the prompt: as the reward of a step,
<phi(s') - phi(s), z>, or of where it leads, <phi(s'), z> + b, whichever fits better. Few rewards are one direction: one
of a rare place is none, and its prompt does not lead there (`hilp_prompt_share`). For a place give a goal.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

import rewards
from agents.offline.hilp import HILP, HILPConfig, on_sphere
from envs.recording import episodes
from envs.transitions import Transitions
from rewards.demonstrations.hilp import Hilbert
from runners.run.config import UsageError

if TYPE_CHECKING:
    from runners.offline import OfflineConfig

# A prompt whose R^2 is lower gets a note.
MIN_PROMPT_FIT = 0.1


def zero_shot(
    config: "OfflineConfig", batch: Transitions, spaces: tuple[gym.Space, gym.Space], build: Callable[[Any], HILP]
) -> tuple[HILP, dict[str, float], list[str]]:
    """The policy in `policy=`, or one that `build` makes of phi, with its prompt; {"fit": R^2} of a reward, notes."""
    if config.policy:
        model = HILP.load(config.policy, *spaces, seed=config.seed, device=config.device)
        size, features, hidden = model.kept["sizes"]
        hilbert = Hilbert(size, features, hidden, torch.Generator()).to(config.device)
        hilbert.load_state_dict(model.kept["phi"])
        model.phi = hilbert.phi
    else:
        model = learn_policy(config, batch, spaces, build)
    metrics = set_prompt(model, config.prompt, config.prompt_options, batch, spaces)
    notes = []
    if metrics.get("fit", 1) < MIN_PROMPT_FIT:
        notes.append(f"prompt={config.prompt}: no direction fits it well, R^2 is below {MIN_PROMPT_FIT}")
    return model, metrics, notes


def learn_policy(
    config: "OfflineConfig", batch: Transitions, spaces: tuple[gym.Space, gym.Space], build: Callable[[Any], HILP]
) -> HILP:
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


def set_prompt(
    model: HILP, name: str, given: dict[str, Any], batch: Transitions, spaces: tuple[gym.Space, gym.Space]
) -> dict[str, float]:
    """Give the policy its prompt, `goal` or a reward, with its options; {"fit": R^2} of a reward."""
    phi = model.phi
    if name == "goal":
        goal = phi(goal_of(given, model, batch))
        model.prompt = lambda x: on_sphere(torch.from_numpy(goal - phi(x))).numpy()
        return {}
    mix = rewards.make({name: {"scale": "none", **given}}, *spaces, gamma=model.config.gamma)
    refuse_missing(batch, mix, f"prompt={name}")
    # A mix scores steps of environments, (T, N).
    scores, _ = mix.total(batch.map(lambda x: x[:, None]), mix.initial_memory(1), 0)
    before = phi(model.own.vector(batch.obs))
    after = phi(model.own.vector(batch.next_obs))
    z, fit = direction(scores[:, 0], before, after)
    if not z.any():
        raise UsageError(f"prompt={name} is worth the same in every recorded transition, which is no direction")
    prompt = on_sphere(torch.from_numpy(z)).numpy()
    model.prompt = lambda x: np.broadcast_to(prompt, (len(x), len(z)))
    return {"fit": fit}


def goal_of(options: dict[str, Any], model: HILP, batch: Transitions) -> np.ndarray:
    """The goal as a vector (1, D): `place`, or what the transition `row` led to; of neither, the last one."""
    place = options.get("place", [])
    row = options.get("row", -1)
    count = len(batch.step)
    unknown = options.keys() - {"row", "place"}
    if unknown:
        raise UsageError(f"prompt.{min(unknown)}= is none of a goal's options; give prompt.row= or prompt.place=")
    if place and np.shape(place) != (model.own.obs_size,):
        raise UsageError(f"prompt.place={place} has not the {model.own.obs_size} numbers of an observation; give these")
    if not (isinstance(row, int) and -count <= row < count):
        raise UsageError(f"prompt.row={row} is not among the {count} rows of the data")
    if place:
        return np.array([place], np.float32)
    row %= count
    return model.own.vector(batch[row : row + 1].next_obs)


def direction(worth: np.ndarray, before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, float]:
    """The direction z (d,) that fits rewards (N,) best and its R^2, at most 1; zeros for a constant reward."""
    best = np.zeros(before.shape[1], np.float32)
    best_fit = 0.0
    if not np.ptp(worth) > 0:
        return best, best_fit
    y = worth - worth.mean(dtype=np.float64)
    # As the reward of a step, then as that of where it leads, up to a constant.
    for x in (after - before, after - after.mean(axis=0)):
        z = np.linalg.lstsq(x, y, rcond=None)[0]
        fit = float(1 - np.square(y - x @ z).sum() / np.square(y).sum())
        if fit > best_fit:
            best = z.astype(np.float32)
            best_fit = fit
    return best, best_fit


def refuse_missing(batch: Transitions, reads: Any, who: str) -> None:
    """A UsageError for what `reads` requires and the data lacks."""
    missing = sorted({name.removeprefix("obs_") for name in reads.requires if getattr(batch, name) is None})
    if missing:
        options = {"frame": f"frames={reads.frame_size or 224}", "text": "text=true", "signals": "signals=true"}
        fix = " ".join(options.get(name, name) for name in missing)
        raise UsageError(f"{who} reads {', '.join(missing)}, which the data lacks; record with {fix}")
