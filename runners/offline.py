"""Learn from recordings and comparisons alone: no reward, no interaction with the environment.

    python -m runners.offline data=pendulum                            a recording that ships
    python -m runners.offline data=random.safetensors,good.safetensors judge=scripted queries=300 seed=0

A judge compares pairs of segments of the recordings; `bradley_terry` fits a reward to its answers and labels every
transition with it; IQL learns a policy from that. Beside it: IQL on the task's own rewards, behaviour cloning, the
returns of the recorded episodes, and a random policy. The environment is used to evaluate only.

Source: Venkataraman et al. 2024, "Real-World Offline Reinforcement Learning from Vision Language Model Feedback", arXiv
2411.05273 (with judge=vlm).
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space

from envs.settings import Settings, setting
from runners.cli.command import Command
from runners.evaluate import play, policy, table
from runners.record import whole_episodes
from runners.run.config import UsageError
from runners.run.trust import require, saved_keys

if TYPE_CHECKING:
    from envs.transitions import Transitions

ARMS = ("preferences", "true", "cloning")


@dataclass
class OfflineConfig(Settings):
    """One offline run."""

    data: list[str] = setting(
        help="recordings, separated by commas: files of python -m runners.record, or pendulum, mountaincar"
    )
    env: str = setting("", "where to evaluate; that of the recordings by default")
    judge: str = setting("scripted", "scripted, heron, clip, human, recorded, vlm")
    judge_options: dict[str, Any] = setting({}, "options of the judge, as in judge.mistakes=0.1")
    queries: int = setting(300, "pairs that the judge compares", low=1)
    length: int = setting(25, "steps of a segment", low=1)
    reward_options: dict[str, Any] = setting({}, "other options of bradley_terry, as in reward.of=frame")
    steps: int = setting(10_000, "minibatches of IQL", low=1)
    agent_options: dict[str, Any] = setting({}, "options of IQL, as in agent.beta=10")
    arms: list[str] = setting(list(ARMS), "policies to train", choices=ARMS)
    episodes: int = setting(20, "of each evaluation", low=1)
    out: str = setting("", "where to keep the policy learned from preferences, *.safetensors")
    seed: int = setting(0, "of everything", low=0)
    device: str = setting("cpu", "as torch writes it")
    trust: bool = setting(False, "whether the data may name an environment's code, as in module:Id")


def run(config: OfflineConfig, batch: Transitions | None = None) -> dict[str, Any]:
    """Label, learn, evaluate, on `batch` if it is given, transitions for `config.env`, else on `config.data`.

    Returns `arms`, name -> `Scores.to_dict`, `labels`, metrics of the learned reward, and `notes`, sentences.
    """
    meta: dict[str, Any] = {"env": config.env}
    if batch is None:
        batch, meta = load(config.data)  # before the imports, which take seconds
    import torch

    from agents.iql import IQL, IQLConfig
    from envs.make import make

    torch.set_num_threads(1)
    env_id = config.env or meta["env"]
    named = {"env": "" if config.env else env_id, "env_options": meta.get("env_options")}
    require(config.trust, f"data={','.join(config.data)}", saved_keys(named))
    if config.judge == "heron" and meta.get("signals"):
        config.judge_options.setdefault("names", meta["signals"])
    if config.judge == "human":
        config.judge_options.setdefault("wait", True)
        config.judge_options.setdefault("show", "obs" if batch.frame is None else "frame")
    options = meta.get("env_options", {})
    with closing(make(env_id, **options)) as env:
        spaces = env.observation_space, env.action_space
    labels: dict[str, float] = {}
    notes: list[str] = []
    columns: dict[str, dict[str, Any]] = {}
    for arm in config.arms:
        rewards = batch.reward
        if arm == "preferences":
            rewards, labels, notes = labelled(config, batch, *spaces)
        own = config.agent_options | ({"beta": 0.0} if arm == "cloning" else {})  # beta 0 ignores rewards
        model = IQL(IQLConfig(**own), *spaces, batch, rewards, seed=config.seed, device=config.device)
        model.learn(config.steps)
        if arm == "preferences" and config.out:
            Path(config.out).parent.mkdir(parents=True, exist_ok=True)
            model.save(config.out)
        columns[arm] = play(env_id, policy(model), config.episodes, seed=config.seed, options=options).to_dict()
    columns["random"] = play(env_id, None, config.episodes, seed=config.seed, options=options).to_dict()
    scores = whole_episodes(batch)
    if scores.returns:
        columns["the data"] = scores.to_dict()
    return {"arms": columns, "labels": labels, "notes": notes}


def load(files: list[str]) -> tuple[Transitions, dict[str, Any]]:
    """Recordings of one environment as one batch, and the metadata of the first; a UsageError if of several."""
    from envs.recording import load as read
    from envs.transitions import concatenate

    batches, metas = zip(*(read(Path(name)) for name in files))
    tasks = [(meta.get("env", ""), meta.get("env_options", {})) for meta in metas]
    if any(task != tasks[0] for task in tasks):
        names = ",".join(files)
        raise UsageError(f"data={names} holds recordings of different environments: {tasks}; give those of one")
    return concatenate(list(batches)), metas[0]


def labelled(
    config: OfflineConfig, batch: Transitions, observation_space: Space, action_space: Space
) -> tuple[np.ndarray, dict[str, float], list[str]]:
    """The reward of every transition that fits the judge's answers: float32 (N,), metrics, sentences.

    A UsageError if the recording lacks what the judge reads, or no reward fits its answers.
    """
    from rewards.preference.bradley_terry import BradleyTerry, BradleyTerryConfig

    asked = {"queries": config.queries, "budget": config.queries, "length": config.length}
    asked |= {"seed_steps": 0, "pool": max(len(batch.step) // config.length, 2)}
    settings = {"judge": config.judge, "judge_options": config.judge_options, **asked, **config.reward_options}
    reward = BradleyTerry(
        BradleyTerryConfig(**settings), observation_space, action_space, seed=config.seed, device=config.device
    )
    missing = [name for name in sorted(reward.requires) if getattr(batch, name) is None]
    if missing:
        options = {"frame": f"frames={reward.frame_size or 224}", "text": "text=true", "signals": "signals=true"}
        needed = " ".join(options.get(name, name) for name in missing)
        raise UsageError(
            f"the judge {config.judge} reads {', '.join(missing)}, which the data lacks; record with {needed}"
        )
    if reward.embedding:
        batch = batch.replace(extras={**batch.extras, reward.embedding: reward.embed(batch)})
    metrics = reward.update(batch)
    memory = reward.initial_memory(1)  # of reward.of=history, along the recorded episodes
    column = batch.map(lambda x: x[:, None])
    rewards = reward.score(batch) if memory is None else reward.scan(column, memory)[0][:, 0]
    if not rewards.any():
        raise UsageError(f"no reward could be learned: {' '.join(reward.notes())}")
    if np.ptp(batch.reward) > 0:
        metrics["correlation"] = float(np.corrcoef(rewards, batch.reward)[0, 1])  # with the task's, step by step
    return rewards, metrics, reward.notes()


def report(config: OfflineConfig) -> None:
    """Run, and print notes, metrics and the table of returns."""
    result = run(config)
    for note in result["notes"]:
        print(note)
    if result["labels"]:
        print("  ".join(f"{key} {value:.3g}" for key, value in result["labels"].items()))
    print(table(result["arms"]))


main = Command(OfflineConfig, report, __doc__)

if __name__ == "__main__":
    sys.exit(main())
