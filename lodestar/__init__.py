"""The front door: `lodestar train ...` in a shell, `import lodestar as ld` in a program.

    run = ld.train(env="CartPole-v1", reward="rnd", total_timesteps=50_000)     what `lodestar train` does
    run = ld.load("runs/CartPole-v1/ppo-task+rnd/...")
    run.evaluate(20)["this run"]["task_return"]
    action, _ = run.policy.predict(obs)
    ld.push_to_hub(run, "me/cartpole");  run = ld.load_from_hub("me/cartpole")

    env = ld.wrap(gymnasium.make("CartPole-v1", render_mode="rgb_array"), "clip", goal="pole standing upright")
    stable_baselines3.PPO("MlpPolicy", env).learn(20_000)

Importing it registers our environments with Gymnasium and loads nothing heavy; torch comes with the first call. What a
call changes for the whole process, such as seeds and numbers of threads, is as before when it returns.
"""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.make import make, make_vec
    from envs.transitions import Transitions, stack
    from lodestar.settings import setting
    from rewards.adapters.sb3 import RewardCallback, relabelling
    from rewards.base import Reward, RewardConfig
    from rewards.check import check_reward
    from rewards.exploration.learned import Learned, LearnedConfig
    from rewards.mix.mix import Mix
    from runners.audit.callback import Audit
    from runners.audit.streams import RecordTask
    from runners.audit.wrapper import audit
    from runners.run.build import Model, Trained
    from runners.run.config import TrainConfig

try:
    __version__ = metadata.version("lodestar-rl")
except metadata.PackageNotFoundError:
    # A checkout that is not installed.
    __version__ = "0"

# The exit code of a process that Ctrl-C ended.
_CTRL_C_EXIT_CODE = 130

# What programs with rewards of their own, or loops of their own, take from us, by the module that
# it comes from; loaded when it is asked for.
_PUBLIC = {
    "Audit": "runners.audit.callback",
    "Learned": "rewards.exploration.learned",
    "LearnedConfig": "rewards.exploration.learned",
    "Mix": "rewards.mix.mix",
    "RecordTask": "runners.audit.streams",
    "Reward": "rewards.base",
    "RewardCallback": "rewards.adapters.sb3",
    "RewardConfig": "rewards.base",
    "Transitions": "envs.transitions",
    "audit": "runners.audit.wrapper",
    "check_reward": "rewards.check",
    "make": "envs.make",
    "make_vec": "envs.make",
    "relabelling": "rewards.adapters.sb3",
    "setting": "lodestar.settings",
    "stack": "envs.transitions",
}
__all__ = [
    "Audit",
    "Learned",
    "LearnedConfig",
    "Mix",
    "RecordTask",
    "Reward",
    "RewardCallback",
    "RewardConfig",
    "TrainedRun",
    "Transitions",
    "audit",
    "check_reward",
    "load",
    "load_from_hub",
    "make",
    "make_reward",
    "make_vec",
    "push_to_hub",
    "relabelling",
    "setting",
    "stack",
    "train",
    "wrap",
]


