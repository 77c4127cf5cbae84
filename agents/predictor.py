"""An agent that has learned: it predicts, and is written to and read from a file that is data, never a program."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch

from agents.networks.policy_layers import PolicyLayers
from envs.masks import require_mask
from envs.transitions import map_obs
from envs.types import Obs, StateDict
from lodestar.files import regular, replacing, save_arrays
from lodestar.state import pack, unpack

# Beside the weights a file holds a state, whose arrays have names that begin with a slash (`lodestar.state.pack`).
STATE_ENTRY = "state"


def _leaves(observation: Any, space: gym.Space) -> Iterator[tuple[Any, gym.Space]]:
    """The arrays of an observation with their spaces; a ValueError if keys are missing, or it is of another kind."""
    is_mapping = isinstance(observation, Mapping)
    if not isinstance(space, gym.spaces.Dict):
        fits = not is_mapping
    else:
        fits = is_mapping and set(space) <= set(observation)
    if not fits:
        received = type(observation).__name__
        if is_mapping:
            received = f"a dict of {', '.join(observation)}"
        raise ValueError(f"an observation that is {received} does not fit {space}")
    if not isinstance(space, gym.spaces.Dict):
        yield observation, space
        return
    for key, part in space.items():
        yield from _leaves(observation[key], part)


class Predictor(ABC):
    """An agent that has learned; `policy` is a torch module, or anything with its state_dict and load_state_dict."""

    observation_space: gym.Space
    action_space: gym.Space
    config: Any
    policy: Any
    device: torch.device
    # Whether `predict` gives the mode unless it is asked for a sample.
    mode = False
    # Whether it was trained with action masks, which it then needs to act.
    masked: bool = False

    def tensor(self, array: Any) -> torch.Tensor:
        """The same numbers, on the device."""
        return torch.as_tensor(array, device=self.device)

    @classmethod
    def samples(cls, config: Any, action_space: gym.Space) -> bool:
        """Whether the policy that is learned is a distribution over discrete actions, so that its mode is another one.

        Such a policy is evaluated by sampled actions, others by their mode, unless `eval_sampled` says otherwise.
        """
        return False

    def predict(
        self,
        observation: Obs,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool | None = None,
        mask: Any = None,
    ) -> tuple[np.ndarray, Any]:
        """Actions for one observation or a batch (B, ...), and the state (B, ...) of a policy that has one, else None.

        `episode_start`, bool (B,), empties that state. `mask`, bool (n,) or (B, n): the actions that are allowed; see
        `envs.masks`. It is needed where training had masks; agents that use none ignore it. Other shapes are refused.
        """
        single = self._is_single(observation)
        batch = observation
        if single:
            batch = map_obs(lambda x: np.asarray(x)[None], observation)
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch
        n = len(first)
        if episode_start is None:
            episode_start = np.zeros(n, bool)
        if deterministic is None:
            deterministic = self.mode
        starts = np.asarray(episode_start, bool).reshape(n)
        arguments: list[Any] = [batch, state, starts, deterministic]
        if self.masked:
            arguments.append(require_mask(mask, self.action_space, n))
        with torch.no_grad():
            actions, state = self._predict(*arguments)
        if single:
            actions = actions[0]
        return actions, state

    def _is_single(self, observation: Obs) -> bool:
        """Whether it is one observation, not a batch; a ValueError if it is neither."""
        leaves = list(_leaves(observation, self.observation_space))
        first, first_space = leaves[0]
        single = np.ndim(first) == len(first_space.shape or ())
        for value, space in leaves:
            shape = np.shape(value)
            single_shape = space.shape or ()
            if single:
                fits = shape == single_shape
            else:
                # A batch has one more axis, the first.
                fits = len(shape) > 0 and shape[1:] == single_shape
            if not fits:
                both = f"{single_shape} or (B, {', '.join(map(str, single_shape))})"
                raise ValueError(f"an observation of shape {shape} does not fit {space}; give one of shape {both}")
        return single

    @abstractmethod
    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        """As `predict`, of a batch; `starts` bool (B,). If it can be `masked` there is a fifth, `mask`, bool (B, n)."""

    def policy_layers(self) -> PolicyLayers:
        """The policy as layers that another agent can begin with; a ValueError if it has no such form."""
        raise ValueError(
            f"its policy, of {type(self).__name__}, is no stack of layers for another agent to begin with; those of "
            "iql, cloning and dyna are"
        )

    def extra_state(self) -> dict[str, Any]:
        """What a file keeps besides weights and configuration; plain data, see `lodestar.state.pack`."""
        return {}

    def save(self, path: str) -> None:
        """Write weights, configuration and `extra_state` to one safetensors file; nothing in it is ever executed."""
        weights = self.policy.state_dict()
        tensors = {key: value.detach().cpu().contiguous().numpy() for key, value in weights.items()}
        tree, arrays = pack(self.extra_state())
        tensors |= arrays
        metadata = {
            "agent": type(self).__name__,
            "config": json.dumps(asdict(self.config)),
            STATE_ENTRY: json.dumps(tree),
        }
        with replacing(path) as temporary:
            save_arrays(temporary, tensors, metadata)

    def adapt_weights(self, weights: dict[str, Any], state: StateDict) -> dict[str, Any]:
        """Weights out of a file, with its `extra_state`, as this agent's policy takes them."""
        return weights

    @classmethod
    def _from_file(cls, path: str, build: Callable[[dict[str, Any]], Self], place: str) -> tuple[Self, dict[str, Any]]:
        """What `build` makes of a file's configuration, with its weights; and what `extra_state` gave, or {}."""
        from safetensors import safe_open

        with safe_open(regular(Path(path).resolve()), "pt") as file:
            metadata = file.metadata() or {}
            # An open file has keys and is no dict.
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if metadata.get("agent") != cls.__name__:
            raise ValueError(f"{path} holds no {cls.__name__} (but {metadata.get('agent')}); give a file it saved")
        array_keys = [key for key in tensors if key.startswith("/")]
        arrays = {key: tensors.pop(key).numpy() for key in array_keys}
        state: StateDict = {}
        try:
            agent = build(json.loads(metadata["config"]))
            if STATE_ENTRY in metadata:
                state = unpack(json.loads(metadata[STATE_ENTRY]), arrays)
            agent.policy.load_state_dict(agent.adapt_weights(tensors, state))
        # A file from elsewhere can be wrong in every way.
        except Exception as error:
            raise ValueError(f"{path} does not fit {place}: {' '.join(str(error).split())}") from None
        return agent, state
