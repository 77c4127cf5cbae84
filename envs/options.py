"""The options of an environment: arguments of its constructor, of its adapter, and disturbances.

    options("lodestar/DeepSea-v0")   size, stochastic, mapping_seed, sticky, noisy_tv, episodic_reward

Each may be passed to `envs.make.make` as a keyword argument. Signatures are read; no environment is made.

When it fails: a constructor that takes `**kwargs` for itself does not declare which names it knows; see `is_open`. If
its base class has a constructor too, `**kwargs` are taken to be that one's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gymnasium.envs.registration import load_env_creator

from envs.family import family_of
from envs.make import make, make_vec, spec_of

DISTURBANCES = ("sticky", "noisy_tv", "episodic_reward")


def options(env_id: str) -> dict[str, inspect.Parameter]:
    """Name -> parameter, with its default and its annotation; those of the constructor first.

    What `make` and `make_vec` handle themselves, such as `render_mode` and `max_episode_steps`, is no option.

    Raises:
        ValueError: if the id is unknown.
    """
    spec, ours = spec_of(env_id), _parameters(make)
    family, reserved = family_of(spec), ours | _parameters(make_vec)
    found: dict[str, inspect.Parameter] = {}
    for parameter in _declared(creator(env_id))[0]:
        name = parameter.name
        if name in spec.kwargs:
            parameter = parameter.replace(default=spec.kwargs[name])
        # A parameter without a default was filled in by a subclass.
        if name not in reserved and parameter.default is not parameter.empty:
            found.setdefault(name, parameter)
    found |= {name: parameter for name, parameter in _parameters(family.adapt).items() if name in family.options}
    return found | {name: ours[name] for name in DISTURBANCES}


def is_open(env_id: str) -> bool:
    """Whether the constructor takes any other keyword argument too."""
    return _declared(creator(env_id))[1]


def creator(env_id: str) -> Callable[..., Any]:
    """The class or function that makes the environment.

    Raises:
        ValueError: if the id is unknown, or makes vectors only.
    """
    point = spec_of(env_id).entry_point
    if point is None:
        raise ValueError(f"{env_id} is registered without an entry_point; give an environment that can be made alone")
    return load_env_creator(point) if isinstance(point, str) else point


def _declared(function: Callable[..., Any]) -> tuple[list[inspect.Parameter], bool]:
    """The parameters of a function, or of a class and the bases that its `**kwargs` go on to; whether it is open."""
    makers: list[Any] = [function]
    if inspect.isclass(function):
        makers = [vars(kind)["__init__"] for kind in function.mro()[:-1] if "__init__" in vars(kind)]
    found: list[inspect.Parameter] = []
    for maker in makers:
        parameters = list(_parameters(maker).values())
        found += parameters
        if not any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
            return found, False
    return found, bool(makers)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function, eval_str=True).parameters)
    except (NameError, AttributeError):  # an annotation that only a type checker imports
        return dict(inspect.signature(function).parameters)
