"""The state of Stable-Baselines3's models: arrays and numbers, no pickle, to continue exactly.

SB3's own zip leaves out what happened since the last reset and the replay buffer; two runs that part at a save then
differ.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from envs.state import restore, state_of

# What an algorithm may have beside modules and variables; absent ones are skipped.
_ATTRIBUTES = {
    "counters": (
        "num_timesteps",
        "_total_timesteps",
        "_n_updates",
        "_episode_num",
        "_n_calls",
        "exploration_rate",
        "_current_progress_remaining",
    ),
    "arrays": ("_last_obs", "_last_episode_starts", "_last_original_obs"),
}
_WINDOWS = ("ep_info_buffer", "ep_success_buffer")
_BUFFER_ARRAYS = ("observations", "next_observations", "actions", "dones", "timeouts", "ep_start", "ep_length")


def get_state(model: Any) -> dict[str, Any]:
    """Weights, optimisers, counters, the current observation, random generators, the replay buffer's filled part."""
    modules, variables = model._get_torch_save_params()
    state: dict[str, Any] = {}
    for group, names in {"modules": modules, "variables": variables, **_ATTRIBUTES}.items():
        values = {name: _attribute(model, name) for name in names}
        state[group] = {name: state_of(value) for name, value in values.items() if value is not None}
    state["windows"] = {name: list(getattr(model, name) or []) for name in _WINDOWS}
    state["action_rng"] = model.action_space.np_random.bit_generator.state
    if getattr(model, "_last_lstm_states", None) is not None:
        state["lstm"] = {"pi": list(model._last_lstm_states.pi), "vf": list(model._last_lstm_states.vf)}
    if getattr(model, "replay_buffer", None) is not None:
        state["replay"] = _buffer_state(model.replay_buffer)
    return state


def set_state(model: Any, state: dict[str, Any]) -> None:
    """Restore what `get_state` returned into a model built with the same configuration."""
    for group in ("modules", "variables", *_ATTRIBUTES):
        for name, value in state[group].items():
            restore(model, name, value)
    for name, value in state["windows"].items():
        setattr(model, name, deque(value, maxlen=model._stats_window_size))
    model.action_space.np_random.bit_generator.state = state["action_rng"]
    if "lstm" in state:
        states = model._last_lstm_states
        pi, vf = (tuple(torch.as_tensor(x, device=model.device) for x in state["lstm"][key]) for key in ("pi", "vf"))
        model._last_lstm_states = type(states)(pi, vf)
    if "replay" in state:
        _load_buffer(model.replay_buffer, state["replay"])


def _attribute(model: Any, name: str) -> Any:
    """None where there is none."""
    try:
        return operator.attrgetter(name)(model)
    except AttributeError:
        return None


def _buffer_arrays(buffer: Any) -> dict[str, Any]:
    """What is stored; the task's rewards also where reading `buffer.rewards` would score a learned reward."""
    arrays = {name: getattr(buffer, name) for name in _BUFFER_ARRAYS if hasattr(buffer, name)}
    return arrays | {"rewards": getattr(buffer, "task_rewards", buffer.rewards)}


def _buffer_state(buffer: Any) -> dict[str, Any]:
    filled = buffer.size()
    arrays = {
        name: {key: part[:filled] for key, part in value.items()} if isinstance(value, Mapping) else value[:filled]
        for name, value in _buffer_arrays(buffer).items()
    }
    state: dict[str, Any] = {"pos": buffer.pos, "full": buffer.full, "arrays": arrays}
    if hasattr(buffer, "_current_ep_start"):
        state["current_episode"] = buffer._current_ep_start
    if hasattr(buffer, "state_dict"):
        state["reward"] = buffer.state_dict()
    return state


def _load_buffer(buffer: Any, state: dict[str, Any]) -> None:
    buffer.pos, buffer.full = int(state["pos"]), bool(state["full"])
    arrays = _buffer_arrays(buffer)
    for name, value in state["arrays"].items():
        for key, part in value.items() if isinstance(value, Mapping) else [(None, value)]:
            target = arrays[name] if key is None else arrays[name][key]
            target[: len(part)] = part
    if "current_episode" in state:
        buffer._current_ep_start = np.array(state["current_episode"])
    if "reward" in state:
        buffer.load_state_dict(state["reward"])
