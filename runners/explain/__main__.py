"""Where a trained policy's choices come from: its reward streams, what it reads, and a small tree that imitates it.

    python -m runners.explain run=runs/CartPole-v1/ppo-task+rnd/20261121-120000-s0
    python -m runners.explain run=... episodes=50 out=why

Plays episodes with sampled actions and says of each stream what it contributes, in which states the policy would learn
the opposite without it, how far one step without it differs, and the cosine of its policy gradient with the task's; of
the policy, what it reads of an observation and the rules of a tree that does the same. Writes explain.html, one file
with pictures, and explain.json. What each number means, and what it does not show, stands on the page.
"""

import itertools
import math
import sys
from collections.abc import Sequence
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
from runners.run.checkpoint import write_json
from runners.run.config import Values

if TYPE_CHECKING:
    from rewards.mix.mix import Mix
    from runners.explain.episodes import PlayedRows
    from runners.explain.policy import PolicyView

# Moments that are shown of each stream.
MAX_MOMENTS = 4
# Saliency is the mean over so many states.
MAX_SALIENCY_STATES = 256
# A tree reads the entries of an observation that has no more of them, else the family's signals.
MAX_TREE_ENTRIES = 32


@dataclass
class ExplainConfig(Settings):
    """One explanation."""

    run: str = setting(help="a run's folder below runs/")
    episodes: int = setting(20, "how many", ">= 2")
    steps: int = setting(1000, "at most so many of each episode", ">= 1")
    checkpoint: str = setting("", "environment steps of the checkpoint to explain, or best; the newest")
    seed: int = setting(0, "of the first episode", ">= 0")
    out: str = setting("", "folder of explain.html and explain.json; the run's")
    trust: bool = setting(False, "whether the run may name code and servers, as in env=module:Id")


def explain(config: ExplainConfig, trained: Trained | None = None) -> Values:
    """Play, measure, write both files; returns what is in explain.json."""
    if trained is None:
        trained = load_run(Path(config.run), config.trust, config.checkpoint)
    from runners.explain import episodes, page
    from runners.explain.policy import view
    from runners.run.video import can_be_drawn, open_env

    folder = Path(config.run)
    if config.out:
        folder = make_folder(config.out)
    run = trained.config
    drawn = can_be_drawn(run.env)
    spec = spec_of(run.env)
    infos = ["text"]
    if family_of(spec).signals(spec):
        infos.append("signals")
    policy_view = view(trained.model, run.agent_name)
    with closing(open_env(run, trained.mix, drawn, tuple(infos))) as env:
        played = episodes.play(trained, policy_view, env, config.episodes, config.steps, config.seed)
        summary: Values = {
            "env": run.env_label,
            "agent": run.agent_name,
            "reward": run.rewards,
            "step": trained.step,
            "episodes": len(played.returns),
            "steps": len(played.episode),
            "cut": played.cut,
            "sampled": policy_view.distributions is not None,
            "task_return": float(np.mean(played.returns)),
        }
        # Agents without generalised advantages have no lambda.
        gae_lambda = getattr(run.agent, "gae_lambda", 0.95)
        summary |= of_streams(policy_view, played, env, gae_lambda, config.seed, trained.mix)
        summary |= of_policy(policy_view, played, env, config.seed)
        moments = itertools.chain(*summary["moments"].values())
        wanted = {tuple(data["moment"]) for data in moments}
        pictures = episodes.pictures(played, env, wanted, config.seed, drawn)
    has_cosines = any("cosine" in stream for stream in summary["streams"].values())
    missing = len(wanted) - len(pictures)
    # What the page cannot say, and whether that is so.
    gaps = {
        policy_view.lacks: policy_view.lacks,
        "one stream is the whole reward: there is nothing to leave out": not _has_several_streams(played),
        "no cosines: the task's reward never changed in these episodes": summary["sampled"] and not has_cosines,
        "no tree: the observation is an image, and its family names no signals": not summary["tree"],
        f"{missing} pictures: the environment did not repeat an episode from its seed": missing,
    }
    summary["left_out"] = [sentence for sentence, is_gap in gaps.items() if is_gap]
    write_json(folder / "explain.json", summary)
    page.write(folder / "explain.html", summary, pictures)
    return summary


def _has_several_streams(played: "PlayedRows") -> bool:
    return len(list(filter(None, played.weights.values()))) > 1


