"""How many of our agents' returns are within what others publish, and whether the rule of staying predicts success.

    python -m benchmarks published_table

It trains nothing. It reads the rows that other studies have left, as `lodestar list --scores` does. `rows` counts the
pairs of a task and an agent that have three runs with the settings of the shortest command, `tasks` their tasks.
`rows_within_published` is the share of them that reaches a published mean less two deviations, among those that took as
many steps as the publication.

`staying_rule_rank` is a rank correlation over the arms of the study `staying`: of their success with how near the worth
of staying, which is measured before training, is to a tenth of the task's reward (as a logarithm).

`one_weight_least_worth` and `_most_worth` are what staying is worth to bonuses of the study `every_bonus`. Of NovelD in
four mazes there are `TASK_success`, `TASK_frames` to 0.8 of it, and `TASK_cpu_minutes` of a run.
`learned_over_count` is the success of NovelD less that of a count, in the study `obstructed_maze`.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks import results
from benchmarks.figures import difference, samples_of
from benchmarks.figures import figures as study_figures
from benchmarks.study import Cell, Study
from runners.cli.compose import compose
from runners.compare.staying import GOOD_WORTH, HIGH_WORTH, LOW_WORTH, staying
from runners.report.scores import BELOW, entries, runs_of, verdict
from runners.report.statistics import iqm

# Mazes on which NovelD has figures of its own: the study, and its task.
MAZES = {
    "multiroom_n4s5": "hard_grids",
    "obstructedmaze_2dlh": "obstructed_maze",
    "lockedroom": "locked_room",
    "keycorridor_s6r3": "keycorridor_s6r3",
}
SEEDS = 3  # that a row needs to be counted
# Rows of settings that no preset has, kept to show what they reach.
OTHER_SETTINGS = ", settings of"
# Figures of single rows: the task and the agent.
NAMED = {
    "halfcheetah_ppo": ("HalfCheetah-v5", "ppo"),
    "hopper_ppo": ("Hopper-v5", "ppo"),
    "walker2d_ppo": ("Walker2d-v5", "ppo"),
    "swimmer_ppo": ("Swimmer-v5", "ppo"),
    "ant_ppo": ("Ant-v5", "ppo"),
    "humanoid_ppo": ("Humanoid-v5", "ppo"),
    "lunarlander_ppo": ("LunarLander-v3", "ppo"),
    "pendulum_ppo": ("Pendulum-v1", "ppo"),
    "mountaincarcontinuous_ppo": ("MountainCarContinuous-v0", "ppo"),
    "halfcheetah_sac_100k": ("HalfCheetah-v5", "dyna, preset haarnoja (SAC)"),
    "hopper_sac_100k": ("Hopper-v5", "dyna, preset haarnoja (SAC)"),
}


def run(folder: Path) -> dict[str, float]:
    """The figures of the table; those of the rule only where its study has run."""
    table = [entry for entry in entries() if len(runs_of(entry)) >= SEEDS and OTHER_SETTINGS not in entry["agent"]]
    verdicts = [verdict(entry) for entry in table if verdict(entry)]
    figures: dict[str, float] = {
        "tasks": len({entry["env"] for entry in table}),
        "rows": len(table),
        "rows_within_published": sum(text != BELOW for text in verdicts) / len(verdicts),
    }
    for name, (env, agent) in NAMED.items():
        for entry in table:
            if (entry["env"], entry["agent"]) == (env, agent):
                figures[name] = float(iqm([float(row["return"]) for row in runs_of(entry)]))
    for task, name in MAZES.items():
        figures |= maze_figures(task, Study.read(name), results.read_rows(folder / f"{name}.csv"))
    figures |= worths_at_one_weight()
    rows = results.read_rows(folder / "staying.csv")
    if rows:
        figures["staying_rule_rank"] = staying_rank(rows, folder.parent / "figures" / "staying_worth.png")
    mazes = results.read_rows(folder / "obstructed_maze.csv")
    runs = Counter(row["arm"] for row in mazes)
    if min(runs["noveld"], runs["count"]) >= SEEDS:
        figures |= learned_over_count(mazes)
    return figures


def maze_figures(task: str, study: Study, rows: list[dict[str, str]]) -> dict[str, float]:
    """NovelD's success in a maze, the median frames to 0.8 of it, and the median minutes of a run on one core."""
    if not rows:
        return {}
    measured = study_figures(study, rows)
    return {
        f"{task}_success": measured[f"{task}_noveld_success"],
        f"{task}_frames": measured[f"{task}_noveld_frames"],
        f"{task}_cpu_minutes": measured[f"{task}_noveld_seconds"] / 60,
    }


