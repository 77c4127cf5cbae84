"""S3RL: a student begins its first episodes in states that a teacher visited; later ones are ordinary.

The teacher's states are clustered, and a reset draws a cluster first and a state from it second, so that rare states
are seen as often as frequent ones. An episode that began in a snapshot is cut short, so that many fit into the phase.

Source: Zhao et al. 2024, "Snapshot Reinforcement Learning", arXiv 2403.00673. Differences: the phase is counted in
steps of this environment, not of the run; clusters are of observations scaled to unit variance, found once with a fixed
seed; `probability` mixes ordinary resets into the phase.

When it fails: a teacher that never found the reward does not help. An environment that counts time itself (MiniGrid)
keeps what has passed, so it may end a state from late in an episode before `truncate` does.

    teacher = make("Pendulum-v1", seed=0)
    snapshots = record(teacher, policy, episodes=10)
    student = SnapshotReset(make("Pendulum-v1", seed=1), snapshots)
"""

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from envs.snapshots.snapshots import State, check_same, from_json, get_state, refuse_unsupported, set_state, to_json
from envs.types import EnvReset, EnvStep, Options, StateDict
from envs.wrappers import Observer, layers
from lodestar.files import regular, replacing, save_arrays

MAX_RECORDED_STEPS = 100_000
# A thousand states of MiniGrid's or of a humanoid are 20 MB of JSON.
MAX_STATES_BYTES = 100_000_000
MAX_LLOYD_ROUNDS = 100


