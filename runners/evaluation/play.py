"""Playing with a policy, and the task's own scores of it: return, success, goal steps, beside a random policy's.

The learned reward is never its own judge. A policy acts as it was trained: PPO is sampled on discrete actions and acts
by its mode on continuous ones, SAC and DQN act by their mode. Where sampled actions and the mode are different
policies, the mode has a column of its own, over half as many episodes.
"""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

import agents
from envs.family import Goal, family_of
from envs.make import goals, make
from envs.masks import sample
from envs.types import MASK
from runners.report import statistics
from runners.run.config import TrainConfig
from runners.run.folder import COST, LIMIT, OTHER_WAY, TOLD
from runners.run.judged import judge_results, no_label_sentences
from runners.run.output import Ticker

if TYPE_CHECKING:
    from rewards.mix.mix import Mix
    from runners.run.video import Act

# Evaluation episodes never share a seed with training.
SEED = 1_000_000
# How a policy acts.
SAMPLED = "sampled"
MODE = "mode"


@dataclass
class Scores:
    """The task's own results of some episodes."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    # Empty where the environment reports none.
    successes: list[bool] = field(default_factory=list)
    # Steps in which the goal was true; empty without a goal.
    goal_steps: list[int] = field(default_factory=list)
    goal: str = ""
    # Name with unit -> mean, in the family's own terms.
    metrics: dict[str, float] = field(default_factory=dict)
    # Episodes that had not ended after so many steps as all may have together.
    cut: int = 0
    # How the policy acted: sampled, mode or random.
    actions: str = ""
    # The lowest and the highest return that there can be, if known.
    possible: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers: per-episode lists, their means, IQM and 95 % interval of the return."""
        count = len(self.returns)
        return {
            "episodes": count,
            "task_return": float(np.mean(self.returns)),
            "task_return_iqm": float(statistics.iqm(self.returns)),
            "task_return_interval": None if count == 1 else list(interval(self.returns, self.possible)),
            "task_return_possible": None if self.possible is None else list(self.possible),
            "length": float(np.mean(self.lengths)),
            "success": _mean_or_none(self.successes),
            "goal": self.goal or None,
            "goal_steps": _mean_or_none(self.goal_steps),
            "metrics": self.metrics,
            "cut": self.cut,
            "actions": self.actions or None,
            "returns": self.returns,
        }


