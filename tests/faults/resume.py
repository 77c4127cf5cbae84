"""Is a run that was cut in two the run that was not? For every reward, and for every agent.

A run of 2N steps leaves a checkpoint at N. Its folder is copied, what came after N is deleted, and another process goes
on from there: whatever it knows, it knows from the folder. Then the two final checkpoints are laid side by side, number
by number: weights, optimisers, random generators, rewards, scales, replay, environments, and the rows of the log.

    python -m tests.faults resume            every pair, minutes
    python -m tests.faults same-seed         one seed, other processes, other backends

Rewards that ask a judge beside training (oni) are run with `clock=steps`, where answers come a fixed number of steps
after the question; with `clock=wall` they come when they come, and no two runs are alike. Servers and weights that do
not ship are left out: `oni` and `bradley_terry` with a language model, `subgoals` and `guidance` with a language model
(a simulated teacher and recorded goals stand in), `clip` and its kin with large models (the shipped one stands in).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import rewards
from envs.recording import SHIPPED_RECORDINGS
from lodestar.state import pack
from runners.train import main
from tests.faults import Fault, Found
from tests.faults.child import run, warm

HANGS = 600.0  # seconds after which a run is given up
SMALL = ("eval_episodes=0", "video=false", "control=none")
CARTPOLE, PENDULUM = ("env=CartPole-v1",), ("env=Pendulum-v1",)
UPRIGHT, GRID = ("env=lodestar/CartPoleUpright-v0",), ("env=MiniGrid-DoorKey-5x5-v0",)
TINY = ("features=8", "hidden=8", "warmup=100")  # of rewards that learn
GOAL = "goal=pole vertically upright on top of the cart"
SENTENCES = (GOAL, "negative=the pole is hanging down", "reference=50")

# reward -> where it is tried, and its options, for those that need any; see `trial`
REWARDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "clip": (UPRIGHT, (GOAL,)),
    "contrast": (UPRIGHT, SENTENCES),
    "progress_model": (UPRIGHT, (GOAL,)),
    "synthesis": (("env=highway-fast-v0", "env.vehicles_count=3"), (*SENTENCES, "history=3")),
    "progress": (PENDULUM, ("of=obs", "demos={demos}", "steps=20")),
    "discriminator": (PENDULUM, ("demos={demos}", *TINY)),
    "success": (PENDULUM, ("goals={demos}", "which=all", "online=true", "hidden=8", "batch_size=16")),
    "hilp": (PENDULUM, ("data={demos}", "hidden=8", "steps=20")),
    "self_reference": (CARTPOLE, ("threshold=15",)),
    "bradley_terry": (
        PENDULUM,
        ("length=4", "seed_steps=64", "every=64", "queries=8", "epochs=3", "hidden=8", "judge_options={mistakes: 0.1}"),
    ),
    "self_play": (
        CARTPOLE,
        ("seed_steps=64", "every=64", "queries=8", "epochs=3", "hidden=8", "judge_options={mistakes: 0.1}"),
    ),
    "debate": (PENDULUM, ("seed_steps=64", "every=64", "queries=8", "epochs=3", "hidden=8", "shown=2")),
    "two_level": (CARTPOLE, ("cheap=rnd", "every=64", "queries=3")),
    "users": (PENDULUM, ("length=4", "seed_steps=64", "every=64", "queries=8", "epochs=3", "latent=2", "user=all")),
    "oni": (PENDULUM, ("judge=rules", "clock=steps", "delay=40", "model=classification")),
    "motif": (PENDULUM, ("data={labels}",)),
    "rubric": (PENDULUM, ("principles=Left. | left", "delay=40")),
    "subgoals": (GRID, ("teacher_options={accuracy: 0.7}",)),
    "lare": (CARTPOLE, ("code=cartpole", "hidden=8", "layers=1", "subset=4", "batch_size=16", "steps=5")),
    "code": (CARTPOLE, ("file={coded}",)),
    "table": (CARTPOLE, ("file={tabled}",)),
    "stages": (CARTPOLE, ("file={staged}",)),
    "signal": (CARTPOLE, ("of=obs", "column=2", "below=0", "limit=0.2")),
    "guidance": (PENDULUM, ("goals=recorded", "answers={answers}", "every=5", "weight=1")),
}

# agent -> its options, whether its actions are continuous, and N: steps of a half
AGENTS: dict[str, tuple[tuple[str, ...], bool, int]] = {
    "ppo": (("n_envs=4", "agent.n_steps=32", "agent.batch_size=32", "agent.n_epochs=2"), False, 256),
    "sb3_ppo": (("n_envs=2", "agent.n_steps=32", "agent.batch_size=32", "agent.n_epochs=2"), False, 128),
    "recurrent_ppo": (("n_envs=2", "agent.n_steps=32", "agent.batch_size=32", "agent.n_epochs=1"), False, 128),
    "dqn": (("agent.learning_starts=50", "agent.buffer_size=200", "agent.target_update_interval=60"), False, 150),
    "sac": (("agent.learning_starts=50", "agent.buffer_size=200", "agent.batch_size=16"), True, 120),
    "td3": (("agent.learning_starts=50", "agent.buffer_size=200", "agent.batch_size=16"), True, 120),
    "dyna": (
        (
            *("agent.model_hidden=[16]", "agent.net_arch=[16]", "agent.batch_size=16", "agent.members=2"),
            *("agent.model_steps=20", "agent.learning_starts=50", "agent.updates_per_step=1"),
            *("agent.rollouts_per_step=4", "agent.rollout=40"),
        ),
        True,
        120,
    ),
    "world_model": (
        (
            *("agent.preset=mrq", "agent.latent=16", "agent.hidden=16", "agent.embed=16", "agent.batch_size=16"),
            *("agent.learning_starts=20", "agent.rollout=10", "n_envs=2"),
        ),
        True,
        60,
    ),
    "sqirl": (("n_envs=4", "agent.episodes=4", "agent.net_arch=[8]", "agent.epochs=1"), False, 400),
}
EVERY = ("task", "rnd", "ngu", "clip", "oni")  # rewards that every agent is tried with
LIGHT = ("task", "rnd", "ngu", "oni")  # those of them that the tests try
ELSEWHERE = {"clip": (("env=lodestar/PendulumUpright-v0",), ("goal=the pendulum is upright",))}  # continuous actions
QUICK = ("task", "rnd", "ngu", "clip", "bradley_terry", "oni", "subgoals", "lare")  # with PPO, in the tests


def trial(reward: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where a reward is tried, and its options: CartPole with small networks unless `REWARDS` names something else."""
    fields = {option.partition("=")[0] for option in TINY}
    learns = fields <= {field.name for field in dataclasses.fields(rewards.get(reward).Config)}
    return REWARDS.get(reward, (CARTPOLE, TINY if learns else ()))


