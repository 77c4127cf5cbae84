"""How good a policy is in the task's own terms: return, success, goal steps, beside a random policy.

    python -m runners.evaluate run=runs/CartPole-v1/ppo-task+rnd/20261121-120000-s0 episodes=20

The learned reward is never its own judge; it appears in the video only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from runners.report import statistics
from runners.run.config import TrainConfig, UsageError, load, unknown

if TYPE_CHECKING:
    from envs.family import Goal
    from rewards.mix.mix import Mix

Act = Callable[[Any, bool], Any]  # (observation, whether an episode begins) -> action
SEED = 1_000_000  # evaluation episodes never share a seed with training


@dataclass
class Scores:
    """What some episodes were worth to the task."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)  # empty where the environment does not say
    goal_steps: list[int] = field(default_factory=list)  # steps in which the goal was true; empty without a goal
    goal: str = ""
    metrics: dict[str, float] = field(default_factory=dict)  # name with unit -> mean, in the family's own terms

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers: per-episode lists, their means, IQM and 95 % interval of the return."""
        low, high = interval(self.returns)
        return {
            "episodes": len(self.returns),
            "task_return": float(np.mean(self.returns)),
            "task_return_iqm": float(statistics.iqm(self.returns)),
            "task_return_interval": [low, high],
            "length": float(np.mean(self.lengths)),
            "success": float(np.mean(self.successes)) if self.successes else None,
            "goal": self.goal or None,
            "goal_steps": float(np.mean(self.goal_steps)) if self.goal_steps else None,
            "metrics": self.metrics,
            "returns": self.returns,
        }


def play(
    env_id: str,
    act: Act | None,
    episodes: int,
    *,
    seed: int = 0,
    max_steps: int = 20_000,
    max_episode_steps: int | None = None,
    goal: Goal | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    mix: Mix | None = None,
) -> Scores:
    """Play whole episodes, one after the other.

    Args:
        env_id: the environment.
        act: the policy; None acts at random.
        episodes: how many, at least 1.
        seed: episode i starts from seed `SEED + 1000 * seed + i`, whoever plays.
        max_steps: no further episode begins after this many steps.
        max_episode_steps: as in training.
        goal: whose truth is asked for after every step.
        options: of the environment, as in training.
        mix: what the policy was paid by, if rewards of it speak to the policy.
    """
    from envs.family import family_of
    from envs.make import make
    from rewards.adapters.guided import guided, shown_to

    scores = Scores(goal=goal.name if goal else "")
    shown: dict[str, Any] = {} if mix is None else shown_to(mix)
    env = make(env_id, max_episode_steps=max_episode_steps, **{**options, **shown})
    env = env if mix is None else guided(env, mix)
    family = family_of(env.spec)
    metrics = family.metrics(env)
    first = SEED + 1000 * seed
    env.action_space.seed(first)
    try:
        for index in range(episodes):
            if index > 0 and sum(scores.lengths) >= max_steps:
                break
            obs, info = env.reset(seed=first + index)
            ended, begins, met = False, True, 0
            if metrics is not None:
                metrics.begin(family.sense(env))
            while not ended:
                action = env.action_space.sample() if act is None else act(obs, begins)
                obs, _, terminated, truncated, info = env.step(action)
                ended, begins = terminated or truncated, False
                met += goal is not None and bool(goal.truth(env))
                if metrics is not None:
                    metrics.step(family.sense(env))
            scores.returns.append(float(info["episode"]["r"]))
            scores.lengths.append(int(info["episode"]["l"]))
            if "is_success" in info:
                scores.successes.append(bool(info["is_success"]))
            if goal is not None:
                scores.goal_steps.append(met)
    finally:
        env.close()
    scores.metrics = metrics.summary() if metrics is not None else {}
    return scores


def evaluation(config: TrainConfig, model: Any, mix: Mix, episodes: int, seed: int) -> dict[str, dict[str, Any]]:
    """Scores of a trained policy and of a random one on the same episodes."""
    limits: dict[str, Any] = {
        "seed": seed,
        "max_steps": int(config.eval_steps),
        "max_episode_steps": config.max_episode_steps,
        "goal": goal_of(config),
        "options": config.env_options,
    }
    return {
        "this run": play(config.env, policy(model, config.env), episodes, mix=mix, **limits).to_dict(),
        "random": play(config.env, None, episodes, **limits).to_dict(),
    }


def goal_of(config: TrainConfig) -> Goal | None:
    """The goal, known to the environment's family, that a reward of this run speaks about."""
    from envs.make import goals

    prompts = [options.goal for options in config.reward.values() if getattr(options, "goal", "")]
    known = goals(config.env) if prompts else []
    named = [goal for goal in known if goal.prompt in prompts]
    return next(iter(named or known), None)