def worths_at_one_weight() -> dict[str, float]:
    """The least and most that staying is worth, before training, to bonuses of an episode in `every_bonus`."""
    study = Study.read("every_bonus")
    worths = [worth_of_staying(study, cell) for cell in study.grid()]
    # A bonus that goes on over episodes has none.
    worths = [worth for worth in worths if worth > 0]
    return {
        "one_weight_bonuses": len(worths),
        "one_weight_least_worth": min(worths),
        "one_weight_most_worth": max(worths),
    }


def worth_of_staying(study: Study, cell: Cell) -> float:
    """As a share of the task's reward, by random play."""
    config = compose([f"{key}={text}" for key, text in cell.argv(study.first_seed).items()])[0]
    return sum(bonus.worth for bonus in staying(config))


def learned_over_count(rows: list[dict[str, str]]) -> dict[str, float]:
    """The success of noveld less that of a count in the obstructed maze, with its interval."""
    samples = samples_of(Study.read("obstructed_maze"), rows)
    value, low, high = difference(samples, {}, *(f"obstructedmaze_2dlh_{arm}_success" for arm in ("noveld", "count")))
    return {"learned_over_count": value, "learned_over_count_low": low, "learned_over_count_high": high}


def staying_rank(rows: list[dict[str, str]], picture: Path) -> float:
    """Spearman's rank correlation over arms, of success and of the nearness of the worth to a tenth; and a picture."""
    study = Study.read("staying")
    arms = [cell.arm for cell in study.grid()]
    worths = []
    success = []
    for cell in study.grid():
        worths.append(worth_of_staying(study, cell))
        success.append(float(iqm([float(row["success"]) for row in rows if row["arm"] == cell.arm])))
        print(f"{cell.arm}: staying is worth {worths[-1]:.3g} of the task, success {success[-1]:.2f}", flush=True)
    draw(arms, worths, success, picture)
    near = -np.abs(np.log(np.asarray(worths) / GOOD_WORTH))
    return float(np.corrcoef(ranks(near), ranks(success))[0, 1])


def draw(arms: list[str], worths: list[float], success: list[float], picture: Path) -> None:
    """Each arm's success by what staying is worth to it."""
    import matplotlib
    from matplotlib.figure import Figure

    from runners.report import plots

    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(6, 3.4), layout="constrained")
        axes = figure.add_subplot()
        axes.axvspan(LOW_WORTH, HIGH_WORTH, alpha=0.15, linewidth=0)
        for family, marker in (("noveld", "o"), ("count", "s")):
            points = [(worth, score) for arm, worth, score in zip(arms, worths, success) if arm.startswith(family)]
            axes.plot(*zip(*sorted(points)), marker, label=family)
        axes.set_xscale("log")
        axes.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
        axes.set_xlabel("what staying is worth before training, as a share of the task's reward")
        axes.set_ylabel("success")
        axes.legend()
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, dpi=160)


def ranks(values: list[float] | np.ndarray) -> np.ndarray:
    """Ranks from 0; equal values share their mean rank."""
    array = np.asarray(values)
    below = (array[:, None] > array).sum(1)
    equal = (array[:, None] == array).sum(1)
    return np.asarray(below + (equal - 1) / 2)