def pairs(quick: bool) -> list[tuple[str, str]]:
    """Agents and rewards that are tried."""
    found = [("ppo", name) for name in (QUICK if quick else rewards.TABLE)]
    others = [name for name in AGENTS if name != "ppo"]
    if quick:
        return found + [(agent, LIGHT[index % len(LIGHT)]) for index, agent in enumerate(others, start=1)]
    found += [(agent, reward) for agent in others for reward in EVERY]
    return [pair for pair in found if pair != ("sqirl", "clip")]  # so short a run has no moment to save in its middle


def command(agent: str, reward: str, folder: Path) -> list[str]:
    """What `runners.train` is given, but for run_dir; files that a reward reads are made in `folder`."""
    options, continuous, half = AGENTS[agent]
    world, own = trial(reward)
    if continuous:
        world = PENDULUM
        if reward in ELSEWHERE:
            world, own = ELSEWHERE[reward]
    elif agent in ("dqn", "sqirl") and world == PENDULUM:
        world = CARTPOLE
    for name, path in files(folder).items():
        own = tuple(option.replace(f"{{{name}}}", str(path)) for option in own)
    told = [f"reward.{reward}.{option}" for option in own]
    names = "task" if reward == "task" else f"[task,{reward}]"
    steps = [f"total_timesteps={2 * half}", f"checkpoint_every={half}", f"log_every={half // 2}"]
    return [*world, f"agent={agent}", *options, f"reward={names}", *told, *steps, *SMALL]


