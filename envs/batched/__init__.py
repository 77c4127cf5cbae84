"""Environments as array programs: N of them step at once, on NumPy or torch arrays, as the originals would.

Observations, rewards, terminations, truncations and spaces are those of `envs.make.make` with the same id; the random
numbers differ, except for NetHack, whose games are the same. `envs.make.make_batched` makes them. Importing this
package imports neither torch nor a simulator.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    """Where the array program of an id is, and what it supports."""

    # "module:Class".
    path: str
    # The arguments of the environment's constructor that the program supports too.
    arguments: frozenset[str] = frozenset()
    # Which of `frame_size`, `text` and `signals` it takes.
    modalities: frozenset[str] = frozenset()
    # Whether MuJoCo moves it: then it takes `num_threads`, and its physics can be on a device, see `envs.batched.warp`.
    is_robot: bool = False


PROGRAMS: dict[str, Program] = {}


def _add(ids: str, path: str, arguments: str = "", modalities: str = "", is_robot: bool = False) -> None:
    """Say what the program of these ids supports; the texts hold words with spaces between them."""
    program = Program(f"envs.batched.{path}", frozenset(arguments.split()), frozenset(modalities.split()), is_robot)
    PROGRAMS.update(dict.fromkeys(ids.split(), program))


_CLASSIC = """
    CartPole-v0 CartPole-v1 MountainCar-v0 MountainCarContinuous-v0 Pendulum-v1 Acrobot-v1
    lodestar/CartPoleUpright-v0 lodestar/MountainCarGoal-v0 lodestar/PendulumUpright-v0 lodestar/MountainCarSparse-v0
    lodestar/PendulumSparse-v0 lodestar/CartPoleSwingUp-v0 lodestar/CartPoleSwingUpSparse-v0
"""
_GRIDS = {
    "Empty": "-5x5-v0 -6x6-v0 -8x8-v0 -16x16-v0 -Random-5x5-v0 -Random-6x6-v0",
    "DoorKey": "-5x5-v0 -6x6-v0 -8x8-v0 -16x16-v0",
    "FourRooms": "-v0",
    "KeyCorridor": "S3R1-v0 S3R2-v0 S3R3-v0 S4R3-v0 S5R3-v0 S6R3-v0",
    "LockedRoom": "-v0",
    "ObstructedMaze": """
        -1Dl-v0 -1Dlh-v0 -1Dlhb-v0 -2Dl-v0 -2Dlh-v0 -2Dlhb-v0 -2Dlhb-v1 -1Q-v0 -1Q-v1 -2Q-v0 -2Q-v1 -Full-v0 -Full-v1
    """,
}
_NETHACK = """
    NetHackScore-v0 lodestar/NetHackScore-v0 lodestar/NetHackOracle-v0 lodestar/NetHackOracleSober-v0
    lodestar/NetHackStaircase3-v0 lodestar/NetHackStaircase4-v0
"""
# Arguments of Gymnasium's robots: of all of them, of those that can fall, and of those that touch
# the ground.
_ROBOT = (
    "frame_skip forward_reward_weight ctrl_cost_weight reset_noise_scale exclude_current_positions_from_observation"
)
_HEALTH = "healthy_reward terminate_when_unhealthy healthy_z_range"
_CONTACTS = "contact_cost_weight include_cfrc_ext_in_observation"
_BODIES = "include_cinert_in_observation include_cvel_in_observation include_qfrc_actuator_in_observation"
_ROBOT_ARGUMENTS = {
    "HalfCheetah": _ROBOT,
    "Hopper": f"{_ROBOT} {_HEALTH} healthy_angle_range healthy_state_range",
    "Walker2d": f"{_ROBOT} {_HEALTH} healthy_angle_range",
    "Ant": f"{_ROBOT} {_HEALTH} {_CONTACTS} contact_force_range main_body",
    "Humanoid": f"{_ROBOT} {_HEALTH} {_CONTACTS} contact_cost_range {_BODIES}",
}

for _env_id in _CLASSIC.split():
    _name = _env_id.removeprefix("lodestar/").partition("-")[0]
    _arguments = "torques" if _name == "PendulumUpright" else ""
    _add(_env_id, f"classic:Batched{_name}", _arguments, "frame_size text")
for _name, _sizes in _GRIDS.items():
    for _size in _sizes.split():
        _add(f"MiniGrid-{_name}{_size}", "minigrid:BatchedMiniGrid", modalities="text")
for _size in ("N2-S4-v0", "N4-S5-v0", "N4-S5-v1", "N6-v0"):
    _add(f"MiniGrid-MultiRoom-{_size}", "minigrid:BatchedMiniGrid", "minNumRooms maxNumRooms maxRoomSize", "text")
_add("lodestar/NoisyRooms-v0", "exploration:BatchedNoisyRooms", "rooms noise bits code dense_size")
_add("lodestar/DeepSea-v0", "exploration:BatchedDeepSea", "size stochastic mapping_seed")
_add("lodestar/Peg-v0", "exploration:BatchedPeg", "eps")
for _name, _arguments in _ROBOT_ARGUMENTS.items():
    _add(f"{_name}-v5", f"mujoco:Batched{_name}", _arguments, is_robot=True)
_add("highway-v0 highway-fast-v0", "highway.env:BatchedHighway", "config", "frame_size signals")
_add(
    _NETHACK,
    "nethack:BatchedNetHack",
    "character fix_moon_phase options spawn_monsters penalty_step sober level",
    "text",
)
