"""The state of Stable-Baselines3's models: arrays and numbers, no pickle, to continue exactly.

SB3's own zip leaves out what happened since the last reset and the replay buffer; two runs that part at a save then
differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

# Counters and observations that an algorithm may have; absent ones are skipped.
_COUNTERS = (
    "num_timesteps",
    "_total_timesteps",
    "_n_updates",
    "_episode_num",
    "_n_calls",
    "exploration_rate",
    "_current_progress_remaining",
)
_ARRAYS = ("_last_obs", "_last_episode_starts", "_last_original_obs")
_WINDOWS = ("ep_info_buffer", "ep_success_buffer")


def get_state(model: Any) -> dict[str, Any]:
    """Weights, optimisers, counters, the current observation, random generators, the replay buffer's filled part.

    Our own agents give theirs themselves.
    """
    if hasattr(model, "get_state"):
        return model.get_state()
    modules, variables = model._get_torch_save_params()
    state: dict[str, Any] = {
        "modules": {name: _attribute(model, name).state_dict() for name in modules},
        "variables": {name: _attribute(model, name).detach().clone() for name in variables if _has(model, name)},
        "counters": {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)},
        "arrays": {name: getattr(model, name) for name in _ARRAYS if getattr(model, name, None) is not None},
        "windows": {name: list(getattr(model, name) or []) for name in _WINDOWS},
        "action_rng": model.action_space.np_random.bit_generator.state,
    }
    if getattr(model, "_last_lstm_states", None) is not None:
        state["lstm"] = {"pi": list(model._last_lstm_states.pi), "vf": list(model._last_lstm_states.vf)}
    if getattr(model, "replay_buffer", None) is not None:
        state["replay"] = _buffer_state(model.replay_buffer)
    return state


def set_state(model: Any, state: dict[str, Any]) -> None:
    """Restore what `get_state` returned into a model built with the same configuration."""
    if hasattr(model, "set_state"):
        model.set_state(state)
        return
    for name, value in state["modules"].items():
        _attribute(model, name).load_state_dict(value)
    for name, value in state["variables"].items():
        with torch.no_grad():
            _attribute(model, name).copy_(torch.as_tensor(value))
    for name, value in state["counters"].items():
        setattr(model, name, value)
    for name, value in state["arrays"].items():
        setattr(model, name, value)
    for name, value in state["windows"].items():
        setattr(model, name, deque(value, maxlen=model._stats_window_size))
    model.action_space.np_random.bit_generator.state = state["action_rng"]
    if "lstm" in state:
        states = model._last_lstm_states
        pi, vf = (tuple(torch.as_tensor(x, device=model.device) for x in state["lstm"][key]) for key in ("pi", "vf"))
        model._last_lstm_states = type(states)(pi, vf)
    if "replay" in state:
        _load_buffer(model.replay_buffer, state["replay"])


_BUFFER_ARRAYS = ("observations", "next_observations", "actions", "dones", "timeouts", "ep_start", "ep_length")


def _buffer_state(buffer: Any) -> dict[str, Any]:
    filled = buffer.size()
    state: dict[str, Any] = {"pos": buffer.pos, "full": buffer.full, "arrays": {}}
    for name in _BUFFER_ARRAYS:
        if hasattr(buffer, name):
            value = getattr(buffer, name)
            state["arrays"][name] = (
                {k: v[:filled] for k, v in value.items()} if isinstance(value, Mapping) else value[:filled]
            )
    state["arrays"]["rewards"] = _task_rewards(buffer)[:filled]
    if hasattr(buffer, "_current_ep_start"):
        state["current_episode"] = buffer._current_ep_start
    if hasattr(buffer, "state_dict"):
        state["reward"] = buffer.state_dict()
    return state


def _load_buffer(buffer: Any, state: dict[str, Any]) -> None:
    buffer.pos, buffer.full = int(state["pos"]), bool(state["full"])
    for name, value in state["arrays"].items():
        target = _task_rewards(buffer) if name == "rewards" else getattr(buffer, name)
        if isinstance(value, Mapping):
            for key, part in value.items():
                target[key][: len(part)] = part
        else:
            target[: len(value)] = value
    if "current_episode" in state:
        buffer._current_ep_start = np.array(state["current_episode"])
    if "reward" in state:
        buffer.load_state_dict(state["reward"])


def _task_rewards(buffer: Any) -> np.ndarray:
    """The stored array, also where reading `buffer.rewards` would score a learned reward."""
    return getattr(buffer, "task_rewards", buffer.rewards)


def _has(model: Any, name: str) -> bool:
    return _attribute(model, name) is not None


def _attribute(model: Any, dotted: str) -> Any:
    value = model
    for part in dotted.split("."):
        value = getattr(value, part)
    return value
