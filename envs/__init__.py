"""What the world is: environments, ready for an agent and for a reward that looks, reads or counts.

    types.py         Transitions, the one batch type; axis letters; the Scorer and Agent protocols
    transitions.py   builders of Transitions from Gymnasium and Stable-Baselines3 steps
    make.py          make(), make_vec(): an id -> a ready environment; goals(), families()
    wrappers.py      episode statistics, the journal behind exact resume, frames and captions in info
    render.py        frame(): one guarded path to an image
    family.py        what each of the next files declares
    classic.py mujoco.py minigrid.py nethack.py driving.py
                     one file per family: ids, observation handling, captions, goals
    probe.py         five tiny worlds that isolate one part of an agent each

Importing this package registers our ids in Gymnasium and imports none of the simulators.
"""

from __future__ import annotations

from gymnasium.envs.registration import register, registry


def _register(name: str, entry_point: str, max_episode_steps: int | None) -> None:
    if f"lodestar/{name}" not in registry:
        register(f"lodestar/{name}", entry_point, max_episode_steps=max_episode_steps)


_register("CartPoleUpright-v0", "envs.classic:CartPoleUpright", 200)
_register("MountainCarGoal-v0", "envs.classic:MountainCarGoal", 200)
_register("PendulumUpright-v0", "envs.classic:PendulumUpright", 200)
