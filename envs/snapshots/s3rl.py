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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from envs.snapshots import snapshots as simulator
from envs.snapshots.snapshots import State, from_json, get_state, set_state, supported, to_json
from envs.types import EnvReset, EnvStep
from envs.wrappers import Observer
from lodestar.files import regular, replacing, save_arrays

LONGEST = 100_000  # steps of an episode that is recorded
MAX_STATES_BYTES = 100_000_000  # of the states of one file as JSON; a thousand of MiniGrid's or a humanoid's are 20 MB
ROUNDS = 100  # of Lloyd's algorithm at most


@dataclass
class Snapshots:
    """States of one environment, and what was observed in them."""

    states: list[State]
    observations: np.ndarray  # float32 (N, D), flattened
    _clusters: dict[int, list[np.ndarray]] = field(default_factory=dict, repr=False, compare=False)

    def clusters(self, k: int) -> list[np.ndarray]:
        """The numbers of the states in each of at most `k` clusters of observations; always the same ones."""
        if k not in self._clusters:
            points = self.observations - self.observations.mean(axis=0)
            spread = points.std(axis=0)
            labels = kmeans(points / np.where(spread > 0, spread, 1.0), k)
            self._clusters[k] = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        return self._clusters[k]

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
    supported(env)
    states, seen = [], []
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed if episode == 0 else None)
        age, ended = 0, False
        while not ended:
            if age % every == 0:
                states.append(get_state(env))
                seen.append(np.asarray(spaces.flatten(env.observation_space, obs), np.float32))
            obs, _, terminated, truncated, _ = env.step(policy(obs))
            ended = terminated or truncated
            age += 1
            if age >= LONGEST and not ended:
                raise ValueError(f"an episode has not ended after {LONGEST:,} steps; give max_episode_steps= to make")
    return Snapshots(states, np.stack(seen))


class SnapshotReset(gym.Wrapper):
    """Resets within the first `until` steps lead into snapshots, evenly over their clusters, with `probability`.

    Such an episode is truncated after `truncate` steps, and `info["episode"]` counts only its own. Everything is drawn
    from the environment's `np_random`. An `Observer` goes around this wrapper.
    """

    STATE: tuple[str, ...] = ("steps", "_borrowed", "_age", "_return")  # see `envs.snapshots.snapshots`

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
        supported(env)
        count = len(snapshots.states)
        if not 1 <= clusters <= count:
            raise ValueError(f"clusters={clusters} is out of range; {count} snapshots make 1 to {count} clusters")
        for name, value, fits, fix in (
            ("until", until, until >= 0, "0 steps or more"),
            ("truncate", truncate, truncate >= 1, "at least 1 step"),
            ("probability", probability, 0 <= probability <= 1, "a number in [0, 1]"),
        ):
            if not fits:
                raise ValueError(f"{name}={value} is out of range; give {fix}")
        if any(isinstance(wrapper, Observer) for wrapper in simulator.layers(env)):
            raise ValueError("an Observer inside would show the state before the snapshot; put it around this")
        simulator.check_same(env, snapshots.states[0])
        self.until, self.truncate, self.probability = until, truncate, probability
        self.steps = 0  # of this environment so far
        self._states, self._clusters = snapshots.states, snapshots.clusters(clusters)
        self._start = time.perf_counter()
        self._borrowed, self._age, self._return = False, 0, 0.0  # of the running episode: began in a snapshot, ...

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        obs, info = self.env.reset(seed=seed, options=options)
        self._age, self._return = 0, 0.0
        state = self._chosen_state()
        self._borrowed = state is not None
        if state is None:
            return obs, info
        obs = set_state(self.env, state)
        for wrapper in simulator.layers(self.env, TimeLimit):  # the episode's time begins there
            wrapper._elapsed_steps = 0
        return obs, {}

    def _chosen_state(self) -> State | None:
        """Where the episode begins; None for the environment's own start."""
        if self.steps >= self.until or self.np_random.random() >= self.probability:
            return None
        members = self._clusters[self.np_random.integers(len(self._clusters))]
        return self._states[members[self.np_random.integers(len(members))]]

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        if self._borrowed:
            self._age += 1
            self._return += float(reward)
            truncated = truncated or (self._age >= self.truncate and not terminated)
            if terminated or truncated:
                elapsed = round(time.perf_counter() - self._start, 6)
                info["episode"] = {"r": self._return, "l": self._age, "t": elapsed}
        return obs, reward, terminated, truncated, info

    def snapshot(self) -> dict[str, Any]:
        """Everything `restore` needs, ready for JSON; instead of the `Journal`'s, which knows only its own resets."""
        return {"state": to_json(get_state(self, rng=True))}

    def restore(self, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return set_state(self, from_json(state["state"])), {}


def kmeans(points: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """Clusters of points (N, D), int64 (N,) in [0, k), fewer if fewer points differ: k-means++, Lloyd's rounds."""
    rng = np.random.default_rng(seed)
    centres = points[[rng.integers(len(points))]]
    near = np.full(len(points), np.inf)  # squared distance to the nearest centre
    while len(centres) < k:
        near = np.minimum(near, np.square(points - centres[-1]).sum(axis=1))
        if near.sum() == 0:
            break
        centres = np.concatenate([centres, points[[rng.choice(len(points), p=near / near.sum())]]])
    for _ in range(ROUNDS):
        # Squared distances without the point's own square, which is the same for every centre.
        labels = (np.square(centres).sum(axis=1) - 2.0 * points @ centres.T).argmin(axis=1)
        members = [points[labels == label] for label in range(len(centres))]
        moved = np.stack([own.mean(axis=0) if len(own) else old for own, old in zip(members, centres)])
        if (moved == centres).all():
            break
        centres = moved
    return labels
