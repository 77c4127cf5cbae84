"""Rewards that also guide the policy: their guide vectors are appended to the observation.

A reward with a memory of the episode may have

    guides: int                             size of the guide vector, D
    guide(memory) -> float32 (N, D)         guide vectors of N policies, given the memory of their episodes
    begin(memory, modalities, mask)         optional: the memory after what comes with first observations (frames,
                                            texts, signals, each (N, ...)) of the environments in `mask`, bool (N,)

One without a memory is given the numbers of the episodes instead, int64 (N,), which count up from the environment's.
The policy then reads (n + D,) numbers instead of the environment's (n,):

    mix = make_mix(...); env = add_guides(env, mix)     around one environment or a vector; as it is without a guide

The wrapper keeps a memory of its own, as the drivers of a mix do. An episode's last observation comes with its own
guide vector, also where the next episode's first one has taken its place (`final_obs`).

Limits: flat observations, Box (n,). A guide with a memory may read texts and signals, but no observations: the driver
that computes rewards would give it others than this wrapper. One without finds its own vector at the end of the
observations it scores, if it is the only guide.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

import rewards
from envs.steps import from_vector_step, modalities_of
from envs.transitions import Transitions, reset_mode
from envs.types import EnvReset, Info, Obs, Options, StateDict, VectorStep
from rewards.adapters.driver import EpisodeTracker, TrackedEnv, modality_options
from rewards.base import merge_memory
from rewards.mix.mix import Mix


def guides(mix: Mix) -> dict[str, Any]:
    """The rewards of a mix that guide the policy, by name; most mixes have none."""
    return {name: stream.reward for name, stream in mix.streams.items() if stream.reward.guides}


def guide_modalities(mix: Mix) -> Options:
    """Modalities that they read, as arguments of `envs.make.make`."""
    return modality_options(guides(mix))


def add_guides(env: Any, mix: Mix) -> Any:
    """The environment, or vector of them, with guide vectors appended to its observations; itself without a guide."""
    if not guides(mix):
        return env
    if isinstance(env, VectorEnv):
        return Guided(env, mix)
    return GuidedEnv(env, mix)


def guided_space(space: spaces.Space, mix: Mix) -> spaces.Space:
    """The space of one observation with guide vectors appended; ValueError if it is not flat, or a guide reads it."""
    guiding = guides(mix)
    if not guiding:
        return space
    names = ", ".join(guiding)
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or not np.issubdtype(space.dtype, np.floating):
        raise ValueError(f"{names} guides beside flat float observations, not {space}; flatten them")
    for name, reward in guiding.items():
        fields = sorted({"obs", "next_obs", "frame", "obs_frame"} & reward.requires)
        # A single guide without a memory finds its own vector in the observations that it scores.
        may_read = reward.initial_memory(1) is None and len(guiding) == 1
        if fields and not may_read:
            raise ValueError(
                f"the reward {name!r} guides, so it may read texts and signals, but not {', '.join(fields)}"
            )
    size = sum(reward.guides for reward in guiding.values())
    unbounded = np.full(size, np.inf, np.float32)
    low = np.concatenate([np.asarray(space.low, np.float32), -unbounded])
    high = np.concatenate([np.asarray(space.high, np.float32), unbounded])
    return spaces.Box(low, high, dtype=np.float32)


def make_mix(given: Any, observation_space: spaces.Space, action_space: spaces.Space, **options: Any) -> Mix:
    """As `rewards.make`; where a reward guides the policy, the others see the observations with its guide vector."""
    mix = rewards.make(given, observation_space, action_space, **options)
    space = guided_space(observation_space, mix)
    if space is observation_space or not {"obs", "next_obs"} & mix.requires:
        return mix
    return rewards.make(given, space, action_space, **options)


class _GuideTracker(EpisodeTracker):
    """The guides' memories of N running episodes, and their guide vectors."""

    saved = ("memory", "cursor", "episode")

    def __init__(self, mix: Mix, n: int) -> None:
        super().__init__(guides(mix), n, mix.frame_size)
        # Number of the running episode in each environment; the first `begin` makes it the environment's own.
        self.episode = np.arange(n) - 1

    def begin(self, modalities: Mapping[str, Any], mask: np.ndarray | None = None) -> np.ndarray:
        mask = super().begin(modalities, mask)
        self.episode = self.episode + mask
        for name, reward in self.sources.items():
            if hasattr(reward, "begin"):
                self.memory[name] = reward.begin(self.memory[name], modalities, mask)
        return mask

    def observe(self, batch: Transitions) -> None:
        """One step, (N,); rows that are no transitions change nothing."""
        for name, before in self.memory.items():
            reward: Any = self.sources[name]
            _, after = reward.score(batch, before)
            if not batch.valid.all():
                after = merge_memory(after, before, ~batch.valid)
            self.memory[name] = after

    def vectors(self) -> np.ndarray:
        """Guide vectors, float32 (N, D)."""
        vectors = []
        reward: Any
        for name, reward in self.sources.items():
            # A guide without a memory is given the numbers of the episodes.
            vectors.append(reward.guide(self.memory.get(name, self.episode)))
        return np.concatenate(vectors, axis=1)


