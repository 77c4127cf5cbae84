"""Snapshots: the state of a simulator as plain data, and a copy brought to exactly that state without replaying.

Supported: classic control, environments whose class has a `STATE`, MuJoCo (Gymnasium's robots) and MiniGrid, inside the
wrappers of `make`, `NoisyTV`, sticky actions and Gymnasium's wrappers without memory. After `set_state`, the same
actions lead to the same observations, rewards and ends, bit by bit; where the environment itself draws random numbers,
only if the snapshot was taken with `rng=True`. The constructor's arguments are not part of a state.

What a state is: the variables listed in `_STATE`, or in the class's own `STATE`; MuJoCo's integration state with the
solver's warm start, and what was computed on the way; every variable of a MiniGrid that no constructor takes.

Refused: BabyAI, whose instructions are programs with a memory; NetHack and highway-env, whose state is not accessible;
wrappers with unknown memory. After `set_state` the `Journal` takes no snapshot until the next reset.
"""

import base64
import functools
import inspect
import json
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, StickyAction, TimeLimit

from envs.classic.view import Canvas
from envs.family import simulator
from envs.minigrid.family import GridObservation
from envs.mujoco.family import OwnContext
from envs.observations import PlainObservation
from envs.render import name_of
from envs.types import StateDict
from envs.wrappers import EpisodeStatistics, Journal, NoisyTV, Observer, layers
from lodestar.mappings import map_values

State = dict[str, Any]

# Gymnasium's class -> the variables that make its state; ours have a STATE.
_STATE: dict[str, tuple[str, ...]] = {
    "CartPoleEnv": ("state", "steps_beyond_terminated"),
    "PendulumEnv": ("state", "last_u"),
    "MountainCarEnv": ("state",),
    "Continuous_MountainCarEnv": ("state",),
    "AcrobotEnv": ("state",),
}

# Wrapper -> what it remembers of the episode; others have a STATE.
_WRAPPERS: dict[type, tuple[str, ...]] = {
    TimeLimit: ("_elapsed_steps",),
    OrderEnforcing: ("_has_reset",),
    StickyAction: ("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"),
    NoisyTV: ("screen",),
    EpisodeStatistics: ("_return", "_length"),
    PassiveEnvChecker: (),
    PlainObservation: (),
    GridObservation: (),
    OwnContext: (),
    Canvas: (),
    Journal: (),
    Observer: (),
}

# Quantities of MjData that observations, rewards, captions and pictures read.
_DERIVED = """
    xpos xquat xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos site_xmat cam_xpos cam_xmat light_xpos
    light_xdir subtree_com cinert cvel cacc cfrc_int cfrc_ext qacc qfrc_actuator qfrc_constraint actuator_force
    ten_length ten_velocity sensordata
"""

# Variables of every MiniGrid that are state, and that are none; for the rest see `_variables`.
_MOVING = {"agent_pos", "agent_dir", "grid", "carrying", "mission", "step_count"}
_FIXED = {"_np_random", "_np_random_seed", "spec", "actions", "action_space", "observation_space", "reward_range"}
_FIXED |= {"render_size", "window", "clock"}


def refuse_unsupported(env: gym.Env) -> None:
    """Raise ValueError if the environment or one of its wrappers is not supported."""
    if _family(env.unwrapped) is None:
        raise ValueError(
            f"{name_of(env.unwrapped)} has no state that can be taken and given back exactly; supported are classic "
            "control, worlds of cells, MuJoCo and MiniGrid without BabyAI"
        )
    for wrapper in layers(env):
        _memory_names(wrapper)


def get_state(env: gym.Env, rng: bool = False) -> State:
    """The state an environment is in, as plain data; with `rng` that of its `np_random`, too."""
    refuse_unsupported(env)
    inner = simulator(env)
    things = Things()
    state: State = {"env": name_of(env.unwrapped), "wrappers": {}}
    for wrapper in layers(env):
        if isinstance(wrapper, OrderEnforcing) and not wrapper.has_reset:
            raise RuntimeError("there is no episode to take a snapshot of; call reset() first")
        memory = things.flatten_attributes(wrapper, _memory_names(wrapper))
        if memory:
            state["wrappers"].setdefault(type(wrapper).__name__, []).append(memory)
    state["variables"] = things.flatten_attributes(inner, _variables(inner))
    state["things"] = things.flat
    if _family(inner) == "mujoco":
        state["physics"] = _physics(inner)
    if rng:
        state["rng"] = inner.np_random.bit_generator.state
    return state


