"""Learn from recordings and comparisons alone: no reward, no environment to try things out in.

    python -m runners.offline data=random.safetensors,good.safetensors judge=scripted queries=300 seed=0

Pairs of segments are drawn from the recordings and shown to a judge; `bradley_terry` finds a reward behind the answers
and labels every transition with it; IQL learns a policy from that. Beside it: IQL on the task's own rewards, behaviour
cloning, what the recorded episodes returned, and a random policy. The environment is used to evaluate only.

Source: Venkataraman et al. 2024, "Real-World Offline Reinforcement Learning from Vision Language Model Feedback", arXiv
2411.05273 (with judge=vlm). keys:
    data=       recordings, separated by commas (runners.record makes some)
    env=        where to evaluate; that of the recordings by default
    judge=      scripted, heron, clip, recorded, vlm; its options as in judge.mistakes=0.1 or judge.goal="to stand up"
    queries=    pairs shown to the judge (300); length= steps of a segment (25)
    reward.*    other options of bradley_terry, as in reward.of=frame
    steps=      minibatches of IQL (10000); agent.* its options, as in agent.beta=10
    arms=       which policies to train (preferences,true,cloning)
    episodes=   of each evaluation (20)
    out=        where to keep the policy learned from preferences, *.safetensors
    seed=       of everything (0)
    trust=      whether the data may name the code of an environment, as in module:Id (false)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runners.evaluate import play, policy, table
from runners.record import command, parsed, played
from runners.run.config import UsageError, unknown
from runners.run.trust import require

if TYPE_CHECKING:
    from agents.iql import IQL
    from envs.types import Transitions

ARMS = ("preferences", "true", "cloning")


@dataclass
class OfflineConfig:
    """One offline run; the module's docstring explains the keys."""

    data: str = ""
    env: str = ""
    judge: str = "scripted"
    queries: int = 300
    length: int = 25
    steps: int = 10_000
    arms: str = ",".join(ARMS)
    episodes: int = 20
    out: str = ""
    seed: int = 0
    trust: bool = False
    device: str = "cpu"
    judge_options: dict[str, Any] = field(default_factory=dict)
    reward_options: dict[str, Any] = field(default_factory=dict)
    agent_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.data:
            raise UsageError("data= is missing; give a recording, such as python -m runners.record makes")
        for arm in self.arms.split(","):
            if arm not in ARMS:
                raise UsageError(unknown("arms", arm, ARMS))
        for name in ("queries", "length", "steps", "episodes"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} is out of range; give a whole number, 1 or more")


def run(config: OfflineConfig, batch: Transitions | None = None) -> dict[str, Any]:
    """Label, learn, evaluate.

    Args:
        config: what to do; `data` may be a mere name where `batch` is given.
        batch: transitions already in memory, for `config.env`.

    Returns:
        arms: name -> scores as `Scores.to_dict` gives them; labels: metrics of the learned reward; notes: sentences.
    """
    import torch

    from envs.make import make

    torch.set_num_threads(1)
    meta: dict[str, Any] = {"env": config.env}
    if batch is None:
        batch, meta = load(config.data)
    env_id = config.env or meta["env"]
    require(config.trust, f"data={config.data}", "" if config.env else env_id, meta.get("env_options"))
    if config.judge == "heron" and meta.get("signals"):
        config.judge_options.setdefault("names", meta["signals"])
    options = meta.get("env_options", {})
    env = make(env_id, **options)
    spaces = env.observation_space, env.action_space
    env.close()
    labels: dict[str, float] = {}
    notes: list[str] = []
    columns: dict[str, dict[str, Any]] = {}
    for arm in config.arms.split(","):
        rewards = batch.reward
        if arm == "preferences":
            rewards, labels, notes = labelled(config, batch, *spaces)
        model = trained(config, arm, batch, rewards, *spaces)
        if arm == "preferences" and config.out:
            Path(config.out).parent.mkdir(parents=True, exist_ok=True)
            model.save(config.out)
        columns[arm] = play(env_id, policy(model), config.episodes, seed=config.seed, options=options).to_dict()
    columns["random"] = play(env_id, None, config.episodes, seed=config.seed, options=options).to_dict()
    scores = played(batch)
    if scores.returns:
        columns["the data"] = scores.to_dict()
    return {"arms": columns, "labels": labels, "notes": notes}


def load(files: str) -> tuple[Transitions, dict[str, Any]]:
    """Recordings of one environment as one batch, and what the first says about itself.

    Raises:
        UsageError: if they are of different environments.
    """
    from envs.recording import load as read
    from envs.types import concatenate

    batches, metas = zip(*(read(Path(name)) for name in files.split(",")))
    worlds = [(meta.get("env", ""), meta.get("env_options", {})) for meta in metas]
    if any(world != worlds[0] for world in worlds):
        raise UsageError(f"data={files} holds recordings of different environments: {worlds}; give those of one")
    return concatenate(list(batches)), metas[0]


def labelled(
    config: OfflineConfig, batch: Transitions, observation_space: Any, action_space: Any
) -> tuple[np.ndarray, dict[str, float], list[str]]:
    """What every transition is worth, as the judge's answers explain it: float32 (N,), metrics, sentences.

    Raises:
        UsageError: if the recording lacks what the judge reads, or the judge's answers say nothing.
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
        said = " ".join(options.get(name, name) for name in missing)
        raise UsageError(
            f"the judge {config.judge} reads {', '.join(missing)}, which the data lacks; record with {said}"
        )
    if reward.embedding:
        batch = batch.replace(extras={**batch.extras, reward.embedding: reward.embed(batch)})
    metrics = reward.update(batch)
    rewards = reward.score(batch)
    if not rewards.any():
        raise UsageError(f"no reward could be learned: {' '.join(reward.notes())}")
    if np.ptp(batch.reward) > 0:
        metrics["correlation"] = float(np.corrcoef(rewards, batch.reward)[0, 1])  # with the task's, step by step
    return rewards, metrics, reward.notes()


def trained(
    config: OfflineConfig, arm: str, batch: Transitions, rewards: np.ndarray, observation_space: Any, action_space: Any
) -> IQL:
    """IQL on these rewards; cloning is IQL that cares for none."""
    from agents.iql import IQL, IQLConfig

    options = config.agent_options | ({"beta": 0.0} if arm == "cloning" else {})
    model = IQL(
        IQLConfig(**options), observation_space, action_space, batch, rewards, seed=config.seed, device=config.device
    )
    model.learn(config.steps)
    return model


def main(argv: list[str] | None = None) -> int:
    """Learn offline from the command line; returns the exit code."""

    def report(arguments: list[str]) -> None:
        nested = {"judge": "judge_options", "reward": "reward_options", "agent": "agent_options"}
        result = run(parsed(OfflineConfig, arguments, nested))
        for note in result["notes"]:
            print(note)
        if result["labels"]:
            print("  ".join(f"{key} {value:.3g}" for key, value in result["labels"].items()))
        print(table(result["arms"]))

    return command(__doc__, report, argv)


if __name__ == "__main__":
    sys.exit(main())
