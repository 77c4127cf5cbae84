"""The report card of a reward, before any training: does it tell what you want from what you do not want?

    python -m runners.compare env=lodestar/CartPoleUpright-v0 reward=clip
    python -m runners.compare env=lodestar/CartPoleUpright-v0 reward=clip reward.clip.goal="the pole is lying down"
    python -m runners.compare env=lodestar/PendulumUpright-v0 reward=clip,contrast frames=4000

keys:
    env=ID, env.<option>=   the environment, as in runners.train
    reward=NAME[,NAME]      one reward, or several side by side with their distances to each other
    reward.<name>.<option>= as in runners.train; weight, scale and shape are left out of the comparison
    goal=NAME               the goal whose truth is compared with; the environment's first
    frames=2000             transitions to ask about
    seed=0                  of the transitions, the actions and the reward
    run=FOLDER              a run whose policy makes some of the transitions
    horizon=K               also how far one must look ahead to solve the task under the reward, up to K actions
    solved=RETURN           the task's return that counts as solved there; the environment's own success
    warm=N                  passes of `update` over the transitions before they are scored
    page=FILE               where the page goes; runs/compare/<env>/<reward>.html

Prints a table and writes one page of HTML that needs no other file. Transitions and embeddings are kept beside the
page, so a second sentence about the same pictures takes no time. The exit code does not depend on the verdict.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runners.run.config import UsageError, unknown

if TYPE_CHECKING:
    from envs.family import Goal
    from rewards.base import RewardConfig
    from runners.compare.card import Card
    from runners.compare.sample import Plan
    from runners.compare.subject import Subject

KEYS = {"env": "", "reward": "", "goal": "", "frames": "2000", "seed": "0", "run": "", "warm": "", "page": ""}
KEYS |= {"horizon": "0", "solved": ""}
WIDTH = 100  # of the table, letters


def main(argv: list[str] | None = None) -> int:
    """Compare; returns the exit code."""
    from runners.run.exits import USAGE, explain

    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or any(a in ("-h", "--help") for a in arguments):
        print(__doc__)
        return 0 if arguments else USAGE
    try:
        page = compare(arguments)
    except Exception as error:
        code, sentence = explain(error, "set-up")
        if not sentence:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        return code
    print(f"page: {page}")
    return 0


def compare(arguments: list[str]) -> Path:
    """Ask every reward that is named, print what they say, and write the page.

    Raises:
        UsageError: one sentence about the first thing that is wrong.
    """
    import torch

    from envs.make import goals
    from runners.compare.card import card
    from runners.compare.page import write
    from runners.compare.sample import load_or_walk
    from runners.run.malloc import keep_freed_memory

    options, rest = parse(arguments)
    torch.set_num_threads(1)
    keep_freed_memory()
    configs = compose(options, rest)
    subjects, cards = [], []
    known = goals(options["env"])
    for subject, goal in ask(options, configs):
        wanted = "" if goal is None else known[goal].name
        world = None if subject.stream.has_memory else load_or_walk(subject.plan)
        subjects.append(subject)
        cards.append(card(subject, goal, world, wanted))
    if options["horizon"] != "0":
        _look_ahead(options, configs, subjects, cards)
    between = apart(subjects)
    print("\n".join(lines(options["env"], cards, between)))
    path = Path(options["page"]) if options["page"] else subjects[0].plan.folder / f"{'+'.join(configs)}.html"
    return write(path, options["env"], subjects, cards, between)


def _look_ahead(options: dict[str, str], configs: dict[str, Any], subjects: list[Subject], cards: list[Card]) -> None:
    """Write the effective horizon under each reward into its card."""
    from runners.compare.horizon import ask, words

    k, solved = int(options["horizon"]), float(options["solved"]) if options["solved"] else None
    own = configs[subjects[0].name].env_options
    task = ask(options["env"], k, solved, options=own)
    for subject, made in zip(subjects, cards):
        config = configs[subject.name].reward[subject.name]
        found = ask(options["env"], k, solved, subject.reward, config, configs[subject.name].env_options)
        made["horizon"] = words(found, task)


def parse(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Our own keys with their values, and the arguments that describe rewards and environment.

    Raises:
        UsageError: for an unknown key, or a number out of range.
    """
    options, rest = dict(KEYS), []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key in KEYS and equals:
            options[key] = value
        elif key.startswith(("reward.", "env.")) or key == "max_episode_steps":
            rest.append(argument)
        else:
            raise UsageError(unknown("key", key, KEYS))
    if not options["env"]:
        raise UsageError("env= is missing, as in env=lodestar/CartPoleUpright-v0")
    if not options["reward"]:
        raise UsageError("reward= is missing, as in reward=clip; `python -m runners.list` names the rewards")
    for key, low in (("frames", 20), ("seed", 0), ("warm", 0), ("horizon", 0)):
        value = options[key]
        if not (key == "warm" and value == "") and (not value.isdigit() or int(value) < low):
            raise UsageError(f"{key}={value} is out of range; give a whole number, {low} or more")
    try:
        float(options["solved"] or 0)
    except ValueError:
        raise UsageError(f"solved={options['solved']} is no return; give a number, such as solved=195") from None
    return options, rest


