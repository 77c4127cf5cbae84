"""Does the report card stop sentences that should not be trained with, and let good ones through?

Six good sentences, VLM-RM's own among them, and ten bad ones for three environments: the opposite of the goal, another
state, gibberish, off topic, another environment's goal, a negation. A sentence is stopped if the card's verdict is not
"usable". Neither the sentences nor the thresholds were changed after the first look. The model is the small one that
ships, which was trained on these environments: an easy case, without evidence about public models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import results

CARTPOLE, MOUNTAINCAR, PENDULUM = (
    f"lodestar/{name}-v0" for name in ("CartPoleUpright", "MountainCarGoal", "PendulumUpright")
)
GOOD = (
    (CARTPOLE, "pole vertically upright on top of the cart"),
    (CARTPOLE, "the pole is standing straight up"),
    (MOUNTAINCAR, "a car at the peak of the mountain, next to the yellow flag"),
    (MOUNTAINCAR, "the car is at the top of the hill"),
    (PENDULUM, "pendulum in the upright position"),
    (PENDULUM, "the rod is pointing upwards"),
)
BAD = (
    (CARTPOLE, "the pole is hanging down"),
    (CARTPOLE, "the pole is leaning to the left"),
    (CARTPOLE, "qwv zzxk blorp"),
    (CARTPOLE, "a humanoid robot kneeling"),
    (MOUNTAINCAR, "the car is in the valley"),
    (MOUNTAINCAR, "a bowl of noodle soup"),
    (MOUNTAINCAR, "the pole is upright"),
    (PENDULUM, "the pendulum is hanging straight down"),
    (PENDULUM, "stock prices rose sharply today"),
    (PENDULUM, "the pendulum is not upright"),
)


def run(folder: Path, frames: int = 2000) -> dict[str, float]:
    """The card of every sentence; writes the table, returns the figures."""
    path = folder / "bad-prompts.csv"
    rows = [
        one(env, sentence, kind, frames) for kind, group in (("good", GOOD), ("bad", BAD)) for env, sentence in group
    ]
    path.unlink(missing_ok=True)
    results.append_rows(path, rows)
    bad, good = ([row for row in rows if row["kind"] == kind] for kind in ("bad", "good"))
    return {
        "stop_bad_prompt": sum(row["verdict"] != "usable" for row in bad) / len(bad),
        "stop_bad_prompt_outright": sum(row["verdict"] == "do not train with this" for row in bad) / len(bad),
        "stop_good_prompt": sum(row["verdict"] != "usable" for row in good) / len(good),
    }


def one(env: str, sentence: str, kind: str, frames: int, goal: str = "") -> dict[str, Any]:
    """The card's verdict on a sentence, as a row of the table; about the environment's first goal if none is named."""
    from runners.compare import __main__ as compare
    from runners.compare.card import card

    about = [f"env={env}", f"goal={goal}", "reward=clip", f"frames={frames}", f'reward.clip.goal="{sentence}"']
    config = compare.main.parse(about)
    candidate, index = next(compare.candidates(config, compare.compose(config)))
    made = card(candidate, index)
    row = {"env": env, "kind": kind, "sentence": sentence, "verdict": made["verdict"]}
    numbers = {"auroc": made["truth"]["auroc"], "pearson": made["truth"]["pearson"], "spread": made["spread"]}
    row |= {name: round(float(value), 3) for name, value in numbers.items()}
    print(f"{kind:<5}{made['verdict']:<24}{sentence}", flush=True)
    return {**row, "reasons": "; ".join(made["reasons"])}
