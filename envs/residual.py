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
from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

import envs
from envs.transitions import final_rows
from envs.types import EnvReset, EnvStep, Options, StateDict, VectorStep


def script(act: Callable[[np.ndarray], np.ndarray], action_space: spaces.Space) -> Any:
    """A function from observations (N, D) to actions (N, A) as a policy, which raises a ValueError where it is none."""
    name = getattr(act, "__name__", type(act).__name__)
    row_shape = action_space.shape or ()
    shape_text = str(("N", *row_shape)).replace("'", "")
    rule = f"a policy takes a batch of observations (N, ...), as in obs[:, 0], and returns actions {shape_text}"
    if not callable(act):
        raise ValueError(f"{act!r} is no function; {rule}")

    def predict(obs: Any, **_: Any) -> tuple[np.ndarray, None]:
        rows = obs
        if isinstance(obs, dict):
            rows = next(iter(obs.values()))
        shape = np.shape(rows)
        try:
            action = np.asarray(act(obs))
        # A function of the user may raise anything.
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            cause = f"{type(error).__name__}: {error} ({line.filename}:{line.lineno})"
            raise ValueError(f"{name} failed on observations {shape}: {cause}; {rule}") from error
        if action.shape != (shape[0], *row_shape):
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
        if not _is_flat_box(observation_space) or not _is_flat_box(action_space) or not action_space.is_bounded():
            raise ValueError(
                f"base= needs flat observations and bounded actions, not {observation_space} and {action_space}"
            )
        if isinstance(base, str):
            if not envs.policy_loader:
                raise ValueError(f"base={base} is a text, which commands alone read; give the policy, or a function")
            load: Any = load_env_creator(envs.policy_loader)
            base = load(base, observation_space, action_space)
        if not hasattr(base, "predict"):
            base = script(base, action_space)
        self.policy = base
        self._check_space("observation_space", observation_space)
        self._check_space("action_space", action_space)
        one = np.ones(action_space.shape, np.float32)
        low = np.append(observation_space.low, -one)
        high = np.append(observation_space.high, one)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        self.action_space = spaces.Box(-one, one, dtype=np.float32)
        self.middle = (action_space.high + action_space.low) / 2
        self.range = (action_space.high - action_space.low) / 2
        self.dtype = action_space.dtype
        self.scale = scale
        self.state: Any = None
        # The base's actions (N, A), in [-1, 1].
        self.action = one[None]
        # The share of sums that were clipped, over the last hundred steps or so.
        self.clipped = 0.0

    def _check_space(self, name: str, space: spaces.Space) -> None:
        base_space = getattr(self.policy, name, space)
        if base_space.shape != space.shape:
            raise ValueError(
                f"base={self.policy} has the {name} {base_space}, this environment {space}; give one of its own"
            )

    def append_action(self, obs: np.ndarray, begins: np.ndarray, keep: bool = True) -> np.ndarray:
        """Observations (N, D) with the base's actions for them, float32 (N, D + A); its clock moves on if `keep`."""
        state = self.state
        if begins.all():
            state = None
        action, state = self.policy.predict(obs, state=state, episode_start=begins, deterministic=True)
        action = ((action - self.middle) / self.range).astype(np.float32)
        if keep:
            self.state = state
            self.action = action
        return np.concatenate([obs, action], -1, dtype=np.float32)

    def add(self, residual: np.ndarray) -> np.ndarray:
        """The environment's actions (N, A)."""
        total = self.action + self.scale * residual
        clipped = float((np.abs(total) > 1).any(-1).mean())
        self.clipped += 0.01 * (clipped - self.clipped)
        return (self.middle + self.range * np.clip(total, -1, 1)).astype(self.dtype)


def _is_flat_box(space: spaces.Space) -> TypeGuard[spaces.Box]:
    return isinstance(space, spaces.Box) and len(space.shape) == 1


class Residual(gym.Wrapper, RecordConstructorArgs):
    """One environment with a frozen policy in it; see the file."""

    def __init__(self, env: gym.Env, base: Any, scale: float = 0.1) -> None:
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, base=base, scale=scale)
        super().__init__(env)
        self.base = Frozen(base, scale, env.observation_space, env.action_space)
        self.observation_space = self.base.observation_space
        self.action_space = self.base.action_space

    def reset(self, **kwargs: Any) -> EnvReset:
        obs, info = self.env.reset(**kwargs)
        return self.base.append_action(obs[None], np.ones(1, bool))[0], info

    def step(self, action: Any) -> EnvStep:
        total = self.base.add(np.asarray(action)[None])
        obs, *outcome = self.env.step(total[0])
        return self.base.append_action(obs[None], np.zeros(1, bool))[0], *outcome


class ResidualVector(VectorWrapper):
    """A vector in SAME_STEP mode with a frozen policy in it, asked for all at once; its snapshots hold its memory."""

    def __init__(self, env: VectorEnv, base: Any, scale: float = 0.1) -> None:
        super().__init__(env)
        self.base = Frozen(base, scale, env.single_observation_space, env.single_action_space)
        self.single_observation_space = self.base.observation_space
        self.single_action_space = self.base.action_space
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: Options | None = None) -> EnvReset:
        if options:
            raise ValueError(f"options={options} are not known beside a base; reset all environments without")
        obs, infos = self.env.reset(seed=seed, options=options)
        return self.base.append_action(obs, np.ones(self.num_envs, bool)), infos

    def step(self, actions: Any) -> VectorStep:
        totals = self.base.add(np.asarray(actions))
        obs, rewards, terminations, truncations, infos = self.env.step(totals)
        ended = terminations | truncations
        # A last observation is followed by what the base would have done, on the clock of its own episode.
        if "final_obs" in infos:
            last = np.array(obs)
            last[ended] = final_rows(infos["final_obs"], ended)
            final_obs = self.base.append_action(last, np.zeros(self.num_envs, bool), keep=False)
            infos = {**infos, "final_obs": final_obs}
        return self.base.append_action(obs, ended), rewards, terminations, truncations, infos

    def take_metrics(self) -> dict[str, float]:
        return {"residual/clipped": self.base.clipped}

    def snapshot(self) -> StateDict:
        return {"envs": self.env.snapshot(), "state": self.base.state, "action": self.base.action}  # type: ignore[attr-defined]

    def restore(self, state: StateDict) -> np.ndarray:
        obs = self.env.restore(state["envs"])  # type: ignore[attr-defined]
        self.base.state = state["state"]
        self.base.action = np.asarray(state["action"])
        return np.concatenate([obs, self.base.action], -1, dtype=np.float32)