def _mean_or_none(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def play(
    env_id: str,
    act: "Act | None",
    episodes: int,
    *,
    seed: int = 0,
    max_steps: int = 20_000,
    max_episode_steps: int | None = None,
    goal: Goal | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    mix: "Mix | None" = None,
    costs: "Mix | None" = None,
    tick: Ticker | None = None,
) -> Scores:
    """Play whole episodes, one after the other; `act` is the policy, None acts at random.

    Episode i starts from seed `SEED + 1000 * seed + i`, whatever the policy; no further one begins after `max_steps`
    steps, and none is longer. The ground truth of `goal` is checked after every step; `mix` has the policy's rewards,
    some of which add to its observations; `costs` is the mix whose limits are measured, by default the same.
    """
    from rewards.adapters.costs import Costs, cost_modalities, meter_costs
    from rewards.adapters.guided import add_guides, guide_modalities

    scores = Scores()
    if goal is not None:
        scores.goal = goal.name
    settings = dict(options)
    costs = costs or mix
    if costs is not None:
        settings |= cost_modalities(costs)
    if mix is not None:
        settings |= guide_modalities(mix)
    env = make(env_id, max_episode_steps=max_episode_steps, **settings)
    if mix is not None:
        env = add_guides(env, mix)
    env = meter_costs(env, costs)
    family = family_of(env.spec)
    if env.spec is not None:
        scores.possible = family.returns(env.spec)
    metrics = family.metrics(env)
    first_seed = SEED + 1000 * seed
    env.action_space.seed(first_seed)
    with closing(env):
        for index in range(episodes):
            if index > 0 and sum(scores.lengths) >= max_steps:
                break
            obs, info = env.reset(seed=first_seed + index)
            ended = False
            length = 0
            total = 0.0
            goal_steps = 0
            if metrics is not None:
                metrics.begin(family.sense(env))
            while not ended and length < max_steps:
                mask = (info[MASK],) if MASK in info else ()
                if act is None:
                    action = sample(env.action_space, *mask)
                else:
                    action = act(obs, length == 0, *mask)
                obs, reward, terminated, truncated, info = env.step(action)
                ended = terminated or truncated
                length += 1
                total += float(reward)
                if tick is not None:
                    tick("episode {} of {}, step {:,}", index + 1, episodes, length)
                if goal is not None:
                    goal_steps += bool(goal.truth(env))
                if metrics is not None:
                    metrics.step(family.sense(env))
            if ended:
                # The environment's own sums, from the innermost wrapper.
                total = float(info["episode"]["r"])
                length = int(info["episode"]["l"])
            scores.returns.append(total)
            scores.lengths.append(length)
            scores.cut += not ended
            if "is_success" in info:
                scores.successes.append(bool(info["is_success"]))
            if goal is not None:
                scores.goal_steps.append(goal_steps)
    if metrics is not None:
        scores.metrics = metrics.summary()
    if isinstance(env, Costs):
        for name, mean in env.means().items():
            limit = env.mix.limits[name]
            scores.metrics = {**scores.metrics, f"{name}{COST}{limit.span}": mean, f"{name}{LIMIT}": limit.limit}
    return scores


def evaluation(
    config: TrainConfig, model: Any, mix: "Mix", episodes: int, seed: int, new: Any = None, answers: int = 4
) -> dict[str, dict[str, Any]]:
    """Scores of a trained policy and of a random one on the same episodes; and for each user whom it can serve.

    A policy that is judged by sampled actions is also judged by its mode, which may be worth much less. The mode has
    half of the episodes: enough to see a gap, at half the cost. `new` is the judge of a new user, who is known by that
    many `answers`.
    """
    from runners.run.served import scores_by_user

    limits = limits_of(config, seed)
    way = way_of(config, model)
    columns = {"this run": play_as(way, config, model, mix, episodes, limits)}
    if config.eval_sampled == "auto" and way == SAMPLED:
        columns[OTHER_WAY] = play_as(MODE, config, model, mix, max(episodes // 2, 1), limits)
    tick = Ticker("evaluating a random policy")
    columns["random"] = play(config.env, None, episodes, costs=mix, tick=tick, **limits)
    columns["random"].actions = "random"
    act = policy(model, config, way=way, seed=seed)
    first_seed = SEED + 1000 * seed
    for name, served in scores_by_user(config, act, mix, episodes, first_seed, new, answers):
        column = Scores(served.returns, served.lengths, served.successes, cut=served.cut, actions=way)
        columns[f"{TOLD}{name}"] = column
    results = {name: scores.to_dict() for name, scores in columns.items()}
    results["this run"] |= judge_results(mix)
    return results


def play_as(way: str, config: TrainConfig, model: Any, mix: "Mix", episodes: int, limits: Mapping[str, Any]) -> Scores:
    """Scores of a trained policy that acts in one way."""
    act = policy(model, config, way=way, seed=limits["seed"])
    scores = play(config.env, act, episodes, mix=mix, tick=Ticker(f"evaluating ({way})"), **limits)
    scores.actions = way
    return scores


def way_of(config: TrainConfig, model: Any) -> str:
    """How a run's policy acts when it is judged or shown: sampled or mode, by default as it was trained."""
    sampled = config.eval_sampled == "true"
    if config.eval_sampled == "auto":
        sampled = agents.get(config.agent_name).samples(config.agent, model.action_space)
    return SAMPLED if sampled else MODE


def limits_of(config: TrainConfig, seed: int) -> dict[str, Any]:
    """What `play` takes of a run besides its policy."""
    return {
        "seed": seed,
        "max_steps": config.eval_steps,
        "goal": goal_of(config),
        "max_episode_steps": config.max_episode_steps,
        "options": config.env_options,
    }


def goal_of(config: TrainConfig) -> Goal | None:
    """The goal, known to the environment's family, that a reward of this run names."""
    prompts = set()
    for options in config.reward.values():
        prompts.add(getattr(options, "goal", ""))
    prompts.discard("")
    for goal in goals(config.env):
        if goal.prompt in prompts:
            return goal
    # A prompt in words of the user's own is scored by the family's first goal.
    return next(iter(goals(config.env)), None) if prompts else None


def policy(model: Any, run: TrainConfig | None = None, *, way: str = "", seed: int = 0) -> "Act":
    """The policy of an agent, which keeps an LSTM's state between calls.

    It acts in the way that is given, else as its run is judged (`way_of`), else by its mode; the sampled actions of an
    episode depend on the seed and its number alone. It takes one observation and a bool, or a batch and an array (N,),
    and the action mask that came with it. Actions are of the type that the environment samples: a number, not the
    array () that Stable-Baselines3 predicts.
    """
    if not way:
        way = MODE if run is None else way_of(run, model)
    state: Any = None
    episodes = itertools.count(SEED + 1000 * seed)

    def act(obs: Any, begins: Any, mask: Any = None) -> Any:
        nonlocal state
        start = np.atleast_1d(begins)
        if start.all():
            state = None
            if way == SAMPLED:
                # An episode that is cut short for `mfmc` then begins as the whole one does.
                reseed(model, next(episodes))
        options = {"state": state, "episode_start": start, "deterministic": way == MODE}
        # Only some of Stable-Baselines3's agents have this attribute.
        if getattr(model, "masked", False):
            options["mask"] = mask
        action, state = model.predict(obs, **options)
        return np.asarray(action, model.action_space.dtype)[()]

    return act


def reseed(model: Any, seed: int) -> None:
    """Draw a policy's sampled actions from a seed: the same evaluation gives the same numbers."""
    from stable_baselines3.common.utils import set_random_seed

    from agents.base import BaseAgent

    if isinstance(model, BaseAgent):
        model.reseed(seed)
        return
    # Stable-Baselines3's policies draw from the global generators.
    set_random_seed(seed)


def interval(values: list[float], possible: tuple[float, float] | None = None) -> tuple[float, float]:
    """95 % interval of the IQM, in the possible range; the value itself where there is one only."""
    estimate = statistics.aggregate([np.asarray(values)])
    if len(values) == 1:
        return estimate.value, estimate.value
    if possible is not None:
        estimate = statistics.clip_interval(estimate, *possible)
    return float(estimate.low), float(estimate.high)


def disagreement(closing: dict[str, Any], training: Sequence[float]) -> str:
    """A sentence where the closing returns and the last ones of training differ beyond both intervals, else "".

    As many episodes of training are looked at as there are closing ones: earlier ones are of a policy that knew less.
    """
    after = closing["returns"]
    before = list(training)[-len(after) :]
    if min(len(after), len(before)) < 2:
        return ""
    training_mean = statistics.mean_interval(before)
    closing_mean = statistics.mean_interval(after)
    # Positive where the intervals do not meet. Rewards are of single precision, so rounding is no gap.
    gap = max(training_mean.low - closing_mean.high, closing_mean.low - training_mean.high)
    if gap <= 1e-6 * abs(training_mean.value):
        return ""
    why = "both are sampled, so the policy or the world of the episodes has changed since"
    if closing["actions"] == MODE:
        why = "training explores by random actions, and these are the policy's mode"
    return (
        f"note: the last {len(before)} episodes of training had a mean task return of "
        f"{_estimate_text(training_mean)}, these {len(after)} have {_estimate_text(closing_mean)}, "
        f"beyond both 95 % intervals: {why}"
    )


def _estimate_text(estimate: statistics.Estimate) -> str:
    return f"{estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"


def table(columns: dict[str, dict[str, Any]]) -> str:
    """Scores side by side: one column per policy."""
    head = [""]
    marks = []
    cut = []
    for name, column in columns.items():
        sentences = no_label_sentences(column)
        head.append(f"{name}*" if sentences else name)
        marks += [f"* {name}: {sentence}" for sentence in sentences]
        if column.get("cut"):
            cut.append(f"{column['cut']} of {column['episodes']} of {name}")
    lines = [head, *_table_rows(columns)]
    widths = [max(map(len, cells)) for cells in zip(*lines)]
    text = []
    for words, *cells in lines:
        text.append("  ".join(["", words.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]))
    text += marks
    if cut:
        text.append(
            f"episodes that had not ended after eval_steps, where they were cut: {', '.join(cut)}; "
            "max_episode_steps=1000, say, gives the environment a time limit"
        )
    if any(name.startswith(TOLD) for name in columns):
        text.append("told: a user's success is that their own judge prefers the end to a random policy's, same start")
    return "\n".join(text)


def _table_rows(columns: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The words and the values of each row of the table, without those that no policy has."""
    goal = next((column["goal"] for column in columns.values() if column["goal"]), None)
    keys = {
        "actions": "actions",
        "episodes": "episodes",
        "task return": "task_return",
        "task return, IQM": "task_return_iqm",
        "95 % interval of the IQM": "task_return_interval",
        f"steps with goal '{goal}'": "goal_steps",
        "success": "success",
        "episode length": "length",
    }
    # A result.json of an earlier version does not say how its policies acted, and has no metrics.
    values = []
    for words, key in keys.items():
        values.append((words, [column.get(key) for column in columns.values()]))
    measured = [column.get("metrics") or {} for column in columns.values()]
    for name in measured[0]:
        values.append((name, [metrics.get(name) for metrics in measured]))
    rows = []
    for words, numbers in values:
        if words == "episodes":
            # Where all policies have as many episodes, the line above the table says how many.
            if len(set(numbers)) > 1:
                rows.append([words, *map(str, numbers)])
        elif numbers.count(None) < len(numbers):
            rows.append([words, *map(_number_text, numbers)])
    return rows


def _number_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " to ".join(map(_number_text, value)) or "-"
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"