def compose(options: dict[str, str], rest: list[str]) -> dict[str, Any]:
    """Reward name -> the configuration of a run with that reward alone, its sentences about the goal that is asked for.

    Raises:
        UsageError: for a reward, option or goal that does not exist.
    """
    import rewards
    from envs.make import goals
    from runners.cli.compose import compose as compose_run

    names = [name.strip() for name in options["reward"].strip("[]").split(",") if name.strip()]
    for name in names:
        if name not in rewards.names():
            raise UsageError(unknown("reward", name, rewards.names()))
    chosen = _chosen(options, goals(options["env"]))
    given = {argument.partition("=")[0] for argument in rest}
    for key in given:
        if key.startswith("reward.") and key.split(".")[1] not in names:
            raise UsageError(f"{key} belongs to a reward that is not compared ({', '.join(names)})")
    configs = {}
    for name in dict.fromkeys(names):
        own = [a for a in rest if not a.startswith("reward.") or a.startswith(f"reward.{name}.")]
        fields = {field: f"reward.{name}.{field}" for field in ("goal", "baseline", "negative")}
        config = rewards.get(name).Config
        if chosen is not None and fields["goal"] not in given:
            sentences = {"goal": chosen.prompt, "baseline": chosen.baseline, "negative": chosen.negative}
            for field, sentence in sentences.items():
                if hasattr(config, field) and sentence and fields[field] not in given:
                    own.append(f"{fields[field]}={_quoted(sentence)}")
        configs[name] = compose_run([f"env={options['env']}", f"reward=[{name}]", "preset=none", *own])[0]
    return configs


def _quoted(sentence: str) -> str:
    return '"' + sentence.replace('"', '\\"') + '"'


def _chosen(options: dict[str, str], known: list[Goal]) -> Goal | None:
    """The goal that `goal=` names; None where nothing was said."""
    if not options["goal"]:
        return None
    if not known:
        raise UsageError(
            f"goal={options['goal']} cannot be looked up: no goals are known for {options['env']}; "
            "leave goal out, and rewards are compared with the task's own"
        )
    names = {goal.name: goal for goal in known}
    if options["goal"] not in names:
        raise UsageError(f"goal={options['goal']} is unknown; {options['env']} has {', '.join(names)}")
    return names[options["goal"]]


def ask(options: dict[str, str], configs: dict[str, Any]) -> Iterator[tuple[Subject, int | None]]:
    """Each reward with its scores, and the index of the goal it is held against; None where there is no goal."""
    import rewards
    from envs.make import goals, make
    from runners.compare.sample import PICTURE, Plan, load_or_take
    from runners.compare.subject import Subject
    from runners.run.video import can_be_drawn

    first = next(iter(configs.values()))
    env = make(options["env"], max_episode_steps=first.max_episode_steps, **first.env_options)
    spaces = (env.observation_space, env.action_space)
    env.close()
    seed = int(options["seed"])
    built = {name: rewards.get(name)(c.reward[name], *spaces, seed=seed) for name, c in configs.items()}
    need = frozenset().union(*(reward.requires for reward in built.values()))
    plan = Plan(
        options["env"],
        first.env_options,
        int(options["frames"]),
        seed,
        PICTURE if can_be_drawn(options["env"]) else None,
        "text" in need,
        "signals" in need,
        options["run"],
        first.max_episode_steps,
        "obs_frame" in need,
    )
    known = goals(options["env"])
    for name, reward in built.items():
        own = _sized(plan, reward)
        index = _index(options, known, configs[name].reward[name])
        warm = int(options["warm"]) if options["warm"] else None
        yield Subject(name, configs[name].reward[name], spaces, own, load_or_take(own), warm=warm, seed=seed), index


def _sized(plan: Plan, reward: Any) -> Plan:
    """The plan with frames of the size that a reward wants."""
    import dataclasses

    if "frame" not in reward.requires or reward.frame_size is None:
        return plan
    return dataclasses.replace(plan, frame_size=reward.frame_size)


def _index(options: dict[str, str], known: list[Goal], config: RewardConfig) -> int | None:
    """The goal asked for, else the one whose sentence the reward has, else the first."""
    if not known:
        return None
    prompt = getattr(config, "goal", "")
    matches = [i for i, goal in enumerate(known) if goal.name == options["goal"] or goal.prompt == prompt]
    named = [i for i, goal in enumerate(known) if goal.name == options["goal"]]
    return next(iter([*named, *matches]), 0)


