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
    # Whether its constructor takes `num_threads`.
    threads: bool = False
    # "module:Class" of the program whose physics is on the device, too; "" where `path` is that
    # already.
    device: str = ""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


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
_ROOMS = Program("envs.batched.exploration:BatchedNoisyRooms", _names("rooms noise bits code dense_size"))
_SEA = Program("envs.batched.exploration:BatchedDeepSea", _names("size stochastic mapping_seed"))
_PEG = Program("envs.batched.exploration:BatchedPeg", _names("eps"))
_GRID = Program("envs.batched.minigrid:BatchedMiniGrid", modalities=_names("text"))
_CHAIN = Program(_GRID.path, _names("minNumRooms maxNumRooms maxRoomSize"), _GRID.modalities)
_ROAD = Program("envs.batched.highway.env:BatchedHighway", _names("config"), _names("frame_size signals"))
_GAME = Program(
    "envs.batched.nethack:BatchedNetHack",
    _names("character fix_moon_phase options spawn_monsters penalty_step sober level"),
    _names("text"),
)


def _classic_program(env_id: str) -> Program:
    name = env_id.removeprefix("lodestar/").partition("-")[0]
    arguments = _names("torques" if name == "PendulumUpright" else "")
    return Program(f"envs.batched.classic:Batched{name}", arguments, _names("frame_size text"))


def _robot(name: str) -> Program:
    return Program(
        f"envs.batched.mujoco:Batched{name}",
        _names(_ROBOT_ARGUMENTS[name]),
        threads=True,
        device=f"envs.batched.warp:Device{name}",
    )


PROGRAMS: dict[str, Program] = {env_id: _classic_program(env_id) for env_id in _CLASSIC.split()}
for _name, _sizes in _GRIDS.items():
    for _size in _sizes.split():
        PROGRAMS[f"MiniGrid-{_name}{_size}"] = _GRID
for _size in ("N2-S4-v0", "N4-S5-v0", "N4-S5-v1", "N6-v0"):
    PROGRAMS[f"MiniGrid-MultiRoom-{_size}"] = _CHAIN
PROGRAMS["lodestar/NoisyRooms-v0"] = _ROOMS
PROGRAMS["lodestar/DeepSea-v0"] = _SEA
PROGRAMS["lodestar/Peg-v0"] = _PEG
for _name in _ROBOT_ARGUMENTS:
    PROGRAMS[f"{_name}-v5"] = _robot(_name)
PROGRAMS["highway-v0"] = _ROAD
PROGRAMS["highway-fast-v0"] = _ROAD
for _env_id in _NETHACK.split():
    PROGRAMS[_env_id] = _GAME
