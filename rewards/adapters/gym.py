"""The mix in any Gymnasium program: around one environment, or around a vector of them.

    env = RewardWrapper(envs.make.make("CartPole-v1"), rewards.make(["task", "rnd"], observation_space, action_space))
    vec = VectorRewardWrapper(envs.make.make_vec("CartPole-v1", 8), mix)

`step` returns the mix instead of the task's reward; `info["reward/task"]` and `info["reward/<name>"]` keep the parts.
What rewards read besides, frames, texts and signals, is added where it can be had (`rewards.adapters.observe`); else
the environment has to put it into its info. Observations and actions that fit into no array pass through; a reward that
reads them is refused.
"""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate
from gymnasium.wrappers import Autoreset

from envs.masks import with_method
from envs.observations import refuse_result
from envs.steps import from_gym_step, from_vector_step, modalities_of, modalities_of_one
from envs.types import MASK, EnvReset, EnvStep, Info, Options, VectorStep
from envs.wrappers import layers
from rewards.adapters.driver import Driver, fits_arrays
from rewards.adapters.observe import Read, add_modalities, make_reader, observed_vector
from rewards.mix.mix import Mix


class RewardWrapper(gym.Wrapper, RecordConstructorArgs):
    """The mix around any Gymnasium environment: what every other way of running a reward is compared with.

    Put episode statistics inside of this wrapper, so that they count the task; `update_every` is in transitions. What
    `gymnasium.make(env.spec)` builds shares the mix. Raises ValueError if there is Gymnasium's Autoreset inside, whose
    steps from one episode into the next are none.

    Example:
        >>> import envs.make, rewards
        >>> env = envs.make.make("CartPole-v1", seed=0)
        >>> env = RewardWrapper(env, rewards.make(["task", "rnd"], env.observation_space, env.action_space))
        >>> obs, info = env.reset()
        >>> obs, reward, terminated, truncated, info = env.step(0)
        >>> info["reward/task"], "reward/rnd" in info
        (1.0, True)
    """

    def __init__(self, env: gym.Env, mix: Mix, update_every: int = 256) -> None:
        if layers(env, Autoreset):
            raise ValueError(f"{env} resets itself in a step that is none; put Autoreset around RewardWrapper")
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, mix=mix, update_every=update_every)
        super().__init__(add_modalities(env, mix))
        self.driver = Driver(mix, 1, update_every)
        space, read = make_reader(env, mix)
        reads_obs, self._reads_action = fits_arrays(mix, space, env.action_space)
        # A copy of an observation, as rewards read it; None if none does.
        self._read: Read = read or copy.deepcopy
        if not reads_obs:
            self._read = lambda obs: None
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> EnvReset:
        obs, info = self.env.reset(seed=seed, options=options)
        if MASK in info:
            self.env, info = with_method(self.env, info)
        self.driver.begin(modalities_of_one(info))
        self._obs = self._read(obs)
        return obs, info

    def step(self, action: Any) -> EnvStep:
        next_obs, reward, terminated, truncated, info = self.env.step(action)
        refuse_result(reward, terminated, truncated)
        after = self._read(next_obs)
        if not self._reads_action:
            action = None
        step = (self._obs, action, float(reward), after, terminated, truncated, info)
        total = self.driver(from_gym_step(self.driver.cursor, *step))
        info["reward/task"] = float(reward)
        for name, raw in self.driver.raw.items():
            info[f"reward/{name}"] = float(raw[0])
        self._obs = after
        return next_obs, float(total[0]), terminated, truncated, info


class VectorRewardWrapper(VectorWrapper, RecordConstructorArgs):
    """The mix around a vector environment: one `score` a step for all environments, in each auto-reset mode.

    In NEXT_STEP mode the step that only resets has reward 0 and is never learnt from. Raises ValueError if the
    environment does not declare `metadata["autoreset_mode"]`: guessing it would reward transitions that never happened.

    Example:
        >>> import envs.make, rewards
        >>> vector = envs.make.make_vec("CartPole-v1", 2)
        >>> mix = rewards.make(["task"], vector.single_observation_space, vector.single_action_space)
        >>> vector = VectorRewardWrapper(vector, mix)
        >>> obs, infos = vector.reset(seed=0)
        >>> vector.step(np.array([0, 1]))[1].tolist()
        [1.0, 1.0]
    """

    def __init__(self, env: VectorEnv, mix: Mix, update_every: int = 1024) -> None:
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            declared = f'metadata["autoreset_mode"]={mode!r}'
            raise ValueError(f"{env} declares {declared}; set it to a gymnasium.vector.AutoresetMode")
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, mix=mix, update_every=update_every)
        super().__init__(observed_vector(env, mix))
        self.autoreset_mode = mode
        self.driver = Driver(mix, env.num_envs, update_every)
        space = env.single_observation_space
        self._read: Read | None = None
        # Environments that stand in this process, and whose observations no wrapper changes, can be read as adapted.
        if isinstance(env.unwrapped, SyncVectorEnv) and env.unwrapped.single_observation_space == space:
            space, self._read = make_reader(env.unwrapped.envs[0], mix)
        self._reads_obs, self._reads_action = fits_arrays(mix, space, env.single_action_space)
        self._obs: Any = None
        # The mask that Gymnasium puts beside what infos hold.
        self._everywhere = np.ones(env.num_envs, bool)

    def reset(self, *, seed: Any = None, options: Options | None = None) -> EnvReset:
        # Gymnasium takes the mask out of the options, so it is read before.
        mask = (options or {}).get("reset_mask")
        obs, infos = self.env.reset(seed=seed, options=options)
        self.driver.begin(modalities_of(infos), mask)
        self._obs = self._copy_obs(obs)
        return obs, infos

    def step(self, actions: Any) -> VectorStep:
        next_obs, rewards, terminations, truncations, infos = self.env.step(actions)
        after = self._copy_obs(next_obs)
        if not self._reads_action:
            actions = None
        step = (self._obs, actions, rewards, after, terminations, truncations, self._adapt_final_obs(infos))
        total = self.driver(from_vector_step(self.driver.cursor, self.autoreset_mode, *step))
        for name, raw in {"task": np.asarray(rewards, np.float32), **self.driver.raw}.items():
            infos[f"reward/{name}"] = raw
            infos[f"_reward/{name}"] = self._everywhere
        self._obs = after
        return next_obs, total, terminations, truncations, infos

    def _adapt_final_obs(self, infos: Info) -> Info:
        """Infos whose last observations of episodes are as rewards read them; those of the caller stay as they are."""
        if self._read is None or "final_obs" not in infos:
            return infos
        final = np.empty(self.num_envs, object)
        for row, obs in enumerate(infos["final_obs"]):
            if obs is not None:
                final[row] = self._read(obs)
        return {**infos, "final_obs": final}

    def _copy_obs(self, obs: Any) -> Any:
        """A copy of observations (N, ...), as rewards read them; None if none does."""
        if not self._reads_obs:
            return None
        if self._read is None:
            return copy.deepcopy(obs)
        return np.stack(list(map(self._read, iterate(self.env.observation_space, obs))))
