"""What a reward from frames costs: beside the bare encoder, beside the source's own code, and without looking again.

    clip_encoder_ratio_<model>     the whole path over the bare encoder, frames per CPU-second: uint8 frames to float32
                                   rewards through the mix, 64 at a time, none of which comes back
    clip_cache_cost                time to look for frames in the cache and to keep them, over the small encoder's; none
                                   of them comes back
    clip_repeats_ratio             the small encoder with its cache over without, where 2,048 frames show 200 pictures
    vlmrm_ratio_<model>            the path over vlmrm's, on frames of 480 x 480, 64 at a time: CPU time per frame
    vlmrm_quick_ratio_<model>      vlmrm set to shrink pictures without antialiasing, as in the torchvision it pins
    vlmrm_kept_ratio_<model>       vlmrm given `keep_freed_memory`, which our runs set and it does not
    reprompt_100k_s                seconds for another sentence, alpha or weight over 100,000 kept embeddings of 64
    reprompt_100k_s_ViT-B-32       of 512, the length of a ViT-B-32's

Variants take turns; a figure is the median over rounds of the ratio of neighbours, on one thread. ViT-B-32 has random
weights, which cost the same as any. Ours and vlmrm's run in processes of their own.

vlmrm (Rocamonde et al., github.com/AlignmentResearch/vlmrm at 811d820) is read from $LODESTAR_PEERS/vlmrm, put there
with `git` on first use; without it its figures are left out. Like for like: the same open_clip model with the same
weights, the same frames in memory, alpha 0.5, one goal, one baseline, and the same formula: rewards from equal
embeddings are compared first. Not like for like, and the reason of the ratio for a small model: vlmrm shrinks whole
480 x 480 frames in floating point with bicubic weights, ours averages bytes to the model's size where the frame is
drawn (that is counted); and vlmrm's large arrays go back to the system after each batch, unless configured otherwise,
which takes as long as everything else. Its `scatter` to GPUs, which needs CUDA, is left out. The rewards of the two
differ a little, as the pictures do.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.peers import peers
from benchmarks.speed import measure
from runners.run.build import keep_freed_memory

GOAL, BASELINE, ALPHA = "pole vertically upright on top of the cart", "pole and cart", 0.5
BATCH, SIDE = 64, 480  # frames; pixels as vlmrm draws them
ROUNDS = 3
BATCHES = {"lodestar": 24, "lodestar-96": 12, "ViT-B-32": 1}  # of one measurement
LARGE = 6  # batches at most where frames are large: 44 MB each
PICTURES, SHOWN = 200, 2048
COMMIT = "811d820"
THEIRS = ("vlmrm", "vlmrm_quick", "vlmrm_kept")
SOURCE = "https://github.com/AlignmentResearch/vlmrm"


def run(folder: Path, models: Sequence[str] = tuple(BATCHES), home: Path = peers.HOME) -> dict[str, float]:
    """Measure all that can be measured; writes a row for every measurement."""
    import torch

    from rewards.vision.load import MODELS

    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does
    path = folder / "vision-speed.csv"
    path.unlink(missing_ok=True)
    theirs = _source(home / "vlmrm")
    figures: dict[str, float] = {}
    for model in models:
        if model in MODELS and not (MODELS[model] / "open_clip_config.json").is_file():
            print(f"{model} is skipped: it is not in {MODELS[model]}", file=sys.stderr)
            continue
        if theirs is not None:
            figures |= _beside_vlmrm(path, model, home)
        variants: dict[str, measure.Measure] = {
            "encoder": functools.partial(_encoder, model),
            "reward": functools.partial(_reward, model),
        }
        rates = measure.interleave(path, model, ROUNDS, variants)["cpu"]
        figures[f"clip_encoder_ratio_{model}"] = measure.ratio(rates, "reward", "encoder")
    return figures | _cache(path) | _reprompt(path)


def _encoder(model: str) -> tuple[int, Callable[[], Any]]:
    """The image tower alone, on pixels that are ready for it."""
    import torch

    encoder, batches = _clip(model).encoder, BATCHES[model]
    pixels = torch.from_numpy(_frames(BATCH, encoder.size)).permute(0, 3, 1, 2)  # channels last, as the reward has them
    ready = (pixels / 255 - encoder.mean) / encoder.std

    def work() -> None:
        with torch.inference_mode():
            for _ in range(batches):
                encoder.model.encode_image(ready, normalize=True)

    return BATCH * batches, work


def _reward(model: str) -> tuple[int, Callable[[], Any]]:
    """From bytes to rewards; every frame is new."""
    clip = _clip(model)
    parts = [_batch(_frames(BATCH, clip.encoder.size)) for _ in range(BATCHES[model])]
    mix = _mix(clip)
    return BATCH * len(parts), lambda: [mix.total(part, None, 0) for part in parts]


def _beside_vlmrm(path: Path, model: str, home: Path) -> dict[str, float]:
    """Ratios to vlmrm's path; both begin with the environment's picture, each in a process of its own."""
    seconds: dict[str, list[float]] = {kind: [] for kind in ("ours", *THEIRS)}
    for turn in range(1, ROUNDS + 1):
        for kind in seconds:
            frames, cpu = _alone(model, kind, home)
            row = {"group": f"{model} {SIDE}x{SIDE}", "variant": kind, "round": turn, "frames": frames}
            row |= {"cpu_seconds": round(cpu, 4), "frames_per_cpu_second": round(frames / cpu, 1)}
            results.append_rows(path, [row])
            seconds[kind].append(cpu / frames)
    ours = np.array(seconds["ours"])
    return {f"{kind}_ratio_{model}": float(np.median(np.array(seconds[kind]) / ours)) for kind in THEIRS}


def _alone(model: str, kind: str, home: Path) -> tuple[int, float]:
    """Frames and CPU seconds of one variant in a fresh process, whose allocator is as its project has it."""
    command = [sys.executable, "-m", "benchmarks.speed.vision", model, kind, str(home), str(BATCH), str(SIDE)]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    answer = subprocess.run(command, capture_output=True, text=True, cwd=peers.ROOT, env=inherited)
    if answer.returncode:
        raise RuntimeError((answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1])
    frames, cpu = json.loads(answer.stdout.splitlines()[-1])
    return frames, cpu


def _main(model: str, kind: str, home: str, batch: str, side: str) -> None:
    """What `_alone` starts: the first pass warms up and does not count."""
    global BATCH, SIDE
    import torch

    BATCH, SIDE = int(batch), int(side)
    torch.set_num_threads(1)
    if kind in ("ours", "vlmrm_kept"):
        keep_freed_memory()
    theirs = _source(Path(home) / "vlmrm")
    for _ in range(2):
        frames, work = _ours(model) if kind == "ours" else _vlmrm(model, theirs, kind != "vlmrm_quick")
        start = time.process_time()
        work()
        cpu = time.process_time() - start
    print(json.dumps([frames, cpu]))


def _ours(model: str) -> tuple[int, Callable[[], Any]]:
    from envs.render import resize

    clip = _clip(model)
    parts = [_frames(BATCH, SIDE) for _ in range(min(BATCHES[model], LARGE))]
    mix = _mix(clip)

    def work() -> None:
        for frames in parts:
            mix.total(_batch(np.stack([resize(frame, clip.encoder.size) for frame in frames])), None, 0)

    return BATCH * len(parts), work


def _vlmrm(model: str, theirs: Any, antialias: bool) -> tuple[int, Callable[[], Any]]:
    """What its worker does with a batch between receiving and returning it.

    Raises:
        RuntimeError: if its formula and ours differ.
    """
    import torch

    encoder = _clip(model).encoder
    embed = theirs.CLIPEmbed(encoder.model)
    prompts = [encoder.tokenizer([text]) for text in (GOAL, BASELINE)]
    reward = theirs.CLIPReward(model=embed, alpha=ALPHA, target_prompts=prompts[0], baseline_prompts=prompts[1]).eval()
    seen = np.random.default_rng(0).normal(size=(100, encoder.width)).astype(np.float32)
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    if not np.allclose(reward(torch.from_numpy(seen)).numpy(), _clip(model).rate(seen), atol=1e-4):
        raise RuntimeError(f"vlmrm at {COMMIT} and ours give other rewards for the same embeddings")
    for step in embed.transform.transforms:
        if hasattr(step, "antialias"):
            step.antialias = antialias
    parts = [torch.from_numpy(_frames(BATCH, SIDE)) for _ in range(min(BATCHES[model], LARGE))]

    def work() -> None:
        with torch.no_grad():
            for frames in parts:
                reward(reward.embed_module(frames)).cpu()

    return BATCH * len(parts), work


def _cache(path: Path) -> dict[str, float]:
    """What the cache costs where nothing repeats, and saves where much does."""
    kinds = ("none", "lookup", "repeats")
    variants: dict[str, measure.Measure] = {kind: functools.partial(_with_cache, kind) for kind in kinds}
    rates = measure.interleave(path, "cache", ROUNDS, variants)["cpu"]
    return {
        "clip_cache_cost": measure.ratio(rates, "none", "lookup"),
        "clip_repeats_ratio": measure.ratio(rates, "repeats", "none"),
    }


def _with_cache(kind: str) -> tuple[int, Callable[[], Any]]:
    from rewards.vision.encoder import LODESTAR, EmbeddingCache

    encoder = _clip(LODESTAR).encoder
    frames = _frames(PICTURES if kind == "repeats" else SHOWN, encoder.size)
    frames = frames[np.random.default_rng(0).integers(len(frames), size=SHOWN)] if kind == "repeats" else frames
    nothing = np.zeros((SHOWN, encoder.width), np.float16)
    embed = {
        "none": encoder.image,
        "lookup": EmbeddingCache(lambda new, _: nothing[: len(new)]),
        "repeats": EmbeddingCache(encoder.image),
    }[kind]
    return SHOWN, lambda: [embed(frames[i : i + 256], 256) for i in range(0, SHOWN, 256)]


def _reprompt(path: Path) -> dict[str, float]:
    """Seconds for a change of mind: the median of four."""
    from rewards.base import values_of
    from rewards.vision.clip import Clip, ClipConfig
    from rewards.vision.contrast import Contrast, ContrastConfig

    figures = {}
    for key, model, weights in (("", "lodestar", ""), ("_ViT-B-32", "ViT-B-32", "untrained")):
        width = _clip(model).encoder.width
        seen = np.random.default_rng(0).normal(size=(100_000, width)).astype(np.float32)
        seen /= np.linalg.norm(seen, axis=1, keepdims=True)
        own: dict[str, Any] = {"model": model, "weights": weights}
        configs = (
            ClipConfig(goal="the pole is upright", **own),
            ClipConfig(goal="the pole is upright", baseline=BASELINE, alpha=0.9, **own),
            ContrastConfig(goal="the pole stands", negative="the pole is hanging down", **own),
            ContrastConfig(goal="the pole stands", negative="the pole is lying", positive_weight=[0.2], **own),
        )
        times = []
        for config in configs:
            start = time.perf_counter()
            reward = (Contrast if isinstance(config, ContrastConfig) else Clip)(config, None, None)  # type: ignore[arg-type]
            if isinstance(reward, Contrast):
                reward.calibrate(seen)
            values_of(reward.rate(seen))
            times.append(time.perf_counter() - start)
            row = {"group": f"reprompt {width}", "variant": config.name, "frames": len(seen)}
            results.append_rows(path, [row | {"seconds": round(times[-1], 4)}])
        figures[f"reprompt_100k_s{key}"] = float(np.median(times))
    return figures


@functools.cache
def _clip(model: str) -> Any:
    import gymnasium as gym

    from rewards.vision.clip import Clip, ClipConfig
    from rewards.vision.load import MODELS

    weights = "" if model in MODELS else "untrained"
    config = ClipConfig(goal=GOAL, baseline=BASELINE, alpha=ALPHA, model=model, weights=weights, batch_size=BATCH)
    return Clip(config, gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Discrete(2))


def _mix(clip: Any) -> Any:
    """A mix whose cache has seen nothing yet."""
    from rewards.mix.mix import Mix, Stream
    from rewards.vision.encoder import EmbeddingCache

    clip.encoder._cache = EmbeddingCache(clip.encoder.image)
    return Mix([Stream("clip", clip, gamma=0.99)])


@functools.cache
def _rest(count: int) -> Any:
    """Transitions (count,) without their frames."""
    from rewards.check import random_rollout

    clip = _clip("lodestar")
    return random_rollout(clip.observation_space, clip.action_space, steps=count, envs=1).flatten()


def _batch(frames: np.ndarray) -> Any:
    return _rest(len(frames)).replace(frame=frames)


_drawn = np.random.default_rng(0)


def _frames(count: int, side: int) -> np.ndarray:
    """Random frames that were never seen before, uint8 (count, side, side, 3)."""
    return _drawn.integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def _source(folder: Path) -> Any:
    """vlmrm's `reward_model`; None, with a sentence, where it cannot be had."""
    try:
        if not (folder / "src" / "vlmrm" / "reward_model.py").is_file():
            folder.parent.mkdir(parents=True, exist_ok=True)
            peers.call(["git", "clone", "-q", SOURCE, str(folder)])
            peers.call(["git", "-C", str(folder), "checkout", "-q", COMMIT])
        # Its settings need packages it pins; of them only the name of a class is used here.
        settings = types.ModuleType("vlmrm.trainer.config")
        settings.CLIPRewardConfig = object  # type: ignore[attr-defined]
        sys.modules.setdefault("vlmrm.trainer.config", settings)
        sys.path.insert(0, str(folder / "src"))
        from importlib import import_module

        return import_module("vlmrm.reward_model")
    except (RuntimeError, ImportError) as error:
        print(f"vlmrm is skipped: {error}", file=sys.stderr)
        return None


if __name__ == "__main__":
    _main(*sys.argv[1:])
