"""Environments as array programs: N of them step at once, on NumPy or torch arrays, as the originals would.

Observations, rewards, terminations, truncations and spaces are those of `envs.make.make` with the same id; the random
numbers differ, except for NetHack, whose games are the same. `envs.make.make_batched` makes them. Importing this
package imports neither torch nor a simulator.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    """Where the array program of an id is, and what it supports."""

    path: str  # module:Class
    arguments: frozenset[str] = frozenset()  # those of the environment's constructor that the program supports too
    modalities: frozenset[str] = frozenset()  # which of `frame_size`, `text` and `signals` it takes
    threads: bool = False  # whether its constructor takes `num_threads`
    device: str = ""  # module:Class of the one whose physics is on the device, too; "" where `path` is


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLASSIC = (
    *("CartPole-v0", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"),
    *(f"lodestar/{task}-v0" for task in ("CartPoleUpright", "MountainCarGoal", "PendulumUpright", "MountainCarSparse")),
    *(f"lodestar/{task}-v0" for task in ("PendulumSparse", "CartPoleSwingUp", "CartPoleSwingUpSparse")),
)
_GRIDS = {
    "Empty": "-5x5-v0 -6x6-v0 -8x8-v0 -16x16-v0 -Random-5x5-v0 -Random-6x6-v0",
    "DoorKey": "-5x5-v0 -6x6-v0 -8x8-v0 -16x16-v0",
    "FourRooms": "-v0",
    "KeyCorridor": "S3R1-v0 S3R2-v0 S3R3-v0 S4R3-v0 S5R3-v0 S6R3-v0",
    "MultiRoom": "-N2-S4-v0 -N4-S5-v0 -N4-S5-v1 -N6-v0",
}
_NETHACK = ("NetHackScore-v0", *(f"lodestar/NetHack{name}-v0" for name in ("Score", "Oracle", "OracleSober")))
_HIDING = "exclude_current_positions_from_observation"
_HEALTH = "healthy_reward terminate_when_unhealthy healthy_z_range"
_CONTACTS = "contact_cost_weight include_cfrc_ext_in_observation"
_BODIES = " ".join(f"include_{part}_in_observation" for part in ("cinert", "cvel", "qfrc_actuator"))
_ROBOTS = {
    robot: Program(
        f"envs.batched.mujoco:Batched{robot}",
        _names(f"frame_skip forward_reward_weight ctrl_cost_weight reset_noise_scale {_HIDING} {own}"),
        threads=True,
        device=f"envs.batched.warp:Device{robot}",
    )
    for robot, own in {
        "HalfCheetah": "",
        "Hopper": f"{_HEALTH} healthy_angle_range healthy_state_range",
        "Walker2d": f"{_HEALTH} healthy_angle_range",
        "Ant": f"{_HEALTH} {_CONTACTS} contact_force_range main_body",
        "Humanoid": f"{_HEALTH} {_CONTACTS} contact_cost_range {_BODIES}",
    }.items()
}
_ROOMS = Program("envs.batched.exploration:BatchedNoisyRooms", _names("rooms noise bits code dense_size"))
_SEA = Program("envs.batched.exploration:BatchedDeepSea", _names("size stochastic mapping_seed"))
_PEG = Program("envs.batched.exploration:BatchedPeg", _names("eps"))
_GRID = Program("envs.batched.minigrid:BatchedMiniGrid", modalities=_names("text"))
_ROAD = Program("envs.batched.highway.env:BatchedHighway", _names("config"), _names("frame_size signals"))
_GAME = Program(
    "envs.batched.nethack:BatchedNetHack",
    _names("character fix_moon_phase options spawn_monsters penalty_step sober level"),
    _names("text"),
)


def _classic(env_id: str) -> Program:
    name = env_id.removeprefix("lodestar/").partition("-")[0]
    arguments = _names("torques" if name == "PendulumUpright" else "")
    return Program(f"envs.batched.classic:Batched{name}", arguments, _names("frame_size text"))


PROGRAMS: dict[str, Program] = {
    **{env_id: _classic(env_id) for env_id in _CLASSIC},
    **{f"MiniGrid-{name}{size}": _GRID for name, sizes in _GRIDS.items() for size in sizes.split()},
    "lodestar/NoisyRooms-v0": _ROOMS,
    "lodestar/DeepSea-v0": _SEA,
    "lodestar/Peg-v0": _PEG,
    **{f"{robot}-v5": program for robot, program in _ROBOTS.items()},
    **dict.fromkeys(("highway-v0", "highway-fast-v0"), _ROAD),
    **dict.fromkeys((*_NETHACK, "lodestar/NetHackStaircase3-v0", "lodestar/NetHackStaircase4-v0"), _GAME),
}
