"""An id becomes a ready environment.

    gymnasium.make -> what the family repairs -> its observation adapter -> what disturbs -> (Residual) -> (ActionMask)
        -> EpisodeStatistics -> Journal -> (StartCurriculum) -> Observer

`make` takes any Gymnasium id, ours, or `module:Id-v0`, which imports `module` first. `make_vec` makes n of them,
`make_batched` n as one array program. `options` says which keyword arguments an id has.
"""

import dataclasses
import difflib
import functools
import importlib
import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator, registry
from gymnasium.utils import seeding
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from envs import render
from envs.batched import PROGRAMS
from envs.family import OTHER, Family, Goal, entry, families, family_of
from envs.mujoco.family import warn_if_sparse
from envs.observations import plain_actions
from envs.residual import Residual, ResidualVector
from envs.transitions import Ends
from envs.types import Options
from envs.vector.in_process import InProcess, all_or_none
from envs.vector.workers import Workers
from envs.wrappers import EpisodeStatistics, Journal, Observer, disturb
from lodestar.packages import explain_missing, install_module, package_of
from lodestar.tables import module_name

BACKENDS = ("auto", "gym", "workers", "batched", "device", "sync", "async")
DISTURBANCES = ("physics", "sticky", "noisy_tv", "episodic_reward", "base", "base_scale")
# How ids begin -> the package to name before them.
OWNERS = {"ALE/": "ale_py", "MiniHack-": "minihack"}
MODALITY_OPTIONS = ("frame_size", "text", "signals")


def make(
    env_id: str,
    *,
    render_mode: str | None = None,
    frame_size: int | None = None,
    text: bool = False,
    signals: bool = False,
    seed: int | None = None,
    max_episode_steps: int | None = None,
    adapt: bool = True,
    physics: float | None = None,
    sticky: float | None = None,
    noisy_tv: str | None = None,
    episodic_reward: bool = False,
    base: Any = None,
    base_scale: float = 0.1,
    starts: str = "",
    **kwargs: Any,
) -> gym.Env:
    """Make one environment.

    Args:
        env_id: any Gymnasium id, or `module:Id-v0`.
        render_mode: as in Gymnasium; "rgb_array" if frames are asked for.
        frame_size: side in pixels of `info["frame"]`, in [8, 1024]; None for no frames.
        text, signals: whether to write `info["text"]`, and `info["signals"]` where the family has some.
        seed: the first reset without a seed of its own acts as `reset(seed=seed)`; also seeds the action space.
        max_episode_steps: steps after which an episode is truncated; None for the environment's own limit.
        adapt: whether observations are adapted to Stable-Baselines3, and discrete actions count from 0.
        physics: by which share, in (0, 1), masses and frictions differ from episode to episode; see `envs.physics`.
        sticky, noisy_tv, episodic_reward: a probability in [0, 1), "always" or "on_demand", a bool: see
            `envs.wrappers`.
        base, base_scale: a frozen policy to whose actions these are added, times the scale; see `envs.residual`.
        starts: where episodes begin, see `envs.snapshots.curriculum`; "" for the environment's own starts.
        **kwargs: options of the family's adapter (see its file); the rest goes to the environment.

    Example:
        >>> env = make("CartPole-v1", seed=0, max_episode_steps=50)
        >>> obs, info = env.reset()
        >>> obs.shape, env.spec.max_episode_steps
        ((4,), 50)
    """
    if frame_size is not None and not 8 <= frame_size <= 1024:
        raise ValueError(f"frame_size={frame_size} is out of range; give a side of 8 to 1024 pixels, or None")
    if frame_size is not None and render_mode not in (None, "rgb_array"):
        raise ValueError(f'frames need render_mode="rgb_array", not {render_mode!r}; leave render_mode out')
    if max_episode_steps is not None and max_episode_steps < 1:
        raise ValueError(f"max_episode_steps={max_episode_steps} is out of range; give at least 1, or None")
    render.prepare()
    spec = spec_of(env_id)
    family = family_of(spec)
    options = {}
    if adapt:
        options = {key: kwargs.pop(key) for key in sorted(family.options & set(kwargs))}
    if frame_size is not None:
        render_mode = "rgb_array"
    # A constructor need not have a parameter render_mode, so None is left out.
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    if max_episode_steps is not None:
        kwargs["max_episode_steps"] = max_episode_steps
    # Gymnasium's passive checker helps with a user's own; on ours it only costs time.
    is_known = family.name in families() and family is not OTHER
    try:
        with explain_missing(f"environment {env_id!r}"):
            arguments = family.arguments(spec, kwargs, frame_size)
            env = gym.make(spec, disable_env_checker=is_known, **arguments)
    except (TypeError, AssertionError) as error:
        # A constructor asserts, or an argument is unexpected; any other error is the environment's own.
        if isinstance(error, TypeError) and "keyword argument" not in str(error):
            raise
        raise ValueError(_cannot_be_made(env_id, kwargs, error)) from error
    try:
        warn_if_sparse(env)
        env = family.repair(env)
        if adapt:
            env = plain_actions(family.adapt(env, **options))
        env = disturb(env, physics=physics, sticky=sticky, noisy_tv=noisy_tv, episodic_reward=episodic_reward)
        if base is not None:
            env = Residual(env, base, base_scale)
        env = Journal(EpisodeStatistics(env))
        if starts:
            from envs.snapshots.curriculum import add_starts

            env = add_starts(env, starts)
        if frame_size is not None or text or signals:
            env = Observer(env, frame_size, text, signals)
    except BaseException:
        env.close()
        raise
    if seed is not None:
        env.unwrapped.np_random = seeding.np_random(seed)[0]
        env.action_space.seed(seed)
    return env


