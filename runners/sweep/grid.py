"""The grid of a sweep: `env=A,B reward=task,rnd,[task,clip] 'seed=range(5)'` -> one job for every combination.

A value is written as Hydra writes it: alternatives stand behind commas, [a,b] is one value, and so is a quoted
sentence. Options of an agent, a reward or an environment that a job does not use are left out for that job, and what
then is twice the same runs once. Every job's configuration is composed here, before anything runs.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agents
from envs.make import options
from runners.cli.compose import ENV, chosen, compose, environment
from runners.cli.value import MAX_LENGTH, literal, override, parse
from runners.run.config import TrainConfig, UsageError, to_dict
from runners.run.folder import has_key, read_status
from runners.sweep.job import Job

JOBS = "jobs"  # the folder of the runs, in that of the sweep
MAX_JOBS = 10_000
MAX_NAME = 80  # characters of a folder's name; file systems take 255


def expand(argv: list[str], folder: Path, gpus: float = 0.0) -> list[Job]:
    """Every combination of the alternatives in `argv`, each cell's first seed before any second; or a UsageError."""
    choices = dict(map(alternatives, argv))
    if math.prod(map(len, choices.values())) > MAX_JOBS:
        raise UsageError(f"the grid has more than {MAX_JOBS:,} jobs; take some alternatives away")
    seeds = choices.pop("seed", [])
    numbers = list(dict.fromkeys(parse("seed", text, int) for text in seeds or ["0"]))
    cells = _cells(choices, next(iter(seeds), "0"))
    jobs = []
    for number, (name, (given, config)) in itertools.product(numbers, cells.items()):
        config = dataclasses.replace(config, seed=number)
        extra = {"seed": str(number)} if seeds else {}
        extra |= {} if number == min(numbers) or "video" in given else {"video": "false"}
        jobs.append(make_job(f"{name}/s{number}", given | extra, config, folder, gpus))
    return jobs


def alternatives(argument: str) -> tuple[str, list[str]]:
    """`key=a,b` -> the key, and the alternatives as texts that runners.train reads the same way; else a UsageError."""
    key, equals, text = argument.partition("=")
    if not equals:
        chosen([argument])  # refuses it in a sentence
    found = override(text) if len(text) <= MAX_LENGTH else None  # None for a sentence with its own commas or quotes
    if found is None or not found.is_sweep_override():
        return key, [text]
    if not (found.is_choice_sweep() or found.is_range_sweep()):
        raise UsageError(
            f"{argument} cannot be counted; give alternatives, as in {key}=0.001,0.0003, or a range of whole numbers, "
            "as in 'range(5)' (runners.tune searches intervals)"
        )
    values = itertools.islice(_flat(found), MAX_JOBS + 1)
    texts = list(dict.fromkeys(map(_text, values)))
    if not texts:
        raise UsageError(f"{argument} is an empty range; give one with a number in it, as in 'range(5)'")
    return key, texts


def _flat(override: Any) -> Iterator[Any]:
    """The values of a choice or a range, and of the ranges in a choice."""
    for value in override.sweep_iterator():
        yield from value.range() if type(value).__name__ == "RangeSweep" else [value]


def _text(value: Any) -> str:
    """A value as one argument says it; plain words stay plain."""
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, str):
        return value
    quoted = getattr(value, "text", None)
    return literal(value if quoted is None else str(quoted))


def _cells(choices: dict[str, list[str]], seed: str) -> dict[str, tuple[dict[str, str], TrainConfig]]:
    """What differs in more than the seed, by name: its arguments and its configuration."""
    swept = [key for key, texts in choices.items() if len(texts) > 1]
    points = [dict(zip(choices, texts)) for texts in itertools.product(*choices.values())]
    cells: dict[str, tuple[dict[str, str], TrainConfig]] = {}
    for given in _used(points):
        try:
            config, _ = compose([f"{key}={text}" for key, text in {**given, "seed": seed}.items()])
        except UsageError as error:
            job = " ".join(f"{key}={given[key]}" for key in swept if key in given)
            raise UsageError(f"{error}" + (f" (in the job {job})" if job else "")) from None
        name = _name(config, {key: given[key] for key in swept if key in given})
        if name in cells and _digest(cells[name][1]) != _digest(config):  # a/b and a-b are one folder's name
            name = f"{name}-{_digest(config)[:6]}"
        cells.setdefault(name, (given, config))
    return cells


def _used(points: list[dict[str, str]]) -> list[dict[str, str]]:
    """Without the options that belong to what another job uses and this one does not; each once."""
    picks = [chosen([f"{key}={text}" for key, text in given.items()]) for given in points]
    fields = {name: {f.name for f in dataclasses.fields(agents.get(name).Config)} for name, _ in picks}
    rewards = {name for _, names in picks for name in names}
    with_options = {given["env"] for given in points if any(key.startswith(ENV) for key in given)}
    known = {env: set(options(environment(env))) for env in sorted(with_options)}  # an unknown one is refused now
    kept = []
    for given, (agent, names) in zip(points, picks):
        mine = {"agent": fields[agent], "reward": {*names}, "env": known.get(given.get("env", ""), set())}
        theirs = {"agent": set().union(*fields.values()), "reward": rewards, "env": set().union(*known.values())}
        foreign = {kind: theirs[kind] - mine[kind] for kind in mine}
        kept.append({k: v for k, v in given.items() if [*k.split("."), ""][1] not in foreign.get(k.split(".")[0], ())})
    return [dict(items) for items in dict.fromkeys(tuple(given.items()) for given in kept)]


def _name(config: TrainConfig, options: dict[str, str]) -> str:
    """The folder of a cell: its environment, its agent and rewards, and the options that are swept."""
    own = [f"{key.removeprefix('agent.').removeprefix('reward.')}={text}" for key, text in options.items()
           if key not in ("env", "reward", "agent")]  # fmt: skip
    parts = [config.env, f"{config.agent_name}-{config.rewards}", ",".join(own)]
    return "/".join(map(safe, filter(None, parts)))


def safe(text: str) -> str:
    """A text as the name of a folder: readable, and without a path."""
    name = re.sub(r"[^\w.=+,-]+", "-", text, flags=re.ASCII).strip("-.")
    if len(name) > MAX_NAME or not name:
        name = f"{name[: MAX_NAME - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}".lstrip("-")
    return name


def _digest(config: TrainConfig) -> str:
    return hashlib.sha256(json.dumps(to_dict(config), sort_keys=True).encode()).hexdigest()


def make_job(name: str, given: dict[str, str], config: TrainConfig, folder: Path, gpus: float) -> Job:
    """The job, if its folder has no other run in it."""
    place = folder.absolute() / JOBS / name
    status = read_status(place)
    if status and not has_key(place, {"key": config.key(), **status}, config.key()):
        raise UsageError(f"{place} holds a run with another configuration; give another name=")
    plain = re.fullmatch(r"[\w./=,+-]+", str(place))
    arguments = {"control": "none", **given, "run_dir": str(place) if plain else literal(str(place))}
    return Job(name, tuple(f"{key}={text}" for key, text in arguments.items()), place, gpus)
