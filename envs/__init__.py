"""What the world is: environments, ready for an agent and for a reward that looks, reads or counts.

    types.py         Transitions, the one batch type; axis letters; the Scorer and Agent protocols
    transitions.py   builders of Transitions from Gymnasium and Stable-Baselines3 steps
    make.py          make(), make_vec(): an id -> a ready environment; goals(), families()
    batched/         classic control and grids as array programs: all environments in one step, NumPy or torch
    rollout.py       T steps of N environments, written in place, and the Transitions they make
    vector.py        environments side by side in this process
    slots.py         the arrays they share, and the loop that steps them
    workers.py       the same in worker processes
    watchdog.py      processes that die or hang, noticed, named and replaced
    wrappers.py      episode statistics, the journal behind exact resume, frames and captions in info
    render.py        frame(): one guarded path to an image
    family.py        what each of the next files declares
    classic.py mujoco.py minigrid.py nethack.py driving.py
                     one file per family: ids, observation handling, captions, goals
    nethack_view.py nethack_tasks.py
                     what an agent sees of NetHack; our tasks in it, and the rules of the game
    pixels.py        classic control too: a pendulum that is only seen, with clouds behind it
    swingup.py       classic control too: a pole on a cart that starts hanging
    terminations.py  when episodes end, as functions of observations
    vehicle.py       the signals that all driving environments share
    driving_sense.py driving_metrics.py driving_states.py
                     how they are read from highway-env and CarRacing; how well a policy drives; states to look at
    carla.py         a family too: driving environments of others, with a camera and a car
    exploration.py   a family too: worlds that tell methods of exploration apart, rooms with noise and a deep dive
    factored.py      a family too: worlds of independent parts that tell whether a model of the world helps
    crafter.py       a family too: survival in a small open world, with 22 achievements
    disturb.py       sticky actions and a noisy television, for any environment
    snapshots.py     the state of a simulator as plain data, and back
    s3rl.py          S3RL: first episodes that begin in states of a teacher
    words.py         hashed_words(): a sentence as a vector, for observations with text
    options.py       what may be set of an environment, read from signatures
    probe.py         five tiny worlds that isolate one part of an agent each

Importing this package registers our ids in Gymnasium and imports none of the simulators.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

# id -> entry point, steps until truncation, constructor arguments
_TASKS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "CartPoleUpright-v0": ("envs.classic.tasks:CartPoleUpright", 200, {}),
    "MountainCarGoal-v0": ("envs.classic.tasks:MountainCarGoal", 200, {}),
    "PendulumUpright-v0": ("envs.classic.tasks:PendulumUpright", 200, {}),
    "MountainCarSparse-v0": ("envs.classic.tasks:MountainCarSparse", 200, {}),
    "PendulumSparse-v0": ("envs.classic.tasks:PendulumSparse", 200, {}),
    "PixelPendulum-v0": ("envs.classic.pixels:PixelPendulum", 200, {}),
    "CartPoleSwingUp-v0": ("envs.classic.tasks:CartPoleSwingUp", 500, {}),
    "CartPoleSwingUpSparse-v0": ("envs.classic.tasks:CartPoleSwingUpSparse", 500, {}),
    "NoisyRooms-v0": ("envs.exploration.family:NoisyRooms", 200, {}),
    "ProcMaze-v0": ("envs.exploration.factored:ProcMaze", 100, {}),
    "ButtonGrid-v0": ("envs.exploration.factored:ButtonGrid", 100, {}),
    "Carla-v0": ("envs.driving.carla:Carla", None, {}),
    "DeepSea-v0": ("envs.exploration.family:DeepSea", None, {}),
    "NetHackScore-v0": ("envs.nethack.tasks:Score", 5000, {}),
    "NetHackOracle-v0": ("envs.nethack.tasks:Oracle", 5000, {}),
    "NetHackOracleSober-v0": ("envs.nethack.tasks:Oracle", 5000, {"sober": True}),
    "NetHackStaircase3-v0": ("envs.nethack.tasks:Staircase", 5000, {"level": 3}),
    "NetHackStaircase4-v0": ("envs.nethack.tasks:Staircase", 5000, {"level": 4}),
    "Crafter-v0": ("envs.crafter.family:Crafter", 10_000, {}),
    "ProbeValue-v0": ("envs.exploration.probe:Probe", None, {"kind": "value"}),
    "ProbeObservation-v0": ("envs.exploration.probe:Probe", None, {"kind": "observation"}),
    "ProbeDiscount-v0": ("envs.exploration.probe:Probe", None, {"kind": "discount"}),
    "ProbePolicy-v0": ("envs.exploration.probe:Probe", None, {"kind": "policy"}),
    "ProbeJoint-v0": ("envs.exploration.probe:Probe", None, {"kind": "joint"}),
}

with suppress(ModuleNotFoundError):  # runners.doctor reads envs.settings even where everything is missing
    from gymnasium.envs.registration import register, registry

    for _name, (_point, _steps, _kwargs) in _TASKS.items():
        if f"lodestar/{_name}" not in registry:
            register(f"lodestar/{_name}", _point, max_episode_steps=_steps, kwargs=_kwargs)
