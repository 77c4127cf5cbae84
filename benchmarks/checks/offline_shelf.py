"""Offline algorithms on a pendulum: losses of V, imitation with a random recording, comparisons, a model.

Task returns on Pendulum-v1 over 20 episodes, normalised so that random actions are 0 and the best arm's IQM is 1; the
data are those of the check `offline`. Five seeds draw networks, minibatches, pairs and episodes.

    losses        IQL with each loss of V at three strengths on the true rewards; headline figures at the defaults
    imitation     one good episode beside the recording: ReCOIL in both forms, cloning of both, of the one; 9,000 steps;
                  recoil_random has 19,800 random transitions instead
    comparisons   30, 300 and 3,000 answers, of which none or a fifth is wrong: CPL, CPL-KL, and IQL on a reward model
    model         dyna with MOPO's penalty, the same without, and SAC on the recording

ReCOIL's settings, and that its headline is not the random world, were chosen on seed 100, where random actions did not
help. The verdicts of f-DVL, ReCOIL, CPL and MOPO stand in effects.yaml, written before the first run. `KEY_astray` is
the share of runs that diverged, or whose |V| is above ten times that of IQL's default.
"""

from __future__ import annotations

import re
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.checks.offline import AGENT, DATA, STEPS
from runners.report.statistics import iqm

SEEDS = 5
RANDOM_STEPS, LONGER = 19_800, 9000
LOSSES: dict[str, tuple[dict[str, Any], str, tuple[float, float, float]]] = {
    "iql": ({}, "expectile", (0.6, 0.7, 0.9)),
    "xql": ({"value_loss": "gumbel"}, "temperature", (0.5, 1.0, 3.0)),
    "xql_open": ({"value_loss": "gumbel", "gumbel_clip": None}, "temperature", (0.5, 1.0, 3.0)),
    "fdvl": ({"value_loss": "chi_square"}, "level", (0.6, 0.8, 0.95)),
    "quantile": ({"value_loss": "quantile"}, "level", (0.6, 0.8, 0.95)),
}
DEFAULT = 1  # the strength of these that is the default's


def arms() -> dict[str, dict[str, Any]]:
    """Arm -> what `runners.offline` is given beside data and seed; `which` is the policy that counts."""
    found: dict[str, dict[str, Any]] = {}
    for name, (options, key, strengths) in LOSSES.items():
        for place, strength in enumerate(strengths):
            own = {"agent_options": {**AGENT, **options, key: strength}, "arms": ["true"]}
            found[name if place == DEFAULT else f"{name}_{strength:g}"] = own
    found["cloning"] = {"arms": ["cloning"], "agent_options": AGENT}
    for form in ("code", "paper"):
        given = {"algo": "recoil", "steps": LONGER, "agent_options": {**AGENT, "form": form}, "arms": ["demos"]}
        found["recoil" if form == "code" else "recoil_paper"] = given
    found["recoil_random"] = found["recoil"]
    found["cloning_union"] = {"algo": "recoil", "steps": LONGER, "agent_options": AGENT, "arms": ["cloning"]}
    found["cloning_one"] = {"arms": ["cloning"], "agent_options": AGENT}
    for queries in (30, 300, 3000):
        for mistakes in (0.0, 0.2):
            asked = {"queries": queries, "judge_options": {"mistakes": mistakes}, "arms": ["preferences"]}
            wrong = "_wrong" if mistakes else ""
            found[f"piql_{queries}{wrong}"] = {**asked, "agent_options": AGENT}
            for algo in ("cpl", "cpl_kl"):
                rate = {"learning_rate": AGENT["learning_rate"]}
                found[f"{algo}_{queries}{wrong}"] = {**asked, "algo": algo, "agent_options": rate}
    for preset in ("mopo", "mbpo", "sac"):
        name = "offline_dyna" if preset == "mopo" else f"offline_{preset}"
        found[name] = {"algo": "dyna", "arms": ["true"], "agent_options": {"preset": preset}}
    return found


def run(folder: Path) -> dict[str, float]:
    """Run the arms and seeds that have no row, two at once."""
    path, asked = folder / "offline_shelf.csv", arms()
    missing = [(arm, seed) for seed in range(SEEDS) for arm in asked if results.lacks_row(path, arm=arm, seed=seed)]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(measure, *each) for each in missing]):
            results.append_rows(path, [done.result()])
    return figures(results.read_rows(path))


def measure(arm: str, seed: int) -> dict[str, Any]:
    """One row; a policy that diverged has no return."""
    from envs.recording import load, save
    from runners.offline import OfflineConfig
    from runners.offline import run as learn
    from runners.run.build import keep_freed_memory

    keep_freed_memory()
    began = time.perf_counter()
    given = {"steps": STEPS, "seed": seed, **arms()[arm]}
    batch = load(DATA)[0]
    with tempfile.TemporaryDirectory() as work:
        if arm.startswith(("recoil", "cloning_")):
            demos = load("pendulum_good")[0][:200]  # its first episode
            save(Path(work) / "one.safetensors", demos, {"env": "Pendulum-v1"})
            batch = demos if arm == "cloning_one" else at_random(seed) if arm == "recoil_random" else batch
            given |= {} if arm == "cloning_one" else {"demos": [f"{work}/one.safetensors"]}
        try:
            found = learn(OfflineConfig([str(DATA)], env="Pendulum-v1", **given), batch)
        except FloatingPointError:
            return {"arm": arm, "seed": seed, "return": "", "random": "", "value": "inf", "accuracy": "", "seconds": ""}
    name = next(iter(found["arms"]))
    told = found["labels"].get("accuracy", found["learned"][name].get("accuracy", np.nan))
    row = {"return": found["arms"][name]["task_return"], "random": found["arms"]["random"]["task_return"]}
    row |= {"value": found["learned"][name].get("value", np.nan), "accuracy": told}
    row["seconds"] = time.perf_counter() - began
    return {"arm": arm, "seed": seed, **{key: round(number, 3) for key, number in row.items()}}


def at_random(seed: int) -> Any:
    """Transitions of random actions."""
    from contextlib import closing

    from envs.make import make
    from envs.recording import record

    with closing(make("Pendulum-v1")) as env:
        return record(env, None, RANDOM_STEPS, seed=1000 + seed)


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """IQMs of normalised returns with their intervals, and the shares of runs whose values went astray."""
    random = float(np.mean([float(row["random"]) for row in rows if row["random"]]))
    by_arm: dict[str, list[float]] = {}
    for row in rows:
        by_arm.setdefault(row["arm"], []).append(float(row["return"] or random))
    best = max(by_arm, key=lambda arm: float(iqm(by_arm[arm])))
    top, found = float(iqm(by_arm[best])), dict[str, float]()
    for arm, returns in by_arm.items():
        shares = [(value - random) / (top - random) for value in returns]
        name = re.sub(r"(_[\d.]+.*)?$", r"_return\1", arm, count=1)  # cpl_300 is cpl_return_300
        found |= results.summary(name, shares)
    usual = np.mean([abs(float(row["value"])) for row in rows if row["arm"] == "iql"])
    for name in LOSSES:
        mine = [row for row in rows if re.fullmatch(rf"{name}(_[\d.]+)?", row["arm"])]
        found[f"{name}_astray"] = float(np.mean([abs(float(row["value"])) > 10 * usual for row in mine]))
    return found
