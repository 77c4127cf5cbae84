"""Benchmarks and studies: what the README's numbers come from.

    python -m runners.bench foundation     what a learned reward costs, in frames per second with it over without
    python -m runners.bench ppo            our PPO beside Stable-Baselines3's: speed, and where time goes
    python -m runners.bench peers          our PPO beside other libraries', each in an environment of its own
    python -m runners.bench ppo_learning   our PPO and Stable-Baselines3's learn five tasks, five seeds: an hour
    python -m runners.bench ppo_streams    a bonus that ends with the episode, or does not, or has no value of its own
    python -m runners.bench exploration    every bonus on seven sparse tasks with its controls, five seeds: two hours
    python -m runners.bench noisy_rooms    curiosity alone, beside a noisy television, five seeds: half an hour
    python -m runners.bench pseudo_counts  do RDD, coin flips and RND know how often they were somewhere? minutes
    python -m runners.bench exploration-speed  our exploration rewards beside rllte's, scoring and learning
    python -m runners.bench upright        the README's first command, five seeds, with its control: half an hour
    python -m runners.bench sentences      five tasks from a sentence alone, beside meaningless ones: two hours
    python -m runners.bench highway        what semantics add to driving, beside the control without pictures: an hour
    python -m runners.bench progress       demonstrations as a potential, own successes as another: minutes
    python -m runners.bench shaping_grid   which ways of paying a score can be farmed? exactly, on a small grid: seconds
    python -m runners.bench vision-speed   what a reward from frames costs, beside its encoder and beside vlmrm: minutes
    python -m runners.bench highway-speed  the highway as an array program beside highway-env itself: minutes
    python -m runners.bench offline        policies from recordings and 300 comparisons, beside true rewards: minutes
    python -m runners.bench preferences    Pendulum from 300 comparisons, a tenth of them wrong, five seeds: an hour
    python -m runners.bench bad-prompts    does the report card stop bad sentences, and let good ones through? minutes
    python -m runners.bench captions       does it matter what captions say? ONI beside its controls: an hour
    python -m runners.bench nethack        two million frames of NetHack beside rule and embedding judges: an hour
    python -m runners.bench nethack-speed  NetHack as one program beside NLE itself: minutes
    python -m runners.bench subgoals       a teacher's subgoals on a small KeyCorridor, right and wrong ones: minutes
    python -m runners.bench lare           a return at the end of an episode, handed out to its steps: minutes
    python -m runners.bench judge-faults   no fault of a server and no text of a caption makes a label: a minute
    python -m runners.bench language-speed what an annotator costs, its server busy, hanging or dead: minutes
    python -m runners.bench outage         a judge's server killed in the middle of a run, and the run replayed: minutes
    python -m runners.bench model_based    what learning with a model costs, beside learning without: minutes
    python -m runners.bench oracle         does imagination pay what the world pays, its model the world itself? seconds
    python -m runners.bench reward-swap    a reward that changes its mind: paid anew, or as it was stored: an hour
    python -m runners.bench model-learning what a model is worth, beside SAC and Stable-Baselines3: hours
    python -m runners.bench factored       a factored model beside replay, in mazes and grids of buttons: an hour
    python -m runners.bench noise-video    clouds behind a pendulum: which world models draw them? hours
    python -m runners.bench coverage       do the report's 95 % intervals have the truth 95 times of 100? a minute
    python -m runners.bench report-speed   one page of 200 runs: seconds and memory
    python -m runners.bench watchdog       worker processes that are watched, beside Gymnasium's and SB3's: minutes
    python -m runners.bench sweep-overhead what a sweep adds to its jobs: a quarter of an hour
    python -m runners.bench night          a sweep killed twice, and one that loses a machine: most of an hour
    python -m runners.bench keycorridor    learning study, hours
    python -m runners.bench mountaincar    learning study, hours

Results go to assets/results/NAME.csv, one row a run, and to NAME.json; figures that belong together are collected in
foundation.json, ppo.json, exploration.json, vision.json, language.json, model_based.json and experiments.json. An
interrupted study goes on where it stopped.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "results"
TABLE = {  # name -> where its function is, and the file that collects its figures
    "foundation": ("foundation:run", "foundation"),
    "upright": ("upright:run", "foundation"),
    "keycorridor": ("studies:keycorridor", "foundation"),
    "mountaincar": ("studies:mountaincar", "foundation"),
    "ppo": ("ppo:run", "ppo"),
    "peers": ("peers:run", "ppo"),
    "ppo_learning": ("ppo_learning:learning", "ppo"),
    "ppo_streams": ("ppo_learning:streams", "ppo"),
    "exploration": ("exploration:run", "exploration"),
    "noisy_rooms": ("noisy_rooms:run", "exploration"),
    "pseudo_counts": ("pseudo_counts:run", "exploration"),
    "exploration-speed": ("exploration_speed:run", "exploration"),
    "sentences": ("sentences:run", "vision"),
    "highway": ("highway:run", "vision"),
    "progress": ("progress:run", "vision"),
    "highway-speed": ("highway_speed:run", "vision"),
    "shaping_grid": ("shaping_grid:run", "vision"),
    "vision-speed": ("vision_speed:run", "vision"),
    "preferences": ("preferences:run", "vision"),
    "offline": ("offline:run", "vision"),
    "bad-prompts": ("bad_prompts:run", "vision"),
    "captions": ("captions:run", "language"),
    "nethack": ("nethack:run", "language"),
    "nethack-speed": ("nethack_speed:run", "language"),
    "subgoals": ("subgoals:run", "language"),
    "lare": ("lare:run", "language"),
    "judge-faults": ("judge_faults:run", "language"),
    "language-speed": ("language:run", "language"),
    "outage": ("outage:run", "language"),
    "model_based": ("model_based:run", "model_based"),
    "oracle": ("oracle:run", "model_based"),
    "reward-swap": ("reward_swap:run", "model_based"),
    "model-learning": ("model_learning:run", "model_based"),
    "factored": ("factored:run", "model_based"),
    "noise-video": ("noise_video:run", "model_based"),
    "coverage": ("coverage:run", "experiments"),
    "report-speed": ("report_speed:run", "experiments"),
    "watchdog": ("watchdog:run", "experiments"),
    "sweep-overhead": ("sweep_overhead:run", "experiments"),
    "night": ("night:run", "experiments"),
}


def main(argv: list[str] | None = None, folder: Path = FOLDER) -> int:
    """Run the named benchmarks; returns the exit code."""
    names = sys.argv[1:] if argv is None else argv
    if not names or names[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if names else 2
    from runners import results
    from runners.config import unknown

    for name in names:
        if name not in TABLE:
            print(unknown("benchmark", name, TABLE), file=sys.stderr)
            return 2
    for name in names:
        place, collected = TABLE[name]
        module, function = place.split(":")
        figures = getattr(import_module(f"runners.bench.{module}"), function)(folder)
        for target in dict.fromkeys([name, collected]):
            results.write_figures(folder / f"{target}.json", f"python -m runners.bench {name}", figures)
        for key, value in figures.items():
            print(f"{key:<40}{value:10.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