@dataclass
class Snapshots:
    """States of one environment, and what was observed in them."""

    states: list[State]
    # float32 (N, D), flattened.
    observations: np.ndarray

    def clusters(self, k: int) -> list[np.ndarray]:
        """The numbers of the states in each of at most `k` clusters of observations; always the same ones."""
        points = self.observations - self.observations.mean(axis=0)
        spread = points.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        labels = kmeans(points / spread, k)
        return [np.flatnonzero(labels == label) for label in np.unique(labels)]

    def save(self, path: str | Path) -> None:
        """Write a safetensors file: the observations, and the states as compressed JSON."""
        text = to_json(self.states).encode()
        if len(text) > MAX_STATES_BYTES:
            raise ValueError(
                f"{len(self.states):,} states are {len(text):,} bytes, more than the {MAX_STATES_BYTES:,} that `load` "
                "reads; keep fewer, by a larger every="
            )
        states = np.frombuffer(zlib.compress(text), np.uint8)
        with replacing(path) as temporary:
            save_arrays(temporary, {"observations": np.ascontiguousarray(self.observations), "states": states})

    @classmethod
    def load(cls, path: str | Path) -> "Snapshots":
        """Read what `save` wrote; nothing in the file is executed. A ValueError if it is another file."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            arrays = load_file(regular(Path(path).resolve()))
            states = from_json(_unfold(arrays["states"].tobytes()).decode())
            observations = arrays["observations"]
            if not (isinstance(states, list) and states and all(map(_is_state, states))):
                raise ValueError("its states are none")
            if observations.ndim != 2 or len(observations) != len(states):
                raise ValueError(f"there are {len(states)} states, and observations {observations.shape}")
            return cls(states, observations)
        except (SafetensorError, KeyError, zlib.error, ValueError, RecursionError) as error:
            raise ValueError(f"{path} holds no snapshots ({error}); write it with Snapshots.save") from None


def _unfold(data: bytes) -> bytes:
    """What was compressed; a ValueError if that is more than `save` writes, as a small file may unfold to gigabytes."""
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(data, MAX_STATES_BYTES)
    if unpacker.unconsumed_tail:
        raise ValueError(f"its states unfold to more than {MAX_STATES_BYTES:,} bytes")
    return text


def _is_state(state: Any) -> bool:
    """Whether it has the parts of what `get_state` returns."""
    parts = {"env": str, "wrappers": dict, "variables": dict, "things": list}
    return isinstance(state, dict) and all(isinstance(state.get(name), kind) for name, kind in parts.items())


def record(
    env: gym.Env, policy: Callable[[Any], Any], episodes: int, every: int = 1, seed: int | None = None
) -> Snapshots:
    """Play episodes and take a snapshot of every `every`-th state in which the policy acts, the first included."""
    for name, value in (("episodes", episodes), ("every", every)):
        if value < 1:
            raise ValueError(f"{name}={value} is out of range; give at least 1")
    refuse_unsupported(env)
    states = []
    observations = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed if episode == 0 else None)
        age = 0
        ended = False
        while not ended:
            if age % every == 0:
                states.append(get_state(env))
                flat_obs = spaces.flatten(env.observation_space, obs)
                observations.append(np.asarray(flat_obs, np.float32))
            obs, _, terminated, truncated, _ = env.step(policy(obs))
            ended = terminated or truncated
            age += 1
            if age >= MAX_RECORDED_STEPS and not ended:
                raise ValueError(
                    f"an episode has not ended after {MAX_RECORDED_STEPS:,} steps; give max_episode_steps= to make"
                )
    return Snapshots(states, np.stack(observations))


class SnapshotReset(gym.Wrapper):
    """Resets within the first `until` steps lead into snapshots, evenly over their clusters, with `probability`.

    Such an episode is truncated after `truncate` steps, and `info["episode"]` counts only its own. Everything is drawn
    from the environment's `np_random`. An `Observer` goes around this wrapper.
    """

    # What a state of `envs.snapshots.snapshots` holds of this wrapper.
    STATE: tuple[str, ...] = ("steps", "_borrowed", "_age", "_return")
    # Steps of this environment so far.
    steps = 0
    # Of the running episode: whether it began in a snapshot, and its steps and return from its beginning or there.
    _borrowed = False
    _age = 0
    _return = 0.0

    def __init__(
        self,
        env: gym.Env,
        snapshots: Snapshots,
        *,
        clusters: int = 6,
        until: int = 100_000,
        truncate: int = 100,
        probability: float = 1.0,
    ) -> None:
        super().__init__(env)
        refuse_unsupported(env)
        count = len(snapshots.states)
        if not 1 <= clusters <= count:
            raise ValueError(f"clusters={clusters} is out of range; {count} snapshots make 1 to {count} clusters")
        if until < 0:
            raise ValueError(f"until={until} is out of range; give 0 steps or more")
        if truncate < 1:
            raise ValueError(f"truncate={truncate} is out of range; give at least 1 step")
        if not 0 <= probability <= 1:
            raise ValueError(f"probability={probability} is out of range; give a number in [0, 1]")
        if any(isinstance(wrapper, Observer) for wrapper in layers(env)):
            raise ValueError("an Observer inside would show the state before the snapshot; put it around this")
        check_same(env, snapshots.states[0])
        self.until = until
        self.truncate = truncate
        self.probability = probability
        self._states = snapshots.states
        self._clusters = snapshots.clusters(clusters)
        self._start = time.perf_counter()

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> EnvReset:
        obs, info = self.env.reset(seed=seed, options=options)
        self._age = 0
        self._return = 0.0
        state = self._choose_state()
        self._borrowed = state is not None
        if state is None:
            return obs, info
        obs = set_state(self.env, state)
        # The episode's time begins there.
        for wrapper in layers(self.env, TimeLimit):
            wrapper._elapsed_steps = 0
        return obs, {}

    def _choose_state(self) -> State | None:
        """Where the episode begins; None for the environment's own start."""
        if self.steps >= self.until or self.np_random.random() >= self.probability:
            return None
        cluster = self.np_random.integers(len(self._clusters))
        members = self._clusters[cluster]
        member = self.np_random.integers(len(members))
        return self._states[members[member]]

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        self._age += 1
        self._return += float(reward)
        if self._borrowed:
            truncated = truncated or (self._age >= self.truncate and not terminated)
            if terminated or truncated:
                elapsed = round(time.perf_counter() - self._start, 6)
                info["episode"] = {"r": self._return, "l": self._age, "t": elapsed}
        return obs, reward, terminated, truncated, info

    def snapshot(self) -> StateDict:
        """Everything `restore` needs, ready for JSON; instead of the `Journal`'s, which knows only its own resets."""
        return {"state": to_json(get_state(self, rng=True))}

    def restore(self, state: StateDict) -> EnvReset:
        return set_state(self, from_json(state["state"])), {}


def kmeans(points: np.ndarray, k: int) -> np.ndarray:
    """Clusters of points (N, D), int64 (N,) in [0, k), fewer if fewer points differ: k-means++, Lloyd's rounds."""
    rng = np.random.default_rng(0)
    # k-means++: each further centre is a point, with a probability in proportion to its squared
    # distance to the nearest centre so far.
    centres = points[[rng.integers(len(points))]]
    distance = np.full(len(points), np.inf)
    while len(centres) < k:
        to_newest = np.square(points - centres[-1]).sum(axis=1)
        distance = np.minimum(distance, to_newest)
        if distance.sum() == 0:
            break
        chosen = rng.choice(len(points), p=distance / distance.sum())
        centres = np.concatenate([centres, points[[chosen]]])
    for _ in range(MAX_LLOYD_ROUNDS):
        # Squared distances without the point's own square, which is the same for every centre.
        distances = np.square(centres).sum(axis=1) - 2.0 * points @ centres.T
        labels = distances.argmin(axis=1)
        means = centres.copy()
        for label in range(len(centres)):
            members = points[labels == label]
            # A centre without points stays where it is.
            if len(members):
                means[label] = members.mean(axis=0)
        if (means == centres).all():
            break
        centres = means
    return labels