def __getattr__(name: str) -> Any:
    """A public name that is loaded when it is first asked for."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'lodestar' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def train(env: str, reward: Any = "task", agent: Any = "ppo", **keys: Any) -> "TrainedRun":
    """Train as `lodestar train` does, and return the run; the same call continues one that was interrupted.

    Args:
        env: an id, as on the command line.
        reward: a name, "my_file:Class" or a class; a list of these; or a dict from them to their options.
        agent: a name, "my_file:Class" or a class; or a dict of one of these to its options.
        keys: those of the command line: `total_timesteps=50_000`, `**{"reward.rnd.weight": 0.1, "env.sticky": 0.25}`.

    Raises:
        ValueError: for a mistake, in the words of the command.
        KeyboardInterrupt: after Ctrl-C, when all is saved.
    """
    import agents
    import rewards
    from runners.run.exits import Failed, Stopped
    from runners.run.value import literals
    from runners.train import train_in

    with _restored_process():
        reward_names, reward_options = _names_and_options(rewards.table, reward)
        agent_names, agent_options = _names_and_options(agents.table, agent)
        if len(agent_names) > 1:
            raise ValueError(f"agent={agent!r} names several; a run has one agent, `lodestar sweep` takes several")
        for name, options in reward_options.items():
            for key, value in options.items():
                keys[f"reward.{name}.{key}"] = value
        for options in agent_options.values():
            for key, value in options.items():
                keys[f"agent.{key}"] = value

        # As on the command line, a list names every term; a single bonus is added to the task's
        # reward.
        rewarded = reward_names[0]
        if isinstance(reward, dict | list | tuple):
            rewarded = f"[{','.join(reward_names)}]"
        argv = [f"env={env}", f"reward={rewarded}", f"agent={agent_names[0]}"]
        argv += literals(keys)
        try:
            code, folder = train_in(argv)
        except Failed as failed:
            cause = failed.__cause__ or failed
            cause.add_note(str(failed))
            raise cause from None
        except Stopped as stopped:
            if stopped.code == _CTRL_C_EXIT_CODE:
                raise KeyboardInterrupt from None
            raise SystemExit(stopped.code) from None
        if code:
            raise OSError(f"the last checkpoint of {folder} could not be written")
        return TrainedRun(folder, trust=True)


def load(folder: str | Path, *, checkpoint: str | int = "", trust: bool = False) -> "TrainedRun":
    """A run's folder or an exported one, at its newest checkpoint, that of a step, or the "best"; else a ValueError.

    `trust` it where it names code of yours, servers and files (`runners.run.trust`).

    Example:
        >>> load("nowhere")
        Traceback (most recent call last):
        ValueError: nowhere is no run's folder (it has no config.yaml); give one below runs/
    """
    if not (Path(folder) / "config.yaml").is_file():
        raise ValueError(f"{folder} is no run's folder (it has no config.yaml); give one below runs/")
    return TrainedRun(Path(folder), checkpoint=checkpoint, trust=trust)


def push_to_hub(run: "TrainedRun | str | Path", repo: str, *, private: bool | None = None, trust: bool = False) -> str:
    """Upload a run, what acting needs of it and a card, to the Hugging Face Hub; the repository's address.

    Args:
        run: a run or its folder.
        repo: owner/name; made if it is missing, by the account that `hf auth login` or `HF_TOKEN` says.
        private: whether only you may see a repository that is made.
        trust: as in `load`.

    Raises:
        ImportError: without the extra `hub`.
        ValueError: if it is no run, or a repository that you may not write to.
        ConnectionError: if the server cannot be reached, or fails.
    """
    from runners.export.hub import push

    if not isinstance(run, TrainedRun):
        run = load(run, trust=trust)
    with _restored_process():
        return push(run.folder, repo, private=private, trust=run.trust, at=run.checkpoint)


def load_from_hub(
    repo: str, *, revision: str | None = None, folder: str | Path | None = None, trust: bool = False
) -> "TrainedRun":
    """Download a run that `push_to_hub` uploaded, into `folder` (runs/hub/<repo>); nothing of it is executed.

    `revision` is a branch, a tag or a commit; `trust` is as in `load`, and the errors are those of `push_to_hub`.
    """
    from runners.export.hub import pull

    return load(pull(repo, folder, revision), trust=trust)


class TrainedRun:
    """A trained run in its folder; what it needs of it is read when it is asked for."""

    def __init__(self, folder: Path, *, checkpoint: str | int = "", trust: bool = False) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        self.trust = trust

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @cached_property
    def _contents(self) -> "Trained":
        from runners.run.build import load_run

        with _restored_process():
            return load_run(self.folder, self.trust, self.checkpoint)

    @property
    def config(self) -> "TrainConfig":
        """What was trained."""
        return self._contents.config

    @property
    def policy(self) -> "Model":
        """The agent, on the CPU; `action, state = policy.predict(obs, deterministic=True)`, as Stable-Baselines3's."""
        return self._contents.model

    @property
    def figures(self) -> dict[str, Any]:
        """The scores at the end of training by policy (`this run`, `random`, a control); empty without evaluation.

        `this run, mode` is there where the policy was judged by sampled actions.
        """
        from lodestar.files import read_json

        return read_json(self.folder / "result.json")

    def evaluate(self, episodes: int = 20, *, seed: int = 0) -> dict[str, dict[str, Any]]:
        """The task's own scores of whole episodes by this policy (`this run`) and by a random one (`random`).

        A policy that is judged by sampled actions is judged by its mode, too: `this run, mode`.
        """
        from runners.evaluate import evaluation

        with _restored_process():
            config, model, mix, _ = self._contents
            return evaluation(config, model, mix, episodes, seed)

    def explain(self, episodes: int = 20, **options: Any) -> dict[str, Any]:
        """Where the policy's choices come from, as `lodestar explain`, whose keys are the options; its explain.json."""
        from runners.explain.__main__ import ExplainConfig, explain

        with _restored_process():
            return explain(ExplainConfig(str(self.folder), episodes, **options), self._contents)


