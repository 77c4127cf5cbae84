"""What every adapter does: follow episodes, keep the rewards' memories of them, score steps, update the rewards."""

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from envs.observations import fits
from envs.steps import Chunk, Cursor, from_gym_step, modalities_of_one
from envs.transitions import Transitions
from envs.types import EnvReset, EnvStep, Info, Memory, Options, StateDict
from lodestar.state import Stateful
from rewards.base import Metrics, Reward, merge_memory
from rewards.mix.mix import Mix, Stream, add_parts, refuse_missing


class EpisodeTracker(Stateful):
    """Where N environments are in their episodes, and what rewards remember of these: `memory`, by name."""

    saved: ClassVar[tuple[str, ...]] = ("memory", "cursor")

    def __init__(self, sources: Mapping[str, Stream | Reward], n: int, frame_size: int | None = None) -> None:
        self.sources = sources
        self.n = n
        self.frame_size = frame_size
        self.cursor = Cursor(n)
        self.memory: dict[str, Memory] = self._initial_memories()

    def _initial_memories(self) -> dict[str, Memory]:
        memories = {}
        for name, source in self.sources.items():
            memory = source.initial_memory(self.n)
            if memory is not None:
                memories[name] = memory
        return memories

    def begin(self, modalities: Mapping[str, np.ndarray], mask: np.ndarray | None = None) -> np.ndarray:
        """Episodes begin, in all environments or those of `mask`: which, bool (N,).

        `modalities` come with their first observations; a ValueError if one that is read is missing, at the first reset
        and not an hour later.
        """
        refuse_missing(self.sources, modalities, self.frame_size)
        if mask is None:
            mask = np.ones(self.n, bool)
        mask = np.asarray(mask, bool)
        self.cursor.begin(modalities, mask)
        # Memories of the environments that go on stay as they are, but for what only an earlier version kept.
        memories = {}
        for name, initial in self._initial_memories().items():
            assert initial is not None
            memory = {key: self.memory[name][key] for key in initial}
            memories[name] = merge_memory(memory, initial, mask)
        self.memory = memories
        return mask


def modality_options(sources: Mapping[str, Stream | Reward]) -> Options:
    """Texts and signals that these read, as arguments of `envs.make.make`, such as {"signals": True}."""
    fields: set[str] = set()
    for source in sources.values():
        fields |= source.requires
    return {name: True for name in ("text", "signals") if {name, f"obs_{name}"} & fields}


class TrackedEnv(gym.Wrapper, RecordConstructorArgs):
    """Base class of wrappers that follow one environment; what rewards remember is in its snapshots, as `kept`."""

    kept: ClassVar[str]

    def __init__(self, env: gym.Env, mix: Mix, tracker: EpisodeTracker) -> None:
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, mix=mix)
        super().__init__(env)
        self.tracker = tracker
        self._obs: Any = None  # the environment's own

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> EnvReset:
        self._obs, info = self.env.reset(seed=seed, options=options)
        self.tracker.begin(modalities_of_one(info))
        return self.current_obs(), info

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        step = (self._obs, action, float(reward), obs, terminated, truncated, info)
        self._obs = obs
        # Rewards see a step as a batch of one transition.
        batch = from_gym_step(self.tracker.cursor, *step)
        ends = self.observe(batch, info)
        return self.current_obs(), reward, terminated or ends, truncated, info

    def current_obs(self) -> Any:
        """The observation as it is handed on."""
        return self._obs

    def observe(self, batch: Transitions, info: Info) -> bool:
        """Let the rewards see a step (1,); whether they end the episode with it."""
        raise NotImplementedError

    def snapshot(self) -> StateDict:
        """The environment's snapshot, and the rewards' memories."""
        return {"env": self.env.get_wrapper_attr("snapshot")(), self.kept: self.tracker.state_dict()}

    def restore(self, state: StateDict) -> EnvReset:
        self._obs, info = self.env.get_wrapper_attr("restore")(state["env"])
        self.tracker.load_state_dict(state[self.kept])
        return self.current_obs(), info


def fits_arrays(mix: Mix, observation_space: spaces.Space, action_space: spaces.Space) -> tuple[bool, bool]:
    """Whether observations and actions fit into arrays, as those of Text, Tuple, Graph, Sequence and OneOf do not.

    ValueError if some do not, and a reward reads them.
    """
    obs_fits = fits(observation_space)
    action_fits = fits(action_space, nested=False)
    for field, space, fitting in (("obs", observation_space, obs_fits), ("action", action_space, action_fits)):
        for name, stream in mix.streams.items():
            if not fitting and {field, f"next_{field}"} & stream.requires:
                raise ValueError(f"the reward {name!r} reads {field}, but {space} fits into no array; flatten it")
    return obs_fits, action_fits


class Driver(EpisodeTracker):
    """Feeds a mix step by step: embed, score, combine, remember, and every `update_every` transitions learn."""

    saved = ("memory", "cursor", "chunk", "timesteps")  # the chunk holds the rows still to be learnt from

    def __init__(self, mix: Mix, n: int, update_every: int) -> None:
        if update_every < 1:
            raise ValueError(f"update_every={update_every} transitions must be at least 1")
        super().__init__(mix.streams, n, mix.frame_size)
        # An agent behind a wrapper gets one reward, so streams cannot have a value each.
        mix.only_sums("a wrapper")
        self.mix = mix
        self.chunk = Chunk(max(update_every // n, 1))
        self.raw: dict[str, np.ndarray] = {}  # the streams' scores of the last step
        self.parts: dict[str, np.ndarray] = {}  # the same, weighted and scaled: they add up to the reward
        self.metrics: Metrics = {}  # of the last update
        self.timesteps = 0  # over all environments

    def __call__(self, batch: Transitions) -> np.ndarray:
        """The reward of a step, float32 (N,)."""
        batch = self.mix.embed(batch)
        self.raw, self.memory = self.mix.score(batch, self.memory)
        self.parts = self.mix.weighted_rewards(self.raw, self.timesteps)
        total = add_parts(self.parts)
        # A row that only resets is no step of its environment.
        self.timesteps += int(batch.valid.sum())
        self.chunk.add(batch, self.raw)
        if self.chunk.full:
            fresh, raw = self.chunk.take()
            self.metrics = self.mix.update(fresh, raw, self.timesteps)
        return total
