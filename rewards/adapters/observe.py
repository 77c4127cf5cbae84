"""What rewards read of an environment that others made: frames, texts, signals, observations.

Frames are rendered (`render_mode="rgb_array"`), texts and signals come from its family, where it has one. Observations
that fit into no array, such as MiniGrid's dict with its mission, are read as `envs.make.make` would adapt them. In a
vector of this process (SyncVectorEnv, DummyVecEnv) each environment is wrapped where it stands. Others can only be
asked for pictures, after a step that has not reset anything (NEXT_STEP, DISABLED).
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from envs.family import family_of
from envs.observations import fits
from envs.render import name_of
from envs.steps import innermost_vec_env
from envs.types import MODALITIES
from envs.wrappers import Observer, VectorObserver, layers
from rewards.adapters.ending import add_endings, endings
from rewards.mix.mix import Mix

Read = Callable[[Any], Any]  # an observation as rewards read it


def add_modalities(env: gym.Env, mix: Mix) -> gym.Env:
    """The environment with what the mix reads in its infos, as far as it can be had, and ended as rewards end it."""
    missing = _modalities_read(mix) - _modalities_shown(env)
    family = family_of(env.spec)
    text = "text" in missing and family.name != "other"
    signals = "signals" in missing and env.spec is not None and bool(family.signals(env.spec))
    frame_size = None
    if "frame" in missing and env.render_mode == "rgb_array":
        frame_size = mix.frame_size
    if frame_size is not None or text or signals:
        env = Observer(env, frame_size, text, signals)
    return add_endings(env, mix)


def observed_vector(envs: VectorEnv, mix: Mix) -> VectorEnv:
    """The same of a vector of environments."""
    inner = envs.unwrapped
    if isinstance(inner, SyncVectorEnv):
        inner.envs = [add_modalities(env, mix) for env in inner.envs]
        return envs
    ends = list(endings(mix))
    if ends:
        raise ValueError(f"the reward {ends[0]!r} ends episodes, and {envs} hides its own; use SyncVectorEnv")
    renders = "frame" in _modalities_read(mix) and envs.render_mode == "rgb_array"
    # A picture taken after a step that has reset would show the next episode.
    resets_in_step = envs.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP
    if not renders or mix.frame_size is None or resets_in_step:
        return envs
    return VectorObserver(envs, mix.frame_size)


def observe_venv(venv: Any, mix: Mix) -> None:
    """The same of a Stable-Baselines3 VecEnv, whose environments are wrapped where they stand."""
    if not _modalities_read(mix) and not endings(mix):
        return
    inner = innermost_vec_env(venv)
    # Only a DummyVecEnv holds its environments in this process.
    envs = getattr(inner, "envs", None)
    if isinstance(envs, list):
        inner.envs = [add_modalities(env, mix) for env in envs]


def require_modalities(env: gym.Env, mix: Mix) -> None:
    """Refuse (ValueError) an environment whose infos will lack what the mix reads, as far as that shows."""
    lacking = sorted(_modalities_read(mix) - _modalities_shown(env))
    for name, stream in mix.streams.items():
        for field in lacking:
            if not {field, f"obs_{field}"} & stream.requires:
                continue
            if field == "frame":
                env_name = name_of(env)
                raise ValueError(
                    f"the reward {name!r} reads frames, but {env_name} was made with render_mode={env.render_mode!r}; "
                    f'make it with render_mode="rgb_array", as in gymnasium.make("{env_name}", render_mode="rgb_array")'
                )
            raise ValueError(
                f"the reward {name!r} reads {field}, which {name_of(env)} does not have (family "
                f"{family_of(env.spec).name}); write it into info[{field!r}] and use RewardWrapper, or leave it out"
            )


def make_reader(env: gym.Env, mix: Mix | None = None) -> tuple[spaces.Space, Read | None]:
    """The space that rewards read, and a function that maps an observation into it.

    The function is None where rewards read observations unchanged, as those of a `mix` made for the environment's own
    space do.
    """
    space = env.observation_space
    family = family_of(env.spec)
    if fits(space) or family.name == "other":
        return space, None
    try:
        adapted: Any = family.adapt(env)
    except TypeError:
        # A wrapper has changed the observations that the adapter knows.
        return space, None
    if mix is not None:
        reward_spaces = [stream.reward.observation_space for stream in mix.streams.values()]
        if adapted.observation_space not in reward_spaces:
            return space, None
    return adapted.observation_space, getattr(adapted, "observation", None)


def sample_of(env: Any) -> gym.Env | None:
    """The environment, or the first one of a vector or VecEnv that holds them in this process."""
    if isinstance(env, gym.Env):
        return env
    inner = env.unwrapped if isinstance(env, VectorEnv) else innermost_vec_env(env)
    return next(iter(getattr(inner, "envs", ())), None)


def spaces_of(env: Any) -> tuple[spaces.Space, spaces.Space]:
    """The observations as rewards read them, and the actions, of an environment, or of one of a vector or VecEnv."""
    if not hasattr(env, "observation_space"):
        raise ValueError(f"{env!r:.80} is no environment; give one of Gymnasium, a vector of them, or an SB3 VecEnv")
    if isinstance(env, gym.Env):
        space, _ = make_reader(env)
        return space, env.action_space
    sample = sample_of(env)
    if not isinstance(env, VectorEnv):
        return env.observation_space, env.action_space
    space = env.single_observation_space
    if sample is not None and sample.observation_space == space:
        space, _ = make_reader(sample)
    return space, env.single_action_space


def _modalities_read(mix: Mix) -> set[str]:
    return {name for name in MODALITIES if {name, f"obs_{name}"} & mix.requires}


def _modalities_shown(env: gym.Env) -> set[str]:
    """What the Observers around an environment write into its infos."""
    shown = set()
    for layer in layers(env, Observer):
        shown |= {name for name, is_shown in layer.enabled_modalities().items() if is_shown}
    return shown