def set_state(env: gym.Env, state: State) -> Any:
    """Bring an environment, reset or not, to a state of its own; returns the observation there, as wrapped."""
    refuse_unsupported(env)
    check_same(env, state)
    inner = simulator(env)
    things = Things(state["things"])
    for name, value in state["variables"].items():
        setattr(inner, name, things.restore(value))
    if "physics" in state:
        _set_physics(inner, state["physics"])
    if "rng" in state:
        inner.np_random.bit_generator.state = state["rng"]
    # Wrappers of the same class come in the same order.
    memories = map_values(iter, state["wrappers"])
    for wrapper in layers(env):
        memory: StateDict = next(memories.get(type(wrapper).__name__, iter(())), {})
        for name, value in memory.items():
            setattr(wrapper, name, things.restore(value))
        if isinstance(wrapper, Journal):
            wrapper._origin = None
            wrapper._actions = []
        if isinstance(wrapper, Observer):
            wrapper._memory.clear()
    obs = _observe(inner)
    for wrapper in reversed(layers(env)):
        if hasattr(type(wrapper), "observation"):
            obs = wrapper.observation(obs)
    return obs


def check_same(env: gym.Env, state: State) -> None:
    """Raise ValueError for a state of another environment."""
    if state["env"] != name_of(env.unwrapped):
        raise ValueError(f"the snapshot is of {state['env']}, not of {name_of(env.unwrapped)}; make {state['env']}")


def to_json(value: Any) -> str:
    """States and lists of them as text; arrays as their bytes, so nothing is rounded."""
    return json.dumps(value, default=_pack, separators=(",", ":"))


def from_json(text: str) -> Any:
    """The inverse of `to_json`."""
    return json.loads(text, object_hook=_unpack)


def _pack(value: Any) -> StateDict:
    data = base64.b64encode(value.tobytes()).decode("ascii")
    return {"bytes": data, "dtype": value.dtype.str, "shape": list(value.shape)}


def _unpack(value: StateDict) -> Any:
    if "bytes" not in value:
        return value
    raw = np.frombuffer(base64.b64decode(value["bytes"]), np.dtype(value["dtype"]))
    return raw.reshape(value["shape"]).copy()


def _family(inner: Any) -> str | None:
    module = type(inner).__module__
    if _state(inner):
        return "simple"
    if module.startswith("minigrid.") and not module.startswith("minigrid.envs.babyai."):
        return "minigrid"
    if module.startswith("gymnasium.envs.mujoco."):
        return "mujoco"
    return None


def _state(inner: Any) -> tuple[str, ...]:
    """The variables of a simple environment; empty for another one."""
    kind = type(inner)
    if hasattr(inner, "STATE"):
        return inner.STATE
    if not kind.__module__.startswith(("gymnasium.envs.classic", "envs.classic.")):
        return ()
    for base in kind.__mro__:
        if base.__name__ in _STATE:
            return _STATE[base.__name__]
    return ()


def _memory_names(wrapper: gym.Wrapper) -> tuple[str, ...]:
    """The variables in which a wrapper remembers the episode; a ValueError if they are unknown."""
    kind = type(wrapper)
    if hasattr(kind, "STATE"):
        return kind.STATE
    if kind in _WRAPPERS:
        return _WRAPPERS[kind]
    # Gymnasium's wrappers that transform observations, actions or rewards have no memory.
    if kind.__module__.startswith("gymnasium.wrappers.transform_"):
        return ()
    raise ValueError(f"what the wrapper {kind.__name__} remembers is unknown; take snapshots of what it wraps")


def _variables(inner: Any) -> tuple[str, ...]:
    """The variables of an environment that make its state."""
    if _family(inner) != "minigrid":
        return _state(inner)
    kind: Any = type(inner)
    # What moves is no argument, though FourRooms takes the agent's first place under the name of
    # its place.
    fixed = (_FIXED | _arguments(kind)) - _MOVING
    return tuple(name for name in vars(inner) if name not in fixed)


@functools.cache
def _arguments(kind: Any) -> frozenset[str]:
    """What constructors of a class take; MiniGrid keeps them under the same names."""
    names: set[str] = set()
    # The last base is `object`.
    for base in kind.mro()[:-1]:
        names.update(inspect.signature(base.__init__).parameters)
    return frozenset(names)


