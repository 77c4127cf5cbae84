"""The grid of a sweep: `env=A,B reward=task,rnd,[task,clip] 'seed=range(5)'` -> one job for every combination.

A value is written as Hydra writes it: alternatives stand behind commas, [a,b] is one value, and so is a quoted
sentence. Options of an agent, a reward or an environment that a job does not use are left out for that job, and what
then is twice the same runs once. Every job's configuration is composed here, before anything runs.
"""

import dataclasses
import hashlib
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agents
from envs.make import options
from runners.cli.compose import ENV, choose_agent_and_rewards, compose, environment
from runners.run.checkpoint import digest
from runners.run.config import TextValues, TrainConfig, UsageError, assignments, to_dict
from runners.run.folder import has_key, read_status
from runners.run.value import MAX_VALUE_LENGTH, literal, override, parse
from runners.sweep.job import Job

# The folder of the runs, in that of the sweep.
JOBS_FOLDER = "jobs"
MAX_JOBS = 10_000
# Characters of a folder's name; file systems take 255.
MAX_FOLDER_NAME = 80


def expand(argv: list[str], folder: Path, gpus: float = 0.0) -> list[Job]:
    """Every combination of the alternatives in `argv`, each cell's first seed before any second; or a UsageError."""
    choices = dict(map(alternatives, argv))
    if math.prod(map(len, choices.values())) > MAX_JOBS:
        raise UsageError(f"the grid has more than {MAX_JOBS:,} jobs; take some alternatives away")
    has_seeds = "seed" in choices
    seed_texts = choices.pop("seed", ["0"])
    seeds = list(dict.fromkeys(parse("seed", text, int) for text in seed_texts))
    cells = _cells(choices, seed_texts[0])
    jobs = []
    for seed in seeds:
        for name, (given, config) in cells.items():
            arguments = dict(given)
            if has_seeds:
                arguments["seed"] = str(seed)
            # One video a cell is enough.
            if seed != min(seeds):
                arguments.setdefault("video", "false")
            jobs.append(make_job(f"{name}/s{seed}", arguments, dataclasses.replace(config, seed=seed), folder, gpus))
    return jobs


def alternatives(argument: str) -> tuple[str, list[str]]:
    """`key=a,b` -> the key, and the alternatives as texts that runners.train reads the same way; else a UsageError."""
    key, equals, text = argument.partition("=")
    if not equals:
        # It is no key=value, which this refuses in a sentence.
        choose_agent_and_rewards([argument])
    # None for a sentence with commas or quotes of its own.
    parsed = override(text) if len(text) <= MAX_VALUE_LENGTH else None
    if parsed is None or not parsed.is_sweep_override():
        return key, [text]
    if not (parsed.is_choice_sweep() or parsed.is_range_sweep()):
        raise UsageError(
            f"{argument} cannot be counted; give alternatives, as in {key}=0.001,0.0003, or a range of whole numbers, "
            "as in 'range(5)' (runners.tune searches intervals)"
        )
    # A range may be endless in practice; one value too many is enough for `expand` to refuse it.
    values = itertools.islice(_flatten(parsed), MAX_JOBS + 1)
    texts = list(dict.fromkeys(map(_argument_text, values)))
    if not texts:
        raise UsageError(f"{argument} is an empty range; give one with a number in it, as in 'range(5)'")
    return key, texts


def _flatten(override: Any) -> Iterator[Any]:
    """The values of a choice or a range, and of the ranges in a choice."""
    for value in override.sweep_iterator():
        yield from value.range() if type(value).__name__ == "RangeSweep" else [value]


def _argument_text(value: Any) -> str:
    """A value as one argument says it; plain words stay plain."""
    if isinstance(value, list):
        return f"[{','.join(map(_argument_text, value))}]"
    if isinstance(value, str):
        return value
    # Hydra gives a text that was quoted as an object of its own.
    return literal(getattr(value, "text", value))


def _cells(choices: dict[str, list[str]], seed: str) -> dict[str, tuple[TextValues, TrainConfig]]:
    """What differs in more than the seed, by name: its arguments and its configuration."""
    points = [dict(zip(choices, texts)) for texts in itertools.product(*choices.values())]
    cells: dict[str, tuple[TextValues, TrainConfig]] = {}
    for given in _used_points(points):
        swept = {}
        for key, text in given.items():
            if len(choices[key]) > 1:
                swept[key] = text
        try:
            config, _ = compose(assignments(given | {"seed": seed}))
        except UsageError as error:
            job = f" (in the job {' '.join(assignments(swept))})" if swept else ""
            raise UsageError(f"{error}{job}") from None
        name = _cell_name(config, swept)
        # The values a/b and a-b, for instance, give a folder the same name.
        values = to_dict(config)
        if name in cells and to_dict(cells[name][1]) != values:
            name = f"{name}-{digest(values)[:6]}"
        cells.setdefault(name, (given, config))
    return cells


def _used_points(points: list[TextValues]) -> list[TextValues]:
    """Without the options that belong to what another job uses and this one does not; each once."""
    picks = [choose_agent_and_rewards(assignments(given)) for given in points]
    # The options of environments cost an import, so they are read only where some are given.
    envs = set()
    for given in points:
        if any(key.startswith(ENV) for key in given):
            envs.add(given["env"])
    env_options = {env: set(options(environment(env))) for env in sorted(envs)}
    usable = []
    usable_by_any: dict[str, set[str]] = defaultdict(set)
    for given, (agent, rewards) in zip(points, picks):
        own = {"agent": {field.name for field in dataclasses.fields(agents.get(agent).Config)}, "reward": set(rewards)}
        own["env"] = env_options.get(given.get("env", ""), set())
        usable.append(own)
        for kind, names in own.items():
            usable_by_any[kind] |= names
    used = {}
    for given, own in zip(points, usable):
        point = {}
        for key, text in given.items():
            kind, *path = key.split(".")
            is_foreign = kind in own and path and path[0] in usable_by_any[kind] - own[kind]
            if not is_foreign:
                point[key] = text
        used[tuple(point.items())] = point
    return list(used.values())


def _cell_name(config: TrainConfig, swept: TextValues) -> str:
    """The folder of a cell: its environment, its agent and rewards, and the options that are swept."""
    short_keys = []
    for word in assignments(swept):
        if not word.startswith(("env=", "reward=", "agent=")):
            short_keys.append(word.removeprefix("agent.").removeprefix("reward."))
    parts = [config.env, f"{config.agent_name}-{config.rewards}", ",".join(short_keys)]
    return "/".join(map(folder_name, filter(None, parts)))


def folder_name(text: str) -> str:
    """A text as the name of a folder: readable, and without a path."""
    name = re.sub(r"[^\w.=+,-]+", "-", text, flags=re.ASCII).strip("-.")
    if len(name) > MAX_FOLDER_NAME or not name:
        name = f"{name[: MAX_FOLDER_NAME - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}".lstrip("-")
    return name


def make_job(name: str, given: TextValues, config: TrainConfig, folder: Path, gpus: float) -> Job:
    """The job, if its folder has no other run in it."""
    place = folder.absolute() / JOBS_FOLDER / name
    status = read_status(place)
    if status and not has_key(place, {"key": config.key(), **status}, config.key()):
        raise UsageError(f"{place} holds a run with another configuration; give another name=")
    run_dir = str(place)
    if not re.fullmatch(r"[\w./=,+-]+", run_dir):
        run_dir = literal(run_dir)
    arguments = {"control": "none", **given, "run_dir": run_dir}
    return Job(name, tuple(assignments(arguments)), place, gpus)
