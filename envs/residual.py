"""A frozen policy inside the environment, to whose actions an agent adds: every agent becomes a residual one.

    action = clip(base + scale * residual, -1, 1)         over the range of the environment's actions
    the agent reads [obs, base], the base's next action, which is the one that will be added

    make("lodestar/Peg-v0", base=stable_baselines3.PPO.load("model.zip"))     anything with `predict`, or a function
    python -m runners.train env=lodestar/Peg-v0 env.base=cloned.safetensors env.base_scale=0.1 agent.zero_last=true

Sources: Ankile et al. 2024 (ResiP), arXiv 2407.16677; residuals are of Silver et al. 2018, 1812.06298. Differences: the
base is asked for its mode; episodes cut by time are bootstrapped; the agent's own space is [-1, 1].
When it fails: a base that errs by more than `scale`. Where the sum is often outside the range (`residual/clipped` in
the log) the agent acts less than it learns of. The base keeps its own clock: its chunk, an LSTM's memory.
"""

import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

import envs
from envs.transitions import final_rows
from envs.types import EnvReset, EnvStep


def script(act: Callable[[np.ndarray], np.ndarray], action_space: spaces.Space) -> Any:
    """A function from observations (N, D) to actions (N, A) as a policy, which raises a ValueError where it is none."""
    name = getattr(act, "__name__", type(act).__name__)
    wanted = ", ".join(["N", *map(str, action_space.shape or [""])]).rstrip()
    rule = f"a policy takes a batch of observations (N, ...), as in obs[:, 0], and returns actions ({wanted})"
    if not callable(act):
        raise ValueError(f"{act!r} is no function; {rule}")

    def predict(obs: Any, **_: Any) -> tuple[np.ndarray, None]:
        shape = np.shape(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        try:
            action = np.asarray(act(obs))
        except Exception as error:  # whatever the user's function does
            line = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} ({line.filename}:{line.lineno})"
            raise ValueError(f"{name} failed on observations {shape}: {what}; {rule}") from error
        if action.shape != (shape[0], *(action_space.shape or ())):
            raise ValueError(f"{name} returned {action.shape} for observations {shape}; {rule}")
        return action, None

    return SimpleNamespace(predict=predict, action_space=action_space)


class Frozen:
    """A policy that N running episodes ask, and what it remembers of them.

    `base` has Stable-Baselines3's `predict`, is a function of observations, or is a text that names one. A ValueError
    refuses spaces that are not flat boxes, and a base that is for others.
    """

    def __init__(self, base: Any, scale: float, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        if not 0 < scale < np.inf:
            raise ValueError(f"base_scale={scale} is out of range; give a number above 0, such as 0.1")
        both = (observation_space, action_space)
        if not all(isinstance(space, spaces.Box) and len(space.shape) == 1 for space in both) or not (
            isinstance(action_space, spaces.Box) and action_space.is_bounded()
        ):
            raise ValueError(
                f"base= needs flat observations and bounded actions, not {observation_space} and {action_space}"
            )
        if isinstance(base, str):
            if not envs.policy_loader:
                raise ValueError(f"base={base} is a text, which commands alone read; give the policy, or a function")
            load: Any = load_env_creator(envs.policy_loader)
            base = load(base, *both)
        self.policy = base if hasattr(base, "predict") else script(base, action_space)
        for name, space in zip(("observation_space", "action_space"), both):
            if (own := getattr(base, name, space)).shape != space.shape:
                raise ValueError(f"base={base} has the {name} {own}, this environment {space}; give one of its own")
        seen, acted = (space for space in both if isinstance(space, spaces.Box))
        one = np.ones(acted.shape, np.float32)
        self.observation_space = spaces.Box(np.append(seen.low, -one), np.append(seen.high, one), dtype=np.float32)
        self.action_space = spaces.Box(-one, one, dtype=np.float32)
        self.middle, self.range = (acted.high + acted.low) / 2, (acted.high - acted.low) / 2
        self.dtype, self.scale = acted.dtype, scale
        self.state: Any = None
        self.action = one[None]  # of the base, (N, A), in [-1, 1]
        self.clipped = 0.0  # share of sums that were, over the last hundred steps or so

    def see(self, obs: np.ndarray, begins: np.ndarray, keep: bool = True) -> np.ndarray:
        """Observations (N, D) with the base's actions for them, float32 (N, D + A); its clock moves on if `keep`."""
        state = None if begins.all() else self.state
        action, state = self.policy.predict(obs, state=state, episode_start=begins, deterministic=True)
        action = ((action - self.middle) / self.range).astype(np.float32)
        if keep:
            self.state, self.action = state, action
        return np.concatenate([obs, action], -1, dtype=np.float32)

    def add(self, residual: np.ndarray) -> np.ndarray:
        """The environment's actions (N, A)."""
        total = self.action + self.scale * residual
        self.clipped += 0.01 * (float((np.abs(total) > 1).any(-1).mean()) - self.clipped)
        return (self.middle + self.range * np.clip(total, -1, 1)).astype(self.dtype)


class Residual(gym.Wrapper, RecordConstructorArgs):
    """One environment with a frozen policy in it; see the file."""

    def __init__(self, env: gym.Env, base: Any, scale: float = 0.1) -> None:
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, base=base, scale=scale)
        super().__init__(env)
        self.base = Frozen(base, scale, env.observation_space, env.action_space)
        self.observation_space, self.action_space = self.base.observation_space, self.base.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        obs, info = self.env.reset(seed=seed, options=options)
        return self.base.see(obs[None], np.ones(1, bool))[0], info

    def step(self, action: Any) -> EnvStep:
        obs, *rest = self.env.step(self.base.add(np.asarray(action)[None])[0])
        return self.base.see(obs[None], np.zeros(1, bool))[0], *rest


class ResidualVector(VectorWrapper):
    """A vector in SAME_STEP mode with a frozen policy in it, asked for all at once; its snapshots hold its memory."""

    def __init__(self, env: VectorEnv, base: Any, scale: float = 0.1) -> None:
        super().__init__(env)
        self.base = Frozen(base, scale, env.single_observation_space, env.single_action_space)
        self.single_observation_space, self.single_action_space = self.base.observation_space, self.base.action_space
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options:
            raise ValueError(f"options={options} are not known beside a base; reset all environments without")
        obs, infos = self.env.reset(seed=seed, options=options)
        return self.base.see(obs, np.ones(self.num_envs, bool)), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, rewards, terminations, truncations, infos = self.env.step(self.base.add(np.asarray(actions)))
        ended = terminations | truncations
        if "final_obs" in infos:  # it is followed by what the base would have done, on the clock of its own episode
            last = np.array(obs)
            last[ended] = final_rows(infos["final_obs"], ended)
            infos = {**infos, "final_obs": self.base.see(last, np.zeros(self.num_envs, bool), keep=False)}
        return self.base.see(obs, ended), rewards, terminations, truncations, infos

    def measured(self) -> dict[str, float]:
        return {"residual/clipped": self.base.clipped}

    def snapshot(self) -> dict[str, Any]:
        return {"envs": self.env.snapshot(), "state": self.base.state, "action": self.base.action}  # type: ignore[attr-defined]

    def restore(self, state: dict[str, Any]) -> np.ndarray:
        obs = self.env.restore(state["envs"])  # type: ignore[attr-defined]
        self.base.state, self.base.action = state["state"], np.asarray(state["action"])
        return np.concatenate([obs, self.base.action], -1, dtype=np.float32)