def _cannot_be_made(env_id: str, arguments: Options, error: Exception) -> str:
    if "'render_mode'" in str(error):
        return (
            f"{env_id} cannot draw itself: its constructor has no argument render_mode, which Gymnasium asks for; add "
            "it, with render(), or leave out what needs frames (video=false, a reward that reads captions or states)"
        )
    sentence = f"{env_id} cannot be made"
    if arguments:
        sentence += f" with the arguments {sorted(arguments)}"
    if isinstance(error, TypeError):
        return f"{sentence}: {error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{sentence}: {str(error) or last.line} ({last.filename}:{last.lineno})"


def make_vec(
    env_id: str,
    n: int,
    *,
    seed: int = 0,
    autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
    backend: str = "sync",
    processes: int | None = None,
    workers: Mapping[str, Any] | None = None,
    num_threads: int = 1,
    wrap: Callable[[gym.Env], gym.Env] | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """Make `n` environments that step together; number i is seeded with `seed + i`.

    Args:
        seed: of the first one; an array program, which shares one stream of random numbers, is seeded with it.
        autoreset_mode: when an environment whose episode ended is reset; see Gymnasium.
        backend: what steps them.
            "gym": this process, with as little around the environments as can be; see `envs.vector.in_process`.
            "workers": `processes` processes (None for one per usable core); see `envs.vector.workers`.
            "batched": one array program for all, see `make_batched`.
            "device": the same of torch's tensors on `device`, MuJoCo's physics too (mujoco-warp, extra `device`).
            "auto": "batched" where that supports all arguments, else "gym"; "sync" in the other reset modes.
            "sync", "async": Gymnasium's own vectors, all in this process or each environment in its own.
        workers: further arguments of `envs.vector.workers.Workers`, such as {"step_timeout": 10}.
        num_threads: of MuJoCo's array programs; numbers do not depend on it.
        wrap: goes around each environment, in this process.
        **kwargs: as in `make`.

    Example:
        >>> envs = make_vec("CartPole-v1", 3, backend="batched")
        >>> envs.reset(seed=0)[0].shape
        (3, 4)
    """
    if n < 1:
        raise ValueError(f"n={n} environments make no vector; give at least 1")
    if backend not in BACKENDS:
        known = ", ".join(f'"{name}"' for name in BACKENDS)
        raise ValueError(f"backend={backend!r} is unknown; give one of {known}")
    # An option that is off is as good as none, so that it keeps no array program from being used.
    off = (("text", False), ("signals", False), ("episodic_reward", False))
    kwargs = {key: value for key, value in kwargs.items() if value is not None and (key, value) not in off}
    same_step = autoreset_mode == AutoresetMode.SAME_STEP
    if "base" in kwargs and same_step and wrap is None and backend not in ("sync", "async"):
        base = kwargs.pop("base")
        base_scale = kwargs.pop("base_scale", 0.1)
        vector = make_vec(
            env_id,
            n,
            seed=seed,
            backend=backend,
            processes=processes,
            workers=workers,
            num_threads=num_threads,
            **kwargs,
        )
        try:
            return ResidualVector(vector, base, base_scale)
        except BaseException:
            vector.close()
            raise
    if backend == "auto":
        common = {"max_episode_steps", "array", "device"}
        if not same_step:
            backend = "sync"
        elif wrap is None and env_id in PROGRAMS and set(kwargs) <= _supported_options(env_id) | common:
            backend = "batched"
        else:
            backend = "gym"
    if not same_step and backend in ("gym", "workers", "batched", "device"):
        raise ValueError(f'backend="{backend}" resets in SAME_STEP mode, not {autoreset_mode}; use "sync" or "async"')
    if wrap is not None and backend not in ("gym", "sync"):
        raise ValueError(f'backend="{backend}" has environments that nothing can be wrapped around; use "gym"')
    if backend != "workers":
        for name, value in (("workers", workers), ("processes", processes)):
            if value is not None and value != {}:
                raise ValueError(f'{name}={value} is for backend="workers", not "{backend}"; leave it out')
    if backend == "device":
        kwargs = {"array": "torch", "on_device": True, **kwargs}
    if backend in ("batched", "device"):
        return make_batched(env_id, n, seed=seed, num_threads=num_threads, **kwargs)
    makers = [functools.partial(make_wrapped, wrap, env_id, seed=seed + i, **kwargs) for i in range(n)]
    if backend == "gym":
        return InProcess(makers)
    if backend == "workers":
        return Workers(makers, processes, **(workers or {}))
    if backend == "async":
        return AsyncVectorEnv(makers, autoreset_mode=autoreset_mode)
    with all_or_none(makers) as made:
        return SyncVectorEnv(made, autoreset_mode=autoreset_mode)


def make_wrapped(wrap: Callable[[gym.Env], gym.Env] | None, env_id: str, **kwargs: Any) -> gym.Env:
    """As `make`; `wrap` goes around what it returns."""
    env = make(env_id, **kwargs)
    if wrap is None:
        return env
    return wrap(env)


def make_batched(
    env_id: str,
    n: int,
    *,
    seed: int = 0,
    max_episode_steps: int | None = None,
    array: str = "numpy",
    device: str = "cpu",
    num_threads: int = 1,
    on_device: bool = False,
    **options: Any,
) -> Any:
    """`n` environments that step as one array program, of "numpy" arrays or "torch" tensors on `device`.

    `num_threads` are those of MuJoCo's physics; other programs have one. `on_device`: MuJoCo's kernels on the device
    instead, see `envs.batched.warp`; other programs are there anyway.
    `options` are those of the family's adapter, and those that the program supports, see `envs.batched.Program`.
    """
    from envs.batched.base import Arrays

    if env_id not in PROGRAMS:
        raise ValueError(f"no array program knows {env_id!r}; use envs.make.make_vec, or one of {', '.join(PROGRAMS)}")
    if n < 1:
        raise ValueError(f"n={n} environments make no vector; give at least 1")
    if num_threads < 1:
        raise ValueError(f"num_threads={num_threads} is out of range; give at least 1")
    program = PROGRAMS[env_id]
    supported = _supported_options(env_id)
    for name in sorted(set(options) - supported):
        known = ", ".join(sorted(supported - set(MODALITY_OPTIONS))) or "none"
        raise ValueError(
            f"{name}={options[name]!r} is not supported by the array program of {env_id} (of its options, {known}); "
            'leave it out, or use envs.make.make_vec with backend="gym"'
        )
    arguments = {name: options.pop(name) for name in program.modalities & set(options)}
    if program.is_robot:
        arguments["num_threads"] = num_threads
    arrays = Arrays(array, device)
    original = make(env_id, max_episode_steps=max_episode_steps, **options)
    try:
        with explain_missing("backend=device" if on_device else "backend=batched"):
            build: Any = load_env_creator(program.path)
            if on_device and program.is_robot:
                to_device: Any = load_env_creator("envs.batched.warp:on_device")
                build = to_device(build)
        return build(original, n, seed, arrays, **arguments)
    finally:
        original.close()


def _supported_options(env_id: str) -> frozenset[str]:
    program = PROGRAMS[env_id]
    return program.arguments | program.modalities | family_of(spec_of(env_id)).options


def goals(env_id: str) -> list[Goal]:
    """The goals defined for an environment; the first is the default."""
    spec = spec_of(env_id)
    return family_of(spec).goals(spec)


def termination(env_id: str, **options: Any) -> Ends | None:
    """Which transitions terminate, as a function of (obs, action, next_obs); None where these do not determine it.

    The rules are the simulators' own, with their limits as `options` say. The function takes arrays (B, D), (B, A),
    (B, D), NumPy's or torch's, and returns bool (B,). A state within a float32 rounding of a limit may fall on its
    other side.
    """
    spec = spec_of(env_id)
    if options.pop("noisy_tv", None) is not None or options.pop("base", None) is not None:
        return None
    return family_of(spec).terminates(dataclasses.replace(spec, kwargs={**spec.kwargs, **options}))


def spec_of(env_id: str) -> EnvSpec:
    """The registration of an id, after importing its package; a ValueError names the nearest id."""
    module, _, name = env_id.rpartition(":")
    known_before = {*registry}
    if module:
        if not re.fullmatch(r"\w+(\.\w+)*", module) or module.endswith(".py"):
            raise ValueError(f"{env_id!r} is no module:Id; give {module_name(module)}:{name}")
        _import_module(module, env_id)
    elif name not in registry:
        for prefix, owner in OWNERS.items():
            if name.startswith(prefix):
                raise ValueError(
                    f"unknown environment {name!r}; did you mean '{owner}:{name}', after {install_module(owner)}?"
                )
        # Only ours have a namespace, so no package would bring an id with one.
        if "/" not in name and _stem(name) not in map(_stem, registry):
            _import_family_of(name)
    if name in registry:
        return registry[name]
    raise ValueError(f"unknown environment {env_id!r}; {_guess_id(module, name, {*registry} - known_before)}")


def _import_module(module: str, env_id: str) -> None:
    if module == "minihack":
        from envs.nethack.family import provide_pkg_resources

        provide_pkg_resources()
    try:
        importlib.import_module(module)
    # What importing executes may raise anything.
    except Exception as error:
        command = install_module(module)
        if isinstance(error, ModuleNotFoundError) and "[" in command:
            sentence = f"environment {env_id!r} needs the package {package_of(module)} ({error}); {command}"
            raise ImportError(sentence) from None
        raise ValueError(
            f"cannot import {module!r} ({error}), but environment {env_id!r} asks for it; install it, or check the name"
        ) from None


def _guess_id(module: str, name: str, just_registered: set[str]) -> str:
    """What was meant by an id that is not registered, in words: of the module, where one is named, or the nearest."""
    # Ids of the same package count as the module's.
    package = module.partition(".")[0]
    of_module = []
    for known, spec in registry.items():
        owner = re.split("[.:]", entry(spec))[0]
        if owner == package or (module and known in just_registered):
            of_module.append(known)
    ids = of_module or list(registry)
    by_lower_case = {known.lower(): known for known in ids}
    newest = {_stem(known): known for known in ids}
    near = by_lower_case.get(name.lower())
    if near is None:
        cutoff = 0.0 if of_module else 0.6
        stems = difflib.get_close_matches(_stem(name), list(newest), n=1, cutoff=cutoff)
        if stems:
            near = newest[stems[0]]
    if near is not None:
        if of_module:
            near = f"{module}:{near}"
        return f"did you mean {near!r}?"
    # An id has a namespace before its slash, and a module before its colon.
    namespace, _, id_in_namespace = name.partition("/")
    example = f"my_file:{name}"
    if id_in_namespace and namespace.isidentifier() and find_spec(namespace):
        example = f"{namespace}:{id_in_namespace}"
    return f"if it is yours, name the file that registers it, as in {example!r}"


def _import_family_of(name: str) -> None:
    """Import packages until one of them brings the id; those with ids that begin alike first, as all take seconds."""
    prefix = name.lower()[:5]

    def is_unlike(family: Family) -> bool:
        return not any(env_id.lower().startswith(prefix) for env_id in family.ids)

    for family in sorted(families().values(), key=is_unlike):
        if family.module is not None:
            # A missing package is passed over unless it brings this id.
            words = {env_id.partition("-")[0] for env_id in family.ids}
            is_of_family = name.partition("-")[0] in words
            with explain_missing(f"environment {name!r}") if is_of_family else suppress(ImportError):
                importlib.import_module(family.module)
        if name in registry:
            return


def _stem(env_id: str) -> str:
    env_id = env_id.lower()
    return env_id.rpartition("-v")[0] or env_id


def options(env_id: str) -> dict[str, inspect.Parameter]:
    """What `make` takes as keyword arguments: of the environment's constructor, of its adapter, and disturbances.

    Name -> parameter, with its default and its annotation, read from signatures: no environment is made. A constructor
    that takes `**kwargs` does not declare which names it knows (see `is_open`), unless they go on to its base class's.

    Example:
        >>> sorted(options("Pendulum-v1"))[:2]
        ['base', 'base_scale']
    """
    spec = spec_of(env_id)
    family = family_of(spec)
    make_parameters = _parameters(make)
    reserved = make_parameters | _parameters(make_vec)
    parameters: dict[str, inspect.Parameter] = {}
    for parameter in _declared_parameters(creator(env_id))[0]:
        name = parameter.name
        if name in spec.kwargs:
            parameter = parameter.replace(default=spec.kwargs[name])
        # A parameter without a default was filled in by a subclass.
        if name not in reserved and parameter.default is not parameter.empty:
            parameters.setdefault(name, parameter)
    adapter_parameters = _parameters(family.adapt)
    for name in family.options & set(adapter_parameters):
        parameters[name] = adapter_parameters[name]
    for name in DISTURBANCES:
        parameters[name] = make_parameters[name]
    return parameters


def is_open(env_id: str) -> bool:
    """Whether the constructor takes any other keyword argument too."""
    return _declared_parameters(creator(env_id))[1]


def creator(env_id: str) -> Callable[..., Any]:
    """The class or function that makes the environment; a ValueError if there is none."""
    point = spec_of(env_id).entry_point
    if point is None:
        raise ValueError(f"{env_id} is registered without an entry_point; give an environment that can be made alone")
    if not isinstance(point, str):
        return point
    with explain_missing(f"environment {env_id!r}"):
        return load_env_creator(point)


def _declared_parameters(function: Callable[..., Any]) -> tuple[list[inspect.Parameter], bool]:
    """The parameters of a function, or of a class and the bases that its `**kwargs` go on to; whether it is open."""
    makers: list[Any] = [function]
    if inspect.isclass(function):
        makers = [vars(kind)["__init__"] for kind in function.mro()[:-1] if "__init__" in vars(kind)]
    parameters: list[inspect.Parameter] = []
    for maker in makers:
        maker_parameters = _parameters(maker).values()
        parameters += maker_parameters
        if not any(parameter.kind == parameter.VAR_KEYWORD for parameter in maker_parameters):
            return parameters, False
    return parameters, bool(makers)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function, eval_str=True).parameters)
    # Only type checkers import some annotations.
    except (NameError, AttributeError):
        return dict(inspect.signature(function).parameters)