def _observe(inner: Any) -> Any:
    """The observation, by whichever method the environment makes it."""
    for name in ("_obs", "_get_obs", "_get_ob", "gen_obs"):
        if hasattr(inner, name):
            return getattr(inner, name)()
    return np.array(inner.state, dtype=np.float32)


def _physics(inner: Any) -> dict[str, np.ndarray]:
    import mujoco

    kind = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    integration = np.empty(mujoco.mj_stateSize(inner.model, kind))
    mujoco.mj_getState(inner.model, inner.data, integration, kind)
    physics = {"integration": integration}
    for name in _DERIVED.split():
        value = getattr(inner.data, name)
        if value.size:
            physics[name] = np.array(value)
    return physics


def _set_physics(inner: Any, physics: dict[str, np.ndarray]) -> None:
    import mujoco

    kind = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_setState(inner.model, inner.data, physics["integration"], kind)
    mujoco.mj_forward(inner.model, inner.data)
    # Before MuJoCo 3.3.6 computing moved the warm start, so the state is set again after it.
    mujoco.mj_setState(inner.model, inner.data, physics["integration"], kind)
    for name, value in physics.items():
        if name != "integration":
            getattr(inner.data, name)[...] = value


class Things:
    """Values with MiniGrid's objects, each once, to plain data and back.

    NumPy scalars become arrays; a tuple, dict or object becomes a dict with the one key "tuple", "dict" or "thing".
    """

    def __init__(self, flat: list[Any] | None = None) -> None:
        # Number of a thing -> {"class", "variables"}.
        self.flat: list[Any] = [] if flat is None else flat
        # `id` of a thing -> its number.
        self._numbers: dict[int, int] = {}
        # Number -> thing.
        self._restored: dict[int, Any] = {}

    def flatten_attributes(self, owner: Any, names: tuple[str, ...]) -> StateDict:
        return {name: self.flatten(getattr(owner, name)) for name in names}

    def flatten(self, value: Any) -> Any:
        """Plain data, independent of `value`; a ValueError if there is something in it whose state is unknown."""
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
            return np.array(value)
        if kind is list:
            return list(map(self.flatten, value))
        if kind is tuple:
            return {"tuple": list(map(self.flatten, value))}
        if kind is dict:
            # Pairs, because keys need not be texts.
            return {"dict": [list(map(self.flatten, pair)) for pair in value.items()]}
        name = kind.__name__
        if _classes().get(name) is not kind:
            raise ValueError(f"the state holds a {name}, neither plain data nor a thing of MiniGrid's; drop it first")
        number = self._numbers.setdefault(id(value), len(self.flat))
        if number == len(self.flat):
            # It has its number before its variables are flattened, because they may lead back to
            # it.
            entry: StateDict = {"class": name}
            self.flat.append(entry)
            entry["variables"] = self.flatten_attributes(value, tuple(vars(value)))
        return {"thing": number}

    def restore(self, flat: Any) -> Any:
        if isinstance(flat, np.ndarray):
            return flat.copy() if flat.ndim else flat[()]
        if isinstance(flat, list):
            return list(map(self.restore, flat))
        if not isinstance(flat, dict):
            return flat
        if "tuple" in flat:
            return tuple(map(self.restore, flat["tuple"]))
        if "dict" in flat:
            return dict(map(self.restore, flat["dict"]))
        number = flat["thing"]
        if number not in self._restored:
            entry = self.flat[number]
            kind: Any = _classes()[entry["class"]]
            thing = kind.__new__(kind)
            self._restored[number] = thing
            for name, value in entry["variables"].items():
                setattr(thing, name, self.restore(value))
        return self._restored[number]


@functools.cache
def _classes() -> dict[str, type]:
    """The objects of a MiniGrid; names in a file lead to these classes and no others."""
    try:
        from minigrid.core import world_object
        from minigrid.core.grid import Grid
        from minigrid.core.roomgrid import Room
        from minigrid.envs.lockedroom import LockedRoom
        from minigrid.envs.multiroom import MultiRoom
    except ImportError:
        return {}
    classes: list[type] = [Grid, Room, LockedRoom, MultiRoom]
    for kind in vars(world_object).values():
        if inspect.isclass(kind) and issubclass(kind, world_object.WorldObj):
            classes.append(kind)
    return {kind.__name__: kind for kind in classes}
