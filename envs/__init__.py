"""Environments, ready for an agent and for a reward that reads frames, captions, signals or observations.

`envs.make` turns an id into ready environments. A folder is a family (ids, observations, captions, signals, goals), or
`vector`, `batched`, `snapshots`. Importing this package registers our ids and imports none of the simulators.
"""

from contextlib import suppress
from typing import Any

# "module:function" by which a text names a policy, see `envs.residual`; set where one can be loaded.
policy_loader = ""


def _register(name: str, entry_point: str, steps: int | None = None, **kwargs: Any) -> None:
    """Register an id that ends after so many steps; constructor arguments follow."""
    from gymnasium.envs.registration import register, registry

    identifier = f"lodestar/{name}-v0"
    if identifier not in registry:
        register(identifier, f"envs.{entry_point}", max_episode_steps=steps, kwargs=kwargs)


# Module -> the classes in it, also the names of their ids -> the steps after which an episode ends.
_WORLDS: dict[str, dict[str, int | None]] = {
    "classic.tasks": {
        "CartPoleUpright": 200,
        "MountainCarGoal": 200,
        "PendulumUpright": 200,
        "MountainCarSparse": 200,
        "PendulumSparse": 200,
        "PixelPendulum": 200,
        "CartPoleSwingUp": 500,
        "CartPoleSwingUpSparse": 500,
    },
    "exploration.family": {"NoisyRooms": 200, "DeepSea": None, "PointMaze": 50},
    "exploration.factored": {"ProcMaze": 100, "ButtonGrid": 100},
    "exploration.peg": {"Peg": 60},
    "crafter.family": {"Crafter": 10_000},
}

# runners.doctor reads lodestar.settings even where Gymnasium is missing.
with suppress(ModuleNotFoundError):
    for _module, _limits in _WORLDS.items():
        for _name, _limit in _limits.items():
            _register(_name, f"{_module}:{_name}", _limit)
    _register("NetHackScore", "nethack.tasks:Score", 5000)
    _register("NetHackOracle", "nethack.tasks:Oracle", 5000)
    _register("NetHackOracleSober", "nethack.tasks:Oracle", 5000, sober=True)
    _register("NetHackStaircase3", "nethack.tasks:Staircase", 5000, level=3)
    _register("NetHackStaircase4", "nethack.tasks:Staircase", 5000, level=4)
    for _kind in ("value", "observation", "discount", "policy", "joint", "arms"):
        _register(f"Probe{_kind.capitalize()}", "exploration.probe:Probe", kind=_kind)
