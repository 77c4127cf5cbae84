"""Benchmarks and studies: what the README's numbers come from.

    python -m benchmarks foundation     what a learned reward costs, in frames per second with it over without
    python -m benchmarks ppo            our PPO beside Stable-Baselines3's: speed, and where time goes
    python -m benchmarks peers          our PPO beside other libraries', each in an environment of its own
    python -m benchmarks ppo_learning   our PPO and Stable-Baselines3's learn five tasks, five seeds: an hour
    python -m benchmarks ppo_streams    a bonus that ends with the episode, or does not, or has no value of its own
    python -m benchmarks exploration    every bonus on seven sparse tasks with its controls, five seeds: two hours
    python -m benchmarks noisy_rooms    curiosity alone, beside a noisy television, five seeds: half an hour
    python -m benchmarks pseudo_counts  do RDD, coin flips and RND know how often they were somewhere? minutes
    python -m benchmarks exploration-speed  our exploration rewards beside rllte's, scoring and learning
    python -m benchmarks upright        the README's first command, five seeds, with its control: half an hour
    python -m benchmarks sentences      five tasks from a sentence alone, beside meaningless ones: two hours
    python -m benchmarks highway        what semantics add to driving, beside the control without pictures: an hour
    python -m benchmarks progress       demonstrations as a potential, own successes as another: minutes
    python -m benchmarks shaping_grid   which ways of paying a score can be farmed? exactly, on a small grid: seconds
    python -m benchmarks vision-speed   what a reward from frames costs, beside its encoder and beside vlmrm: minutes
    python -m benchmarks highway-speed  the highway as an array program beside highway-env itself: minutes
    python -m benchmarks offline        policies from recordings and 300 comparisons, beside true rewards: minutes
    python -m benchmarks preferences    Pendulum from 300 comparisons, a tenth of them wrong, five seeds: an hour
    python -m benchmarks bad-prompts    does the report card stop bad sentences, and let good ones through? minutes
    python -m benchmarks captions       does it matter what captions say? ONI beside its controls: an hour
    python -m benchmarks nethack        two million frames of NetHack beside rule and embedding judges: an hour
    python -m benchmarks nethack-speed  NetHack as one program beside NLE itself: minutes
    python -m benchmarks subgoals       a teacher's subgoals on a small KeyCorridor, right and wrong ones: minutes
    python -m benchmarks lare           a return at the end of an episode, handed out to its steps: minutes
    python -m benchmarks judge-faults   no fault of a server and no text of a caption makes a label: a minute
    python -m benchmarks language-speed what an annotator costs, its server busy, hanging or dead: minutes
    python -m benchmarks outage         a judge's server killed in the middle of a run, and the run replayed: minutes
    python -m benchmarks model_based    what learning with a model costs, beside learning without: minutes
    python -m benchmarks oracle         does imagination pay what the world pays, its model the world itself? seconds
    python -m benchmarks reward-swap    a reward that changes its mind: paid anew, or as it was stored: an hour
    python -m benchmarks model-learning what a model is worth, beside SAC and Stable-Baselines3: hours
    python -m benchmarks factored       a factored model beside replay, in mazes and grids of buttons: an hour
    python -m benchmarks noise-video    clouds behind a pendulum: which world models draw them? hours
    python -m benchmarks coverage       do the report's 95 % intervals have the truth 95 times of 100? a minute
    python -m benchmarks report-speed   one page of 200 runs: seconds and memory
    python -m benchmarks watchdog       worker processes that are watched, beside Gymnasium's and SB3's: minutes
    python -m benchmarks sweep-overhead what a sweep adds to its jobs: a quarter of an hour
    python -m benchmarks night          a sweep killed twice, and one that loses a machine: most of an hour
    python -m benchmarks house          size, circles, files on the learning loops, speed beside 0.1.0: half an hour
    python -m benchmarks house-tests    seconds of the fast tests, quiet and beside eight busy processes: minutes
    python -m benchmarks keycorridor    learning study, hours
    python -m benchmarks mountaincar    learning study, hours

Results go to assets/results/NAME.csv, one row a run, and to NAME.json; figures that belong together are collected in
foundation.json, ppo.json, exploration.json, vision.json, language.json, model_based.json and experiments.json. An
interrupted study goes on where it stopped.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "assets" / "results"
TABLE = {  # name -> where its function is, and the file that collects its figures
    "foundation": ("speed.foundation:run", "foundation"),
    "upright": ("studies.upright:run", "foundation"),
    "keycorridor": ("studies.studies:keycorridor", "foundation"),
    "mountaincar": ("studies.studies:mountaincar", "foundation"),
    "ppo": ("speed.ppo:run", "ppo"),
    "peers": ("peers.peers:run", "ppo"),
    "ppo_learning": ("studies.ppo_learning:learning", "ppo"),
    "ppo_streams": ("studies.ppo_learning:streams", "ppo"),
    "exploration": ("studies.exploration:run", "exploration"),
    "noisy_rooms": ("studies.noisy_rooms:run", "exploration"),
    "pseudo_counts": ("studies.pseudo_counts:run", "exploration"),
    "exploration-speed": ("speed.exploration:run", "exploration"),
    "sentences": ("studies.sentences:run", "vision"),
    "highway": ("studies.highway:run", "vision"),
    "progress": ("studies.progress:run", "vision"),
    "highway-speed": ("speed.highway:run", "vision"),
    "shaping_grid": ("studies.shaping_grid:run", "vision"),
    "vision-speed": ("speed.vision:run", "vision"),
    "preferences": ("studies.preferences:run", "vision"),
    "offline": ("studies.offline:run", "vision"),
    "bad-prompts": ("studies.bad_prompts:run", "vision"),
    "captions": ("studies.captions:run", "language"),
    "nethack": ("studies.nethack:run", "language"),
    "nethack-speed": ("speed.nethack:run", "language"),
    "subgoals": ("studies.subgoals:run", "language"),
    "lare": ("studies.lare:run", "language"),
    "judge-faults": ("tests.faults.judge_faults:run", "language"),
    "language-speed": ("speed.language:run", "language"),
    "outage": ("tests.faults.outage:run", "language"),
    "model_based": ("speed.model_based:run", "model_based"),
    "oracle": ("studies.oracle:run", "model_based"),
    "reward-swap": ("studies.reward_swap:run", "model_based"),
    "model-learning": ("studies.model_learning:run", "model_based"),
    "factored": ("studies.factored:run", "model_based"),
    "noise-video": ("studies.noise_video:run", "model_based"),
    "coverage": ("studies.coverage:run", "experiments"),
    "report-speed": ("speed.report:run", "experiments"),
    "watchdog": ("speed.watchdog:run", "experiments"),
    "sweep-overhead": ("speed.sweep:run", "experiments"),
    "house": ("house:run", "house"),
    "house-tests": ("house:run_tests", "house"),
    "night": ("tests.faults.night:run", "experiments"),
}


def main(argv: list[str] | None = None, folder: Path = FOLDER) -> int:
    """Run the named benchmarks; returns the exit code."""
    names = sys.argv[1:] if argv is None else argv
    if not names or names[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if names else 2
    from runners.report import results
    from runners.run.config import unknown

    for name in names:
        if name not in TABLE:
            print(unknown("benchmark", name, TABLE), file=sys.stderr)
            return 2
    for name in names:
        place, collected = TABLE[name]
        module, function = place.split(":")
        figures = getattr(import_module(module if module.startswith("tests.") else f"benchmarks.{module}"), function)(
            folder
        )
        for target in dict.fromkeys([name, collected]):
            results.write_figures(folder / f"{target}.json", f"python -m benchmarks {name}", figures)
        for key, value in figures.items():
            print(f"{key:<40}{value:10.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
