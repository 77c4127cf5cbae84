"""Where a trained policy's choices come from: its reward streams, what it reads, and a small tree that imitates it.

    python -m runners.explain run=runs/CartPole-v1/ppo-task+rnd/20261121-120000-s0
    python -m runners.explain run=... episodes=50 out=why

Plays episodes with sampled actions and says of each stream what it contributes, in which states the policy would learn
the opposite without it, how far one step without it differs, and the cosine of its policy gradient with the task's; of
the policy, what it reads of an observation and the rules of a tree that does the same. Writes explain.html, one file
with pictures, and explain.json. What each number means, and what it does not show, stands on the page.
"""

import json
import math
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from envs.family import family_of
from envs.make import spec_of
from lodestar.files import make_folder
from lodestar.settings import Settings, setting
from runners.cli.command import Command
from runners.run.build import Trained, load_run
from runners.run.checkpoint import write_atomically

if TYPE_CHECKING:
    from rewards.mix.mix import Mix
    from runners.explain.episodes import PlayedRows
    from runners.explain.policy import PolicyView

SHOWN = 4  # moments a stream
STATES = 256  # that saliency is the mean over
ENTRIES = 32  # of an observation, up to which a tree reads them rather than the family's signals


@dataclass
class ExplainConfig(Settings):
    """One explanation."""

    run: str = setting(help="a run's folder below runs/")
    episodes: int = setting(20, "how many", low=2)
    steps: int = setting(1000, "at most so many of each episode", low=1)
    checkpoint: str = setting("", "environment steps of the checkpoint to explain, or best; the newest")
    seed: int = setting(0, "of the first episode", low=0)
    out: str = setting("", "folder of explain.html and explain.json; the run's")
    trust: bool = setting(False, "whether the run may name code and servers, as in env=module:Id")


def explain(config: ExplainConfig, trained: Trained | None = None) -> dict[str, Any]:
    """Play, measure, write both files; returns what is in explain.json."""
    if trained is None:
        trained = load_run(Path(config.run), config.trust, config.checkpoint)
    from runners.explain import episodes, page
    from runners.explain.policy import view
    from runners.run.video import can_be_drawn, open_env

    folder = make_folder(config.out) if config.out else Path(config.run)
    spec, drawn = spec_of(trained.config.env), can_be_drawn(trained.config.env)
    shown = ("text", "signals") if family_of(spec).signals(spec) else ("text",)
    seen, run = view(trained.model, trained.config.agent_name), trained.config
    with closing(open_env(run, trained.mix, drawn, shown)) as env:
        played = episodes.play(trained, seen, env, config.episodes, config.steps, config.seed)
        found: dict[str, Any] = {"env": run.env_label, "agent": run.agent_name, "reward": run.rewards}
        found |= {"step": trained.step, "episodes": len(played.returns), "steps": len(played.episode)}
        found["cut"] = played.cut
        found |= {"sampled": seen.parts is not None, "task_return": float(np.mean(played.returns))}
        found |= of_streams(seen, played, env, getattr(run.agent, "gae_lambda", 0.95), config.seed, trained.mix)
        found |= of_policy(seen, played, env, config.seed)
        wanted = [tuple(each["moment"]) for group in found["moments"].values() for each in group]
        pictures = episodes.pictures(played, env, wanted, config.seed, drawn)
    sentences = [seen.lacks] if seen.lacks else []
    if sum(weight != 0 for weight in played.weights.values()) < 2:
        sentences.append("one stream is the whole reward: there is nothing to leave out")
    if seen.parts is not None and not any("cosine" in each for each in found["streams"].values()):
        sentences.append("no cosines: the task's reward never changed in these episodes")
    if not found["tree"]:
        sentences.append("no tree: the observation is an image, and its family names no signals")
    if lost := len({*wanted} - {*pictures}):
        sentences.append(f"{lost} pictures: the environment did not repeat an episode from its seed")
    found["left_out"] = sentences
    write_atomically(folder / "explain.json", json.dumps(found, indent=1) + "\n")
    page.write(folder / "explain.html", found, pictures)
    return found


