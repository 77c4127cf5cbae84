"""The table of rewards: a name on the command line -> the class behind it.

A new reward is one file and one line here. A reward of your own needs neither: name it in your package's metadata,

    [project.entry-points."lodestar_rl.rewards"]
    novelty = "novelty:Novelty"

or, in a script, call `rewards.register("novelty", Novelty)`. Importing this package is cheap: a reward's file is read
only when the reward is used.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewards.base import Reward, RewardConfig
    from rewards.mix.mix import Mix

TABLE: dict[str, str] = {
    "task": "rewards.task:Task",
    "count": "rewards.exploration.count:Count",
    "rnd": "rewards.exploration.rnd:RND",
    "rdd": "rewards.exploration.rdd:RDD",
    "forward": "rewards.exploration.forward:Forward",
    "hindsight": "rewards.exploration.hindsight:Hindsight",
    "byol": "rewards.exploration.byol:BYOL",
    "byol_hindsight": "rewards.exploration.byol_hindsight:BYOLHindsight",
    "icm": "rewards.exploration.icm:ICM",
    "disagreement": "rewards.exploration.disagreement:Disagreement",
    "noveld": "rewards.exploration.noveld:NovelD",
    "ride": "rewards.exploration.ride:RIDE",
    "e3b": "rewards.exploration.e3b:E3B",
    "pseudocount": "rewards.exploration.pseudocount:PseudoCount",
    "ngu": "rewards.exploration.ngu:NGU",
    "re3": "rewards.exploration.re3:RE3",
    "submodular": "rewards.exploration.submodular:Submodular",
    "deir": "rewards.exploration.deir:DEIR",
    "clip": "rewards.vision.clip:Clip",
    "progress": "rewards.vision.progress:Progress",
    "self_reference": "rewards.vision.self_reference:SelfReference",
    "contrast": "rewards.vision.contrast:Contrast",
    "synthesis": "rewards.vision.synthesis:Synthesis",
    "bradley_terry": "rewards.preference.bradley_terry:BradleyTerry",
    "oni": "rewards.language.oni:ONI",
    "motif": "rewards.language.motif:Motif",
    "subgoals": "rewards.language.subgoals:Subgoals",
    "lare": "rewards.language.lare:LaRe",
    "guidance": "rewards.language.guidance:Guidance",
}
GROUP = "lodestar_rl.rewards"

_registered: dict[str, type[Reward]] = {}


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def names() -> list[str]:
    """Every reward that can be named: ours, registered ones, entry points."""
    return list(dict.fromkeys([*TABLE, *_registered, *_plugins()]))


def register(name: str, reward: type[Reward]) -> None:
    """Make `reward` available as `name` in this process; raises ValueError if another class has that name."""
    if name in TABLE or _registered.get(name, reward) is not reward:
        raise ValueError(f"a reward named {name!r} exists already; register {reward.__name__} under another name")
    _registered[name] = reward


def get(name: str) -> type[Reward]:
    """The class of the reward called `name`; ValueError, with the nearest, if there is none.

    Raises ImportError if a third party's entry point cannot be imported.
    """
    if name in _registered:
        return _registered[name]
    plugins = entry_points(group=GROUP, name=name)
    if name in TABLE and plugins:
        raise ValueError(
            f"the reward {name!r} is built in, and {plugins[name].value} is installed under the same name; rename its "
            "entry point, or uninstall it"
        )
    owners = sorted({plugin.dist.name for plugin in plugins if plugin.dist})
    if len(owners) > 1:
        raise ValueError(
            f"the reward {name!r} is installed by {' and by '.join(owners)}; uninstall one, or rename its entry point"
        )
    if name in TABLE:
        module, _, attribute = TABLE[name].partition(":")
        return getattr(import_module(module), attribute)
    if plugins:
        try:
            return plugins[name].load()
        except Exception as error:
            raise ImportError(f"the reward {name!r} of {plugins[name].value} cannot be imported: {error}") from error
    near = difflib.get_close_matches(str(name), names(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names())}"
    raise ValueError(f"there is no reward {name!r}; {hint}")


def make(
    rewards: dict[str, RewardConfig | None] | list[str],
    observation_space: Any,
    action_space: Any,
    *,
    gamma: float = 0.99,
    seed: int = 0,
    device: str = "cpu",
) -> Mix:
    """Build the named rewards and mix them.

    `rewards` are names, or name -> Config (None for its defaults); the spaces are those of one environment. `gamma` is
    the learner's discount, which potential shaping must share; `seed` is apart from the environments' and the agent's.
    """
    from rewards.mix.mix import Mix, Stream

    if isinstance(rewards, str):
        raise ValueError(f"rewards={rewards!r} is a text; give a list: ['task', {rewards!r}] adds it to the task's own")
    if isinstance(rewards, list | tuple):
        rewards = dict.fromkeys(rewards)
    if not rewards:
        raise ValueError("a mix of no rewards teaches nothing; name at least one, as in ['task']")
    streams = []
    for index, (name, config) in enumerate(rewards.items()):
        cls = get(name)
        config = cls.Config() if config is None else config
        reward = cls(config, observation_space, action_space, seed=seed + 1000 * index, device=device)
        streams.append(Stream(name, reward, gamma=gamma))
    return Mix(streams)