def apart(subjects: list[Subject]) -> dict[tuple[str, str], tuple[float, float]]:
    """Pair of rewards -> EPIC distance (of states) and STARC distance on the sample's distribution."""
    from rewards import compare as distances
    from runners.compare.subject import FITTED

    found = {}
    for i, one in enumerate(subjects):
        for other in subjects[i + 1 :]:
            rows = one.sample.counted
            batch = one.sample.batch[np.isin(one.sample.source, (0, 1))]
            acted = np.isin(one.sample.source, (0, 1))
            now, after = distances.state_features(batch)
            starc = distances.starc_on_distribution(
                one.values[acted], other.values[acted], now, after, batch.terminated, **FITTED
            )
            found[one.name, other.name] = (distances.epic(one.values[rows], other.values[rows]), starc)
    return found


def lines(env: str, cards: list[Card], between: dict[tuple[str, str], tuple[float, float]]) -> list[str]:
    """What the terminal shows."""
    shown = []
    for made in cards:
        shown += [f"{made['name']} on {env}", f"  VERDICT: {made['verdict']}: {'; '.join(made['reasons'])}"]
        shown += [f"  {name:<30}{value}" for name, value in facts(made)]
        for row in made["controls"]:
            shown.append(f"  {'control: ' + row['kind']:<30}{control_text(row)}   {row['sentence']!r}"[: WIDTH + 40])
        shown += [f"  note: {note}" for note in made["notes"]]
        shown.append("")
    for (one, other), (epic, starc) in between.items():
        shown.append(f"{one} and {other}: EPIC {epic:.3f}, STARC {starc:.3f} (on the sample's distribution)")
    return shown


def facts(made: Card) -> list[tuple[str, str]]:
    """The card as rows of name and value, for the terminal and the page."""
    truth, task, starc = made["truth"], made["task"], made["starc"]
    against = truth or task
    rows = [(name, repr(text)) for name, text in made["sentences"].items()]
    rows.append(("asked about", f"{made['rows']:,} transitions: {made['about']}"))
    if truth:
        area = "no AUROC" if np.isnan(truth["auroc"]) else f"AUROC {truth['auroc']:.3f} {_interval(truth, 'auroc')}"
        rows.append(("goal or not", f"{area}; {made['met']:.1%} of the states meet the goal"))
    correlation = f"Pearson {against['pearson']:.3f} {_interval(against, 'pearson')}, "
    rows.append((f"with {made['target']}", f"{correlation}Spearman {against['spearman']:.3f}"))
    epic = [f"{made['epic']['distance']:.3f} ({made['epic']['kind']})"] if made["epic"] else []
    epic += [f"{truth['epic_goal']:.3f} to goal or not"] if truth else []
    rows.append(("EPIC distance", ", ".join(epic) or "cannot be asked of this reward"))
    far = f"{starc['distance']:.3f} {_interval(starc, 'distance')} ({starc['kind']})" if starc else "none: it remembers"
    rows.append(("STARC distance", far))
    if truth:
        rows.append(("with the task's reward", f"Pearson {task['pearson']:.3f}"))
    quantiles = " / ".join(f"{q:.3g}" for q in made["range"])
    rows.append(("range", f"{quantiles} (min, 5 %, median, 95 %, max); {made['nonzero']:.0%} not zero"))
    if made["spread"] is not None:
        rows.append(("spread", f"{made['spread']:.0%} of the spread of the model's own phrases"))
    if made["phrases"]:
        rows.append(("nearest phrases", ", ".join(f"{text!r} {value:.2f}" for text, value in made["phrases"])))
    if "horizon" in made:
        rows.append(("effective horizon", made["horizon"]))
    return [*rows, *_costs(made)]


def _interval(values: Card, name: str) -> str:
    low, high = values.get(f"{name}_interval", (np.nan, np.nan))
    return "" if np.isnan(low) else f"[{low:.3f}, {high:.3f}]"


def _costs(made: Card) -> list[tuple[str, str]]:
    speed = made["speed"]
    rates = [f"{name} {speed[name]:,.0f}" for name in ("step", "render", "embed", "score") if speed[name]]
    seconds = 100_000 * sum(1 / speed[name] for name in ("step", "render", "embed", "score") if speed[name])
    kept, frames = speed["bytes"], speed["bytes_with_frames"]
    memory = f"{kept * 2048 / 1e6:.3g} MB a rollout of 2,048, {kept * 1e5 / 1e6:.3g} MB a replay of 100,000"
    if frames > kept:
        memory += f" (with frames {frames * 1e5 / 1e9:.3g} GB)"
    return [
        ("rows a second", f"{', '.join(rates)}; 100,000 steps take about {seconds:,.0f} s"),
        ("memory", memory),
        ("blank frames", f"{made['blank']:.1%}"),
    ]


def control_text(row: Card) -> str:
    """A control's numbers, or why it has none."""
    if "error" in row:
        return row["error"]
    area = f"AUROC {row['auroc']:.2f}, " if not np.isnan(row.get("auroc", np.nan)) else ""
    return f"{area}Pearson {row['pearson']:+.2f}, range {row['low']:.2f} to {row['high']:.2f}"


if __name__ == "__main__":
    sys.exit(main())