def of_streams(
    seen: "PolicyView", played: "PlayedRows", env: Any, gae_lambda: float, seed: int, mix: "Mix"
) -> dict[str, Any]:
    """What streams contribute and want, and the moments to look at, as plain data."""
    from runners.explain import measures

    streams, moments = measures.contributions(played), {}
    apart = max(len(played.episode) // (10 * len(played.returns)), 1)
    for name, values in played.scaled.items():
        if not name.startswith("task") and values.any():
            rows = measures.highest(values, played.episode, SHOWN, apart)
            moments[name] = [moment(played, row, 1, {name: float(values[row])}, env) for row in rows]
            reasons = mix.streams[name].reward.reasons(played.batch[rows], family_of(env.spec).observed(env.spec))
            for each, reason in zip(moments[name], reasons):
                each["text"] += f" ({reason})"
    if seen.parts is None:
        return {"streams": streams, "moments": moments}
    found, explains = measures.advantages(played, seen, gae_lambda)
    by_episode = measures.gradients(played, seen, found)
    task = next(name for name in found if name.startswith("task"))
    more: dict[str, Any] = {"explains": explains}
    if sum(weight != 0 for weight in played.weights.values()) > 1:
        more |= {"flips": measures.flips(played, found), "step": measures.steps(played, seen, by_episode, seed)}
    for name, of in measures.angles(by_episode, task, seed=seed).items():
        numbers = of | {key: values[name] for key, values in more.items() if name in values}
        streams[name] |= {key: value for key, value in numbers.items() if math.isfinite(value)}
    against = measures.disagreement(found)
    rows = [row for row in measures.highest(against, played.episode, SHOWN, apart) if against[row] > 0]
    pulls = [{name: float(x[row] / max(x.std(), 1e-8)) for name, x in found.items()} for row in rows]
    moments["disagreement"] = [moment(played, row, 0, pull, env) for row, pull in zip(rows, pulls)]
    return {"streams": streams, "moments": moments}


def moment(played: "PlayedRows", row: int, later: int, numbers: dict[str, float], env: Any) -> dict[str, Any]:
    """A row as plain data: the state in which it acts, or the one after it."""
    number = int(played.episode[row])
    time, action = int(row - played.begins[number]) + later, np.asarray(played.batch.action[row])
    said = dict(enumerate(meanings(env))).get(int(action)) if action.ndim == 0 else None
    text = played.texts.get((number, time), "")
    return {"moment": [number, time], "numbers": numbers, "action": said or f"{np.round(action, 2)}", "text": text}


def of_policy(seen: "PolicyView", played: "PlayedRows", env: Any, seed: int) -> dict[str, Any]:
    """What it reads, most first, what its own trees ask about, and the tree that imitates it; empty for none."""
    from agents.networks.actor_critic import Inputs
    from runners.explain import reading

    batch, model, reads = played.batch, seen.model, []
    family, inputs = family_of(env.spec), Inputs(model.observation_space)
    names, signals = family.observed(env.spec), family.signals(env.spec)
    if not seen.blind:
        parts = reading.hidden_parts(model.observation_space, env, names)
        drawn = np.random.default_rng(seed).permutation(len(played.episode))[:STATES]
        moved = reading.saliency(seen, *played.at(drawn), parts, seed)
        order = np.argsort(-moved, kind="stable")
        reads = [{"part": parts[i].label, "moved": float(moved[i]), "cell": parts[i].cell} for i in order]
    entries = list(names) if len(names) == inputs.size else [f"entry {i}" for i in range(inputs.size)]
    splits = reading.splits(model, entries)
    if signals and not 0 < inputs.size <= ENTRIES:  # what the state was when it acted
        read, names = np.asarray(batch.obs_signals), signals
    else:
        read = inputs.vector(batch.obs)
    listed = list(names) if len(names) == read.shape[1] else [f"entry {i}" for i in range(read.shape[1])]
    actions = np.asarray(batch.action) if seen.blind else seen.choices(batch.obs, played.memory)
    discrete, rows = not isinstance(model.action_space, spaces.Box), actions.reshape(len(actions), -1)
    tree = reading.imitate(read, listed, rows, played.episode, discrete, meanings(env)) if read.shape[1] else None
    dynamics: Any = getattr(getattr(model, "imagination", None), "model", None)  # of its world, perhaps a readable one
    equations = list(dynamics.equations(entries)) if hasattr(dynamics, "equations") else []
    return {"reads": reads, "splits": splits, "tree": tree, "equations": equations}


def meanings(env: Any) -> list[str]:
    """Names of discrete actions, where the environment lists them as its `actions` (MiniGrid, NetHack)."""
    listed = getattr(env.unwrapped, "actions", None)
    named = [str(getattr(each, "name", "")) for each in (listed if np.iterable(listed) else ())]
    return named if all(named) and len(named) == getattr(env.action_space, "n", 0) else []


def run(config: ExplainConfig) -> None:
    """Explain, and print it in short."""
    from runners.explain import page

    found = explain(config)
    print("\n".join([*page.lines(found), f"page: {Path(config.out or config.run) / 'explain.html'}"]))


main = Command(ExplainConfig, run, __doc__)

if __name__ == "__main__":
    sys.exit(main())
