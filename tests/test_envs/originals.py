"""Array programs brought to the states of originals, to compare the two step by step."""

import mujoco
import numpy as np
from minigrid.core.constants import COLOR_TO_IDX

from envs.batched.classic import BatchedClassic
from envs.batched.exploration import BatchedCells, BatchedPeg
from envs.batched.highway.env import DELTAS, BatchedHighway
from envs.batched.minigrid import BOX_WITH_KEY, code, missions
from envs.batched.mujoco import BatchedRobot


def load(env, originals):
    """Take over the states of N environments from `envs.make.make` that were just reset; returns observations."""
    env.reset()
    states, zeros = [read(env, original) for original in originals], np.zeros(len(originals))
    snapshot = {**env.snapshot(), "steps": zeros, "returns": zeros}
    snapshot["state"] = {key: np.stack([state[key] for state in states]) for key in states[0]}
    snapshot.pop("text", None)
    return env.restore(snapshot)


def read(env, original):
    """The entries of `env.state` for one of the originals."""
    inner = original.unwrapped
    if isinstance(env, BatchedClassic):
        return {"x": np.asarray(inner.state, env.DTYPE)}
    if isinstance(env, BatchedCells | BatchedPeg):
        return {name: getattr(inner, name) for name in env.state}
    if isinstance(env, BatchedRobot):
        return robot(inner, env.DERIVED)
    return traffic(inner) if isinstance(env, BatchedHighway) else level(env, original)


def robot(inner, derived):
    states = mujoco.mjtState
    kind = states.mjSTATE_FULLPHYSICS | states.mjSTATE_WARMSTART | states.mjSTATE_CTRL
    physics = np.empty(mujoco.mj_stateSize(inner.model, kind))
    mujoco.mj_getState(inner.model, inner.data, physics, kind)
    if not derived:
        return {"physics": physics}
    return {"physics": physics, "derived": np.concatenate([getattr(inner.data, name).ravel() for name in derived])}


def level(env, original):
    inner, speech = original.unwrapped, original.get_wrapper_attr("speech")
    mission = missions(inner).index(inner.mission)
    place = {"x": inner.agent_pos[0], "y": inner.agent_pos[1], "direction": inner.agent_dir, "mission": mission}
    state = env._state({"grid": codes_of(inner.grid)[None], **{key: np.array([x]) for key, x in place.items()}})
    return {key: value[0] for key, value in state.items()} | ({"salt": speech.salt} if speech.chatter else {})


def codes_of(grid):
    """The codes of a MiniGrid's cells, uint8 (H, W)."""
    codes = code(*grid.encode().astype(np.int64).transpose(2, 1, 0)).astype(np.uint8)
    for place, thing in enumerate(grid.grid):
        if thing is not None and thing.contains is not None:
            codes.flat[place] = BOX_WITH_KEY[COLOR_TO_IDX[thing.contains.color]]
    return codes


def traffic(inner):
    cars = inner.road.vehicles
    pushed = [car.impact is not None for car in cars]
    numbers = ("heading", "speed", "target_speed")
    return {
        **{key: np.array([car.position[i] for car in cars]) for i, key in enumerate("xy")},
        **{key: np.array([getattr(car, key) for car in cars], float) for key in numbers},
        "timer": np.array([getattr(car, "timer", 0.0) for car in cars], float),
        "delta": np.array([getattr(car, "DELTA", DELTAS[0]) for car in cars], float),
        "lane": np.array([car.lane_index[2] for car in cars], np.int64),
        "target": np.array([car.target_lane_index[2] for car in cars], np.int64),
        "crashed": np.array([car.crashed for car in cars], bool),
        "hit": np.array(pushed),
        "impact": np.array([car.impact if there else (0.0, 0.0) for car, there in zip(cars, pushed)]),
    }
