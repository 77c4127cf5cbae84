"""Environments, ready for an agent and for a reward that reads frames, captions, signals or observations.

`envs.make` turns an id into ready environments. A folder is a family (ids, observations, captions, signals, goals), or
`vector`, `batched`, `snapshots`. Importing this package registers our ids and imports none of the simulators.
"""

from contextlib import suppress
from typing import Any

policy_loader = ""  # "module:function" by which a text names a policy, see `envs.residual`; set where one can be loaded

# id -> entry point, steps until truncation, constructor arguments
_TASKS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "CartPoleUpright-v0": ("envs.classic.tasks:CartPoleUpright", 200, {}),
    "MountainCarGoal-v0": ("envs.classic.tasks:MountainCarGoal", 200, {}),
    "PendulumUpright-v0": ("envs.classic.tasks:PendulumUpright", 200, {}),
    "MountainCarSparse-v0": ("envs.classic.tasks:MountainCarSparse", 200, {}),
    "PendulumSparse-v0": ("envs.classic.tasks:PendulumSparse", 200, {}),
    "PixelPendulum-v0": ("envs.classic.tasks:PixelPendulum", 200, {}),
    "CartPoleSwingUp-v0": ("envs.classic.tasks:CartPoleSwingUp", 500, {}),
    "CartPoleSwingUpSparse-v0": ("envs.classic.tasks:CartPoleSwingUpSparse", 500, {}),
    "NoisyRooms-v0": ("envs.exploration.family:NoisyRooms", 200, {}),
    "ProcMaze-v0": ("envs.exploration.factored:ProcMaze", 100, {}),
    "ButtonGrid-v0": ("envs.exploration.factored:ButtonGrid", 100, {}),
    "DeepSea-v0": ("envs.exploration.family:DeepSea", None, {}),
    "PointMaze-v0": ("envs.exploration.family:PointMaze", 50, {}),
    "Peg-v0": ("envs.exploration.peg:Peg", 60, {}),
    "NetHackScore-v0": ("envs.nethack.tasks:Score", 5000, {}),
    "NetHackOracle-v0": ("envs.nethack.tasks:Oracle", 5000, {}),
    "NetHackOracleSober-v0": ("envs.nethack.tasks:Oracle", 5000, {"sober": True}),
    "NetHackStaircase3-v0": ("envs.nethack.tasks:Staircase", 5000, {"level": 3}),
    "NetHackStaircase4-v0": ("envs.nethack.tasks:Staircase", 5000, {"level": 4}),
    "Crafter-v0": ("envs.crafter.family:Crafter", 10_000, {}),
    **{
        f"Probe{kind.capitalize()}-v0": ("envs.exploration.probe:Probe", None, {"kind": kind})
        for kind in ("value", "observation", "discount", "policy", "joint", "arms")
    },
}

with suppress(ModuleNotFoundError):  # runners.doctor reads lodestar.settings even where everything is missing
    from gymnasium.envs.registration import register, registry

    for _name, (_point, _steps, _kwargs) in _TASKS.items():
        if f"lodestar/{_name}" not in registry:
            register(f"lodestar/{_name}", _point, max_episode_steps=_steps, kwargs=_kwargs)
