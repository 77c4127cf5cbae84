"""A clinic of 12 numbers and 9 treatments: how often a debate about a few numbers ends as the truth says.

A treatment's worth is linear in 4 of 12 numbers of a patient. `reward=debate` learns from 2,000 comparisons of
decisions by a scripted judge that knows the worth; then two treatments at random are debated for 4,000 patients, and a
verdict is right if it prefers the one that is worth more. Lengths 0 to 12; evidence by two debaters, by one side alone
(isolated), at random. Verdict, written before the first run: shown if debates of 4 numbers (debate_accuracy) are right
in 0.8 of the cases or more, in every seed above random evidence and isolated of every seed at that length, and no
evidence is a coin (0.5 within 0.05); contradicted if they are no better than random evidence. Ten seeds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gymnasium import spaces

from benchmarks import results
from envs.transitions import Transitions
from runners.report.statistics import iqm

NUMBERS, TREATMENTS, MATTER, LABELS, PATIENTS, SEEDS = 12, 9, 4, 2_000, 4_000, 10
LENGTHS = {"debate": (0, 1, 2, 4, 6, 12), "isolated": (2, 4, 6), "random": (2, 4, 6)}


def run(folder: Path) -> dict[str, float]:
    """Run the seeds that have no rows; IQM over seeds of each kind of evidence and length."""
    path = folder / "debate.csv"
    for seed in range(SEEDS):
        if results.lacks_row(path, seed=seed):
            results.append_rows(path, [{"seed": seed, **row} for row in right(seed)])
    cells: dict[str, list[float]] = {}
    for row in results.read_rows(path):
        cells.setdefault(f"debate_{row['evidence']}_{row['shown']}", []).append(float(row["accuracy"]))
    figures = {key: float(iqm(values)) for key, values in cells.items()}
    controls = cells["debate_isolated_4"] + cells["debate_random_4"]
    extremes = {"debate_least": min(cells["debate_debate_4"]), "debate_controls_most": max(controls)}
    return {"debate_accuracy": figures["debate_debate_4"], **extremes, **figures}


def right(seed: int) -> list[dict[str, object]]:
    """The share of verdicts that are right, for every kind of evidence and length."""
    from rewards.preference.debate import Debate, DebateConfig

    rng, worth = np.random.default_rng(seed), np.zeros((TREATMENTS, NUMBERS))
    worth[:, rng.permutation(NUMBERS)[:MATTER]] = rng.normal(size=(TREATMENTS, MATTER))
    asked = DebateConfig(seed_steps=0, pool=2 * LABELS, queries=LABELS, budget=LABELS, mistakes=0.0, epochs=200)
    space = spaces.Box(-1.0, 1.0, (NUMBERS,), np.float32)
    reward = Debate(asked, space, spaces.Discrete(TREATMENTS), seed=seed)
    reward.update(decisions(rng, worth, 2 * LABELS))
    cases = decisions(rng, worth, PATIENTS)
    rivals = (cases.action + rng.integers(1, TREATMENTS, PATIENTS)) % TREATMENTS
    better, rows = cases.reward > (cases.obs * worth[rivals]).sum(axis=1), []
    state, sides = reward.whiten(reward.rows(cases.obs)), [reward.actions(each) for each in (cases.action, rivals)]
    for evidence, lengths in LENGTHS.items():
        for reward.config.shown in lengths:
            reward.config.evidence = evidence
            verdicts = (reward.debate(state, *sides)[0] > 0).numpy()
            accuracy = round(float((verdicts == better).mean()), 4)
            rows.append({"evidence": evidence, "shown": reward.config.shown, "accuracy": accuracy})
    return rows


def decisions(rng: np.random.Generator, worth: np.ndarray, n: int) -> Transitions:
    """n patients, a treatment at random for each, and its worth as the task's reward; one step an episode."""
    obs, action = rng.uniform(-1, 1, (n, NUMBERS)).astype(np.float32), rng.integers(TREATMENTS, size=n)
    no, reward = np.zeros(n, bool), (obs * worth[action]).sum(axis=1).astype(np.float32)
    return Transitions(obs, action, reward, obs, ~no, no, ~no, np.zeros(n, np.int64))