def make_reward(
    reward: Any, env: Any, *, gamma: float = 0.99, seed: int = 0, device: str = "cpu", **options: Any
) -> "Mix":
    """Make rewards for an environment: what `wrap` wraps it in, and what `rewards.adapters` and our agents take.

    Args:
        reward: a name, "my_file:Class" or a class: a bonus is added to the task's own reward, a goal replaces it. A
            list of these, or a dict from them to their options, names everything that is added up.
        env: whose observations, actions and goals they are for: a Gymnasium environment or vector, or an SB3 VecEnv.
        gamma: the learner's discount.
        options: of that one reward; of several, by name: `make_reward(["task", "clip"], env, clip={"goal": ...})`.

    Raises:
        ValueError: for an unknown reward or option, and a goal that is missing.

    Example:
        >>> import gymnasium
        >>> mix = make_reward({"task": {}, "rnd": {"weight": 0.5}}, gymnasium.make("CartPole-v1"))
        >>> mix.describe()
        'task + 0.5 * rnd (/ return, non-episodic)'
    """
    import rewards
    from rewards.adapters.guided import make_mix
    from rewards.adapters.observe import sample_of, spaces_of

    names, given = _names_and_options(rewards.table, reward)
    if isinstance(reward, dict | list | tuple):
        for key, value in options.items():
            if key not in names:
                raise ValueError(f"{key}={value!r} belongs to none of the rewards {', '.join(names)}")
        given |= options
    else:
        given = {names[0]: {**given[names[0]], **options}}
        names = rewards.join_task(names[0])
    configs = {name: rewards.config_of(name, given.get(name)) for name in names}

    # Some environments come with a goal for those who give none.
    sample = sample_of(env)
    spec = getattr(env if sample is None else sample, "spec", None)
    if spec is not None:
        from runners.cli.compose import fill_goals

        given_keys = []
        for name, own in given.items():
            if isinstance(own, dict):
                for key in own:
                    given_keys.append(f"reward.{name}.{key}")
        fill_goals(SimpleNamespace(env=spec.id, reward=configs), given_keys)
    return make_mix(configs, *spaces_of(env), gamma=gamma, seed=seed, device=device)