def policy(model: Any, env_id: str = "") -> Act:
    """The policy of an agent, deterministic unless the family is `sampled`; it keeps an LSTM's state between calls."""
    from envs.family import family_of
    from envs.make import spec_of

    state: Any = None
    sure = not (env_id and family_of(spec_of(env_id)).sampled)

    def act(obs: Any, begins: bool) -> Any:
        nonlocal state
        start = np.array([begins])
        action, state = model.predict(obs, state=None if begins else state, episode_start=start, deterministic=sure)
        return action

    return act


def interval(values: list[float]) -> tuple[float, float]:
    """95 % interval of the IQM; the value itself where there is one only."""
    found = statistics.aggregate([np.asarray(values)])
    return (found.value, found.value) if len(values) == 1 else (float(found.low), float(found.high))


def table(columns: dict[str, dict[str, Any]]) -> str:
    """Scores side by side: one column per policy."""
    rows = [
        ("task return", "task_return"),
        ("task return, IQM", "task_return_iqm"),
        ("95 % interval", "task_return_interval"),
    ]
    goal = next((c["goal"] for c in columns.values() if c["goal"]), None)
    rows += [(f"steps with goal '{goal}'", "goal_steps"), ("success", "success"), ("episode length", "length")]
    lines = [["", *columns]]
    listed = [(words, [column[key] for column in columns.values()]) for words, key in rows]
    measured = [column.get("metrics") or {} for column in columns.values()]  # none in runs from before there were any
    listed += [(name, [each.get(name) for each in measured]) for name in measured[0]]
    for words, values in listed:
        if any(value is not None for value in values):
            lines.append([words, *map(_number, values)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  " + line[0].ljust(widths[0]) + "".join("  " + cell.rjust(w) for cell, w in zip(line[1:], widths[1:]))
        for line in lines
    )


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " to ".join(map(_number, value))
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def load_run(run: Path, trust: bool = False) -> tuple[TrainConfig, Any, Mix]:
    """A trained run at its newest checkpoint: its configuration, its agent, its mix.

    Raises:
        UsageError: if it is none, or names code or servers that nobody trusts; see `runners.run.trust`.
    """
    import agents
    from runners.run import checkpoint
    from runners.run.config import to_dict
    from runners.run.trust import require
    from runners.train import build

    if not (run / "config.yaml").exists():
        raise UsageError(f"run={run} is no run's folder (it has no config.yaml); give one below runs/")
    config = load(run / "config.yaml")
    require(trust, f"run={run}", config.env, config.env_options, to_dict(config)["reward"])
    found = checkpoint.load(run / "checkpoints", lambda sentence: print(sentence, file=sys.stderr))
    if found is None:
        raise UsageError(f"run={run} has no checkpoint yet; train it to the first one")
    state = found[0]
    options = config.agent
    config.n_envs, config.backend, config.device = 1, "gym", "cpu"
    if agents.get(config.agent_name).driver == "relabel":
        options.buffer_size = 1  # nothing will be learnt
    if hasattr(options, "n_steps") and hasattr(options, "batch_size"):
        options.batch_size = options.n_steps
    parts = build(config)
    model, mix = parts.model, parts.mix
    model.policy.load_state_dict(state["agent"]["modules"]["policy"])
    mix.load_state_dict(state["mix"])
    return config, model, mix


def main(argv: list[str] | None = None) -> int:
    """Evaluate a run; returns the exit code."""
    from runners.run.exits import USAGE, explain

    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or any(a in ("-h", "--help") for a in arguments):
        print(
            f"{__doc__}\nkeys: run= (a run's folder), episodes=20, seed=0, video=true, "
            "trust=false (whether the run may name code and servers, as in env=module:Id)"
        )
        return 0 if arguments else USAGE
    try:
        return _evaluate(arguments)
    except Exception as error:
        code, sentence = explain(error, "set-up")
        if not sentence:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        return code


def _evaluate(arguments: list[str]) -> int:
    options: dict[str, str] = {"run": "", "episodes": "20", "seed": "0", "video": "true", "trust": "false"}
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in options:
            raise UsageError(unknown("key", key, options))
        options[key] = value
    if not options["run"]:
        raise UsageError("run= is missing; give a run's folder below runs/")
    for key, low in (("episodes", 1), ("seed", 0)):
        if not options[key].isdigit() or int(options[key]) < low:
            raise UsageError(f"{key}={options[key]} is out of range; give a whole number, {low} or more")
    run, episodes, seed = Path(options["run"]), int(options["episodes"]), int(options["seed"])
    config, model, mix = load_run(run, options["trust"] == "true")
    columns = evaluation(config, model, mix, episodes, seed)
    print(f"{config.world}, {config.agent_name} paid by {config.rewards}, {columns['this run']['episodes']} episodes")
    print(table(columns))
    if options["video"] != "false":
        from runners.run.video import film

        print(f"video: {film(config, model, mix, run / 'video.mp4', seed=seed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