def files(folder: Path) -> dict[str, Path]:
    """What rewards read: a recording that ships, labels and answers in words that Pendulum's captions use."""
    from envs.make import make

    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "demos": SHIPPED_RECORDINGS / "pendulum.safetensors",
        "labels": folder / "labels.jsonl",
        "answers": folder / "answers.jsonl",
        "coded": folder / "coded.py",
        "tabled": folder / "table.json",
        "staged": folder / "stages.py",
    }
    if made["answers"].is_file():
        return made
    made["tabled"].write_text('{"states": [[0, 0, 0, 0], [1, 1, 1, 1]], "rewards": [[1, 2], [3, 4]]}')
    made["staged"].write_text('def stages(next_obs):\n    return {"far": next_obs[:, 0]}\n')
    made["coded"].write_text('def reward(obs, action, next_obs):\n    return {"first": next_obs[:, 0]}\n')
    env = make("Pendulum-v1", text=True)
    env.reset(seed=0)
    env.action_space.seed(0)
    texts = list(dict.fromkeys(env.step(env.action_space.sample())[4]["text"] for _ in range(300)))
    env.close()
    labels = [{"text": text, "value": float("left" in text)} for text in texts]
    told = [[text] for text in texts] + [list(two) for two in itertools.pairwise(texts)]
    answers = [{"told": heard, "goal": f"leave this: {heard[-1]}"} for heard in told]
    for name, rows in (("labels", labels), ("answers", answers)):
        made[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def twice(argv: list[str], folder: Path) -> tuple[float, str]:
    """The largest difference between the run and the one that was cut in two, and where it is.

    Raises:
        RuntimeError: if a run fails, with its last words.
    """
    whole, half = folder / "whole", folder / "half"
    _must(argv, whole)
    shutil.copytree(whole, half)
    checkpoints = sorted((half / "checkpoints").glob("step_*"))
    if len(checkpoints) < 2:
        raise RuntimeError(f"{whole} holds {len(checkpoints)} checkpoint; there must be one in the middle")
    for later in checkpoints[1:]:
        shutil.rmtree(later)
    (half / "checkpoints" / "LATEST").write_text(checkpoints[0].name + "\n")
    status = json.loads((half / "status.json").read_text())
    (half / "status.json").write_text(json.dumps({**status, "state": "running"}))
    _must(argv, half)
    return difference(whole, half)


def _must(argv: list[str], folder: Path) -> None:
    out = folder.with_suffix(".txt")
    out.parent.mkdir(parents=True, exist_ok=True)
    code, printed = run(lambda: main([*argv, f"run_dir={folder}"]), out, HANGS)
    if code != 0:
        words = printed.strip().splitlines()
        raise RuntimeError(f"`{' '.join(argv)}` ended with code {code}: {words[-1] if words else ''}")


def difference(one: Path, two: Path, rows: bool = True) -> tuple[float, str]:
    """How far the last checkpoints and, if `rows`, the logs of two run folders are apart, and where most.

    The largest absolute difference of two numbers; infinite where one is not a number and the other is something else,
    where words, shapes or kinds differ, and where something is on one side alone.
    """
    left_out = {} if rows else {"rows": None}
    sides = [dict(_leaves(_account(folder) | left_out, "")) for folder in (one, two)]
    worst, where = 0.0, ""
    for path in dict.fromkeys([*sides[0], *sides[1]]):
        gap = _gap(sides[0].get(path, _NOTHING), sides[1].get(path, _NOTHING))
        if gap > worst:
            worst, where = gap, path
    return worst, where


_NOTHING = object()


def _account(folder: Path) -> dict[str, Any]:
    """All that a run ends with, wall-clock times left out."""
    from runners.run import checkpoint
    from runners.run.progress import read_csv

    found = checkpoint.load(folder / "checkpoints")
    if found is None:
        raise RuntimeError(f"{folder} holds no checkpoint")
    rows = [{k: float(v or "nan") for k, v in r.items() if k not in _CLOCKS} for r in read_csv(folder / "metrics.csv")]
    return {"step": found[1], "state": found[0], "rows": rows}


_CLOCKS = ("time/fps", "time/time_elapsed")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not ("ep_info_buffer" in path and key == "t"):  # the second at which an episode ended
                yield from _leaves(part, f"{path}/{key}")
    elif isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or hasattr(value, "shape"):
        yield path, value
    else:
        yield f"{path}/length", len(value)
        for index, part in enumerate(value):
            yield from _leaves(part, f"{path}/{index}")


def _gap(one: Any, two: Any) -> float:
    if one is _NOTHING or two is _NOTHING:
        return np.inf
    a, b = np.asarray(one), np.asarray(two)
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.inf
    same = a == b
    if a.dtype.kind == "f":
        same |= np.isnan(a) & np.isnan(b)
    if bool(np.all(same)):
        return 0.0
    if a.dtype.kind not in "fiub":
        return np.inf
    gap = np.abs(a[~same].astype(np.float64) - b[~same].astype(np.float64)).max()
    return float(gap) if np.isfinite(gap) and gap > 0 else np.inf


def _resume(folder: Path, quick: bool) -> Found:
    warm()
    worst, where, failed = 0.0, "", 0
    tried = pairs(quick)
    for agent, reward in tried:
        name = f"{agent}-{reward}"
        try:
            gap, place = twice(command(agent, reward, folder / "made"), folder / name)
        except RuntimeError as error:
            gap, place = np.inf, str(error)
        print(f"{name:<28} {gap:g} {place}", flush=True)
        failed += gap > 0
        if gap > worst:
            worst, where = gap, f"{name} at {place}"
        shutil.rmtree(folder / name, ignore_errors=True)
    words = f"{len(tried)} pairs of agent and reward, " + (f"worst: {where}" if failed else "not one number differs")
    return Found(len(tried), failed, {"resume_max_diff": worst, "resume_pairs": float(len(tried))}, words)


def _same_seed(folder: Path, quick: bool) -> Found:
    """One command thrice, each in a process of its own: as it is, again, and with workers that step environments."""
    warm()
    wrong, tried = [], ("ppo",) if quick else ("ppo", "sac")
    for agent in tried:
        argv = [*command(agent, "rnd", folder / "made"), "n_envs=4"]
        found = {}
        for name, backend in (("first", "gym"), ("again", "gym"), ("workers", "workers")):
            _must([*argv, f"backend={backend}"], folder / f"{agent}-{name}")
            found[name] = digest(folder / f"{agent}-{name}")
        wrong += [f"{agent}: {name} differs" for name in found if found[name] != found["first"]]
    return Found(2 * len(tried), len(wrong), {}, "; ".join(wrong) or "the same weights each time")


def digest(folder: Path) -> str:
    """SHA-256 of the weights, of agent and rewards, in a run's last checkpoint."""

    state = _account(folder)["state"]
    _, arrays = pack({"agent": state["agent"]["modules"], "mix": state["mix"]})
    parts = (part for key in sorted(arrays) for part in (key.encode(), arrays[key].tobytes()))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


FAULTS = [
    Fault(
        "resume",
        "a run is cut in two, for every reward and every agent",
        "every number of the last checkpoint and of the log is the uninterrupted run's: largest difference 0.0",
        _resume,
    ),
    Fault(
        "same-seed",
        "one seed in three processes, one of them with workers that step the environments",
        "the weights of agent and rewards are the same, to the last bit",
        _same_seed,
    ),
]
