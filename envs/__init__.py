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


_CLASSIC = (
    "CartPoleUpright",
    "MountainCarGoal",
    "PendulumUpright",
    "MountainCarSparse",
    "PendulumSparse",
    "PixelPendulum",
)

# runners.doctor reads lodestar.settings even where Gymnasium is missing.
with suppress(ModuleNotFoundError):
    for _name in _CLASSIC:
        _register(_name, f"classic.tasks:{_name}", 200)
    _register("CartPoleSwingUp", "classic.tasks:CartPoleSwingUp", 500)
    _register("CartPoleSwingUpSparse", "classic.tasks:CartPoleSwingUpSparse", 500)
    _register("NoisyRooms", "exploration.family:NoisyRooms", 200)
    _register("ProcMaze", "exploration.factored:ProcMaze", 100)
    _register("ButtonGrid", "exploration.factored:ButtonGrid", 100)
    _register("DeepSea", "exploration.family:DeepSea")
    _register("PointMaze", "exploration.family:PointMaze", 50)
    _register("Peg", "exploration.peg:Peg", 60)
    _register("Crafter", "crafter.family:Crafter", 10_000)
    _register("NetHackScore", "nethack.tasks:Score", 5000)
    _register("NetHackOracle", "nethack.tasks:Oracle", 5000)
    _register("NetHackOracleSober", "nethack.tasks:Oracle", 5000, sober=True)
    _register("NetHackStaircase3", "nethack.tasks:Staircase", 5000, level=3)
    _register("NetHackStaircase4", "nethack.tasks:Staircase", 5000, level=4)
    for _kind in ("value", "observation", "discount", "policy", "joint", "arms"):
        _register(f"Probe{_kind.capitalize()}", "exploration.probe:Probe", kind=_kind)