class GuidedEnv(TrackedEnv):
    """One environment with guide vectors appended to its observations."""

    kept = "guides"
    tracker: _GuideTracker

    def __init__(self, env: gym.Env, mix: Mix) -> None:
        super().__init__(env, mix, _GuideTracker(mix, 1))
        self.observation_space = guided_space(env.observation_space, mix)

    def observe(self, batch: Transitions, info: Info) -> bool:
        self.tracker.observe(batch)
        return False

    def current_obs(self) -> np.ndarray:
        return np.concatenate([self._obs, self.tracker.vectors()[0]], dtype=np.float32)


class Guided(VectorWrapper, RecordConstructorArgs):
    """A vector, SAME_STEP or NEXT_STEP, with guide vectors appended to observations, which hold until the next step."""

    def __init__(self, env: VectorEnv, mix: Mix) -> None:
        self.autoreset_mode = reset_mode(env)
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, mix=mix)
        super().__init__(env)
        self.single_observation_space = guided_space(env.single_observation_space, mix)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.tracker = _GuideTracker(mix, env.num_envs)
        shape = (env.num_envs, *(self.single_observation_space.shape or ()))
        # The arrays that are handed out, for observations and for the last ones of episodes.
        self._joined = np.zeros(shape, np.float32)
        self._final = np.zeros(shape, np.float32)

    def reset(self, *, seed: Any = None, options: Options | None = None) -> EnvReset:
        # Gymnasium takes the mask out of the options, so it is read before.
        mask = (options or {}).get("reset_mask")
        obs, infos = self.env.reset(seed=seed, options=options)
        self.tracker.begin(modalities_of(infos), mask)
        return self._join(obs, self._joined), infos

    def step(self, actions: Any) -> VectorStep:
        next_obs, rewards, terminations, truncations, infos = self.env.step(actions)
        tracker = self.tracker
        same_step = self.autoreset_mode == AutoresetMode.SAME_STEP
        # In NEXT_STEP mode episodes begin in the step after their last; the cursor moves on below.
        resetting = tracker.cursor.resetting.copy()
        # `next_obs` stands for `obs`, too: guides do not read it, and the one before may be overwritten by now.
        step = (next_obs, actions, rewards, next_obs, terminations, truncations, infos)
        batch = from_vector_step(tracker.cursor, self.autoreset_mode, *step)
        tracker.observe(batch)
        begins = batch.ended if same_step else resetting
        if begins.any():
            # The last observation of an episode keeps its own guide vector.
            if same_step:
                infos = {**infos, "final_obs": self._join(batch.next_obs, self._final, begins)}
            tracker.begin(modalities_of(infos), begins)
        return self._join(next_obs, self._joined), rewards, terminations, truncations, infos

    def snapshot(self) -> StateDict:
        return {"envs": self.env.snapshot(), "guides": self.tracker.state_dict()}  # type: ignore[attr-defined]

    def restore(self, state: StateDict) -> Obs:
        obs = self.env.restore(state["envs"])  # type: ignore[attr-defined]
        self.tracker.load_state_dict(state["guides"])
        return self._join(obs, self._joined)

    def _join(self, obs: np.ndarray, out: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
        """Observations (N, n + D) in `out`, of which only `rows` are set."""
        width = obs.shape[1]
        out[rows, :width] = obs[rows]
        out[rows, width:] = self.tracker.vectors()[rows]
        return out