def of_streams(view: "PolicyView", played: "PlayedRows", env: Any, gae_lambda: float, seed: int, mix: "Mix") -> Values:
    """What streams contribute and want, and the moments to look at, as plain data."""
    from runners.explain import measures

    streams = measures.contributions(played)
    moments = {}
    # Moments of an episode are apart by a tenth of the mean length.
    apart = max(len(played.episode) // (10 * len(played.returns)), 1)
    names = family_of(env.spec).observed(env.spec)
    for name, values in played.scaled.items():
        if name.startswith("task") or not values.any():
            continue
        rows = measures.highest_rows(values, played.episode, MAX_MOMENTS, apart)
        moments[name] = [moment(played, row, 1, {name: float(values[row])}, env) for row in rows]
        # Many rewards give no reasons.
        reasons = mix.streams[name].reward.reasons(played.batch[rows], names)
        for data, reason in zip(moments[name], reasons):
            data["text"] += f" ({reason})"
    summary = {"streams": streams, "moments": moments}
    if view.distributions is None:
        return summary
    advantages, explains = measures.advantages(played, view, gae_lambda)
    by_episode = measures.gradients(played, view, advantages)
    task = next(name for name in advantages if name.startswith("task"))
    numbers = {"explains": explains}
    if _has_several_streams(played):
        numbers["flips"] = measures.flips(played, advantages)
        numbers["step"] = measures.steps(played, view, by_episode, seed)
    for name, stream_numbers in measures.angles(by_episode, task, seed).items():
        for key, values_of_streams in numbers.items():
            stream_numbers[key] = values_of_streams.get(name, math.nan)
        for key, value in stream_numbers.items():
            if math.isfinite(value):
                streams[name][key] = value
    moments["disagreement"] = []
    disagreement = measures.disagreement(advantages)
    for row in measures.highest_rows(disagreement, played.episode, MAX_MOMENTS, apart):
        if disagreement[row] > 0:
            pulls = {name: float(values[row] / max(values.std(), 1e-8)) for name, values in advantages.items()}
            moments["disagreement"].append(moment(played, row, 0, pulls, env))
    return summary


def moment(played: "PlayedRows", row: int, later: int, numbers: dict[str, float], env: Any) -> Values:
    """A row as plain data: the state in which it acts, or the one after it (`later` = 1)."""
    episode = int(played.episode[row])
    time = int(row - played.episode_bounds[episode]) + later
    action = np.asarray(played.batch.action[row])
    words = str(np.round(action, 2))
    names = meanings(env)
    if action.ndim == 0 and 0 <= action < len(names):
        words = names[int(action)]
    text = played.texts.get((episode, time), "")
    return {"moment": [episode, time], "numbers": numbers, "action": words, "text": text}


def of_policy(view: "PolicyView", played: "PlayedRows", env: Any, seed: int) -> Values:
    """What it reads, most first, what its own trees ask about, and what imitates it; empty for none."""
    from agents.networks.actor_critic import Inputs
    from runners.explain import formula, reading

    obs = played.batch.obs
    model = view.model
    family = family_of(env.spec)
    inputs = Inputs(model.observation_space)
    names = family.observed(env.spec)
    reads = []
    if not view.blind:
        parts = reading.hidden_parts(model.observation_space, env, names)
        states = np.random.default_rng(seed).permutation(len(played.episode))[:MAX_SALIENCY_STATES]
        changes = reading.saliency(view, *played.inputs_at(states), parts, seed)
        for i in np.argsort(-changes, kind="stable"):
            reads.append({"part": parts[i].label, "moved": float(changes[i]), "cell": parts[i].cell})
    entries = _entry_names(names, inputs.size)
    signals = family.signals(env.spec)
    if signals and not 0 < inputs.size <= MAX_TREE_ENTRIES:
        # Signals of the state in which the policy acted.
        read = np.asarray(played.batch.obs_signals)
        names = signals
    else:
        read = inputs.vector(obs)
    actions = np.asarray(played.batch.action)
    if not view.blind:
        actions = view.choices(obs, played.memory)
    tree = None
    polynomials = None
    if read.shape[1]:
        rows = actions.reshape(len(actions), -1)
        discrete = not isinstance(model.action_space, spaces.Box)
        read_names = _entry_names(names, read.shape[1])
        tree = reading.imitate(read, read_names, rows, played.episode, discrete, meanings(env))
        if not discrete:
            bounds = (model.action_space.low.ravel(), model.action_space.high.ravel())
            held_out = reading.last_third(played.episode)
            polynomials = formula.fit_polynomials(read, read_names, rows, held_out, *bounds)
    # An agent with a model of the world may have one that can be written down.
    world_model: Any = getattr(getattr(model, "imagination", None), "model", None)
    equations = list(world_model.equations(entries)) if hasattr(world_model, "equations") else []
    return {
        "reads": reads,
        "splits": reading.splits(model, entries),
        "tree": tree,
        "polynomials": polynomials,
        "equations": equations,
    }


def _entry_names(names: Sequence[str], size: int) -> list[str]:
    """The names of an observation's entries, where they are known."""
    if len(names) == size:
        return list(names)
    return [f"entry {i}" for i in range(size)]


def meanings(env: Any) -> list[str]:
    """Names of discrete actions, where the environment lists them as its `actions` (MiniGrid, NetHack)."""
    actions = getattr(env.unwrapped, "actions", None)
    if not np.iterable(actions):
        return []
    names = [str(getattr(action, "name", "")) for action in actions]
    if all(names) and len(names) == getattr(env.action_space, "n", 0):
        return names
    return []


def run(config: ExplainConfig) -> None:
    """Explain, and print it in short."""
    from runners.explain import page

    for line in page.lines(explain(config)):
        print(line)
    print(f"page: {Path(config.out or config.run) / 'explain.html'}")


main = Command(ExplainConfig, run, __doc__)

if __name__ == "__main__":
    sys.exit(main())
