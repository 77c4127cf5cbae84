"""Environments as array programs: N of them step at once, on NumPy or torch arrays, and answer as the originals do.

    env = envs.batched.make("MiniGrid-DoorKey-8x8-v0", 64)
    obs, infos = env.reset()
    obs, rewards, terminations, truncations, infos = env.step(env.action_space.sample())

    base.py        BatchedEnv: seeds, time limits, returns, SAME_STEP resets, snapshots; the same for all families
    arrays.py      the few words that NumPy and torch spell differently
    classic.py     CartPole, MountainCar, Pendulum, Acrobot, with the pictures of classic_view.py
    minigrid.py    MiniGrid's rules and its view, as tables, with the words of minigrid_captions.py
    levels.py      MiniGrid's level generators, as array programs
    exploration.py worlds of cells, with their noise
    highway.py     highway-env's straight road, with the cars of highway_traffic.py and the pictures of highway_view.py
    nethack.py     NetHack's games, written into shared arrays

Observations, rewards, ends of episodes and spaces are those of `envs.make.make` with the same id; the random numbers
are others, but for NetHack, whose games are the same. Classic control and the highway have frames, the highway has
signals too, and classic control, MiniGrid and NetHack have captions. Importing this package imports neither torch nor
a simulator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.batched.base import BatchedEnv

_CLASSIC = {
    "CartPole-v0": "CartPole",
    "CartPole-v1": "CartPole",
    "lodestar/CartPoleUpright-v0": "CartPoleUpright",
    "MountainCar-v0": "MountainCar",
    "MountainCarContinuous-v0": "MountainCarContinuous",
    "Pendulum-v1": "Pendulum",
    "Acrobot-v1": "Acrobot",
    "lodestar/MountainCarGoal-v0": "MountainCarGoal",
    "lodestar/PendulumUpright-v0": "PendulumUpright",
    "lodestar/MountainCarSparse-v0": "MountainCarSparse",
    "lodestar/PendulumSparse-v0": "PendulumSparse",
    "lodestar/CartPoleSwingUp-v0": "CartPoleSwingUp",
    "lodestar/CartPoleSwingUpSparse-v0": "CartPoleSwingUpSparse",
}
_GRIDS = {
    "Empty": ("-5x5-v0", "-6x6-v0", "-8x8-v0", "-16x16-v0", "-Random-5x5-v0", "-Random-6x6-v0"),
    "DoorKey": ("-5x5-v0", "-6x6-v0", "-8x8-v0", "-16x16-v0"),
    "FourRooms": ("-v0",),
    "KeyCorridor": ("S3R1-v0", "S3R2-v0", "S3R3-v0", "S4R3-v0", "S5R3-v0", "S6R3-v0"),
    "MultiRoom": ("-N2-S4-v0", "-N4-S5-v0", "-N4-S5-v1", "-N6-v0"),
}
_CELLS = {  # id -> class, and the arguments of its original that it heeds
    "lodestar/NoisyRooms-v0": ("NoisyRooms", frozenset({"rooms", "noise", "bits", "code", "dense_size"})),
    "lodestar/DeepSea-v0": ("DeepSea", frozenset({"size", "stochastic", "mapping_seed"})),
}
_GAMES = (
    "NetHackScore-v0",
    "lodestar/NetHackScore-v0",
    "lodestar/NetHackOracle-v0",
    "lodestar/NetHackOracleSober-v0",
    "lodestar/NetHackStaircase3-v0",
    "lodestar/NetHackStaircase4-v0",
)
_OF_A_GAME = frozenset({"character", "fix_moon_phase", "options", "spawn_monsters", "penalty_step", "sober", "level"})
_ROADS = ("highway-v0", "highway-fast-v0")
_TABLE = {  # id -> module:Class
    **{env_id: f"envs.batched.classic.env:{name}" for env_id, name in _CLASSIC.items()},
    **{
        f"MiniGrid-{name}{size}": "envs.batched.minigrid.env:MiniGrid"
        for name, sizes in _GRIDS.items()
        for size in sizes
    },
    **{env_id: f"envs.batched.exploration:{name}" for env_id, (name, _) in _CELLS.items()},
    **{env_id: "envs.batched.highway.env:Highway" for env_id in _ROADS},
    **{env_id: "envs.batched.nethack:NetHack" for env_id in _GAMES},
}
IDS = tuple(_TABLE)


def knows(env_id: str) -> bool:
    """Whether `make` can make `env_id`."""
    return env_id in _TABLE


def arguments(env_id: str) -> frozenset[str]:
    """The arguments of the environment itself that its array program heeds too."""
    if env_id in _ROADS:
        return frozenset({"config"})
    if env_id in _GAMES:
        return _OF_A_GAME
    if env_id == "lodestar/PendulumUpright-v0":
        return frozenset({"torques"})
    return _CELLS[env_id][1] if env_id in _CELLS else frozenset()


def shows(env_id: str) -> frozenset[str]:
    """The arguments by which its array program is asked to be seen: some of `frame_size`, `text` and `signals`."""
    if env_id in _ROADS:
        return frozenset({"frame_size", "signals"})
    if env_id.startswith("MiniGrid") or env_id in _GAMES:
        return frozenset({"text"})
    return frozenset({"frame_size", "text"}) if env_id in _CLASSIC else frozenset()


def make(
    env_id: str,
    n: int,
    *,
    seed: int = 0,
    max_episode_steps: int | None = None,
    array: str = "numpy",
    device: str = "cpu",
    **options: Any,
) -> BatchedEnv:
    """Make `n` environments that step as one array program.

    Args:
        env_id: one of `IDS`.
        n: how many, at least 1.
        seed: the first reset without a seed of its own acts as `reset(seed=seed)`.
        max_episode_steps: steps after which an episode is truncated; None for the environment's own limit.
        array: "numpy", or "torch" for tensors on `device`.
        device: where the tensors live, such as "cpu" or "cuda".
        **options: those of the family's adapter, such as MiniGrid's `mission`, `arguments(env_id)`, and as in
            `envs.make.make` those of `shows(env_id)`; no others.

    Raises:
        ValueError: if the id, an option, `n` or the device is none that there is.
    """
    from envs.batched.arrays import Arrays
    from envs.family import family_of
    from envs.make import make as make_one
    from envs.make import spec_of

    if not knows(env_id):
        raise ValueError(f"no array program knows {env_id!r}; use envs.make.make_vec, or one of {', '.join(IDS)}")
    if n < 1:
        raise ValueError(f"n={n} environments make no vector; give at least 1")
    seen = {name: options.pop(name) for name in sorted(shows(env_id) & set(options))}
    unheard = {"frame_size", "text", "signals", "render_mode", "adapt", "sticky", "noisy_tv"}
    for name in sorted(set(options) & unheard):
        raise ValueError(f"{name}={options[name]!r} needs envs.make.make_vec; array programs only step")
    heeded = arguments(env_id) | family_of(spec_of(env_id)).options
    for name in sorted(set(options) - heeded):
        known = ", ".join(sorted(heeded)) or "none"
        raise ValueError(
            f"{name}={options[name]!r} is not heeded by the array program of {env_id} (of its options it heeds "
            f'{known}); leave it out, or use envs.make.make_vec with backend="gym"'
        )
    arrays = Arrays(array, device)
    original = make_one(env_id, max_episode_steps=max_episode_steps, **options)
    module, _, name = _TABLE[env_id].partition(":")
    try:
        return getattr(importlib.import_module(module), name)(original, n, seed, arrays, **seen)
    finally:
        original.close()