def wrap(env: Any, reward: Any, *, update_every: int | None = None, **options: Any) -> Any:
    """The environment, with the reward in place of its own, for any library that trains on it.

    Frames, texts and signals that the reward reads are added (`rewards.adapters.observe`); `info["reward/task"]` keeps
    the task's own reward. Close the environment as before.

    Args:
        env: a Gymnasium environment or vector, or a Stable-Baselines3 VecEnv; anything in it.
        reward: as in `make_reward`, or what that returned.
        update_every: transitions between two updates of rewards that learn.
        options: as in `make_reward`.

    Raises:
        ValueError: as `make_reward`, and if something that the reward reads cannot be had.

    Example:
        >>> import gymnasium
        >>> env = wrap(gymnasium.make("CartPole-v1"), "rnd", weight=0.5)
        >>> obs, info = env.reset(seed=0)
        >>> obs, reward, terminated, truncated, info = env.step(0)
        >>> info["reward/task"]
        1.0
    """
    import gymnasium
    from gymnasium.vector import VectorEnv

    from rewards.adapters.guided import add_guides, guides
    from rewards.adapters.observe import add_modalities, require_modalities
    from rewards.mix.mix import Mix

    mix = reward if isinstance(reward, Mix) else make_reward(reward, env, **options)
    intervals = {}
    if update_every is not None:
        intervals["update_every"] = update_every
    if isinstance(env, gymnasium.Env):
        from rewards.adapters.gym import RewardWrapper

        env = add_modalities(env, mix)
        require_modalities(env, mix)
        return RewardWrapper(add_guides(env, mix), mix, **intervals)
    if isinstance(env, VectorEnv):
        from rewards.adapters.gym import VectorRewardWrapper
        from rewards.adapters.observe import observed_vector

        return VectorRewardWrapper(add_guides(observed_vector(env, mix), mix), mix, **intervals)
    from rewards.adapters.sb3 import RewardVecEnv

    guiding = list(guides(mix))
    if guiding:
        raise ValueError(f"the reward {guiding[0]!r} adds to observations; wrap each environment before the VecEnv")
    return RewardVecEnv(env, mix, **intervals)


def _names_and_options(table: Any, given: Any) -> tuple[list[str], dict[str, Any]]:
    """The names of a reward or agent, of several, or of a dict's keys; and the options that such a dict holds."""
    several = list(given) if isinstance(given, dict | list | tuple) else [given]
    if not several:
        raise ValueError(f"{table.kind}={given!r} names none; give at least one")
    own_options = given.values() if isinstance(given, dict) else [None] * len(several)
    names = []
    options = {}
    for each, own in zip(several, own_options):
        each, argument = table.split_argument(each)
        name = table.name_of(each)
        names.append(name)
        options[name] = {**argument, **(own or {})} if argument else own or {}
    return names, options


@contextmanager
def _restored_process() -> Iterator[None]:
    """Give the process back its random numbers, threads and path as they were."""
    import numpy as np
    import torch

    path = list(sys.path)
    threads = torch.get_num_threads()
    random_state = random.getstate()
    # NumPy's global random numbers.
    numpy_state = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(random_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.set_num_threads(threads)
        sys.path[:] = path


def _working_directory_last() -> None:
    """Take the folder that the command is called in off the path: a user's own `envs` or `runners` is not ours.

    `runners.run.trust` puts it back, behind all else, as soon as the user names something in it (`env=my_file:Id`).
    """
    here = os.getcwd()
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.samefile(here, home):
        return

    def is_elsewhere(folder: str) -> bool:
        return os.path.realpath(folder) != here

    sys.path[:] = filter(is_elsewhere, sys.path)
    # Processes that the command starts read this variable.
    if "PYTHONPATH" in os.environ:
        others = filter(is_elsewhere, os.environ["PYTHONPATH"].split(os.pathsep))
        os.environ["PYTHONPATH"] = os.pathsep.join(others)


def main() -> int:
    """The command."""
    _working_directory_last()
    from runners.cli.verbs import main

    return main()


# An import registers our environments with Gymnasium, as `lodestar/...`. The command imports them
# later, when it has taken the working directory off the path.
_program, _ = os.path.splitext(os.path.basename(sys.argv[0]))
if _program != "lodestar":
    import envs  # noqa: F401
