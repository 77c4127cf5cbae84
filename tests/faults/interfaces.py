"""Faults at borders: weights out of reach, memory that runs out, auto-reset, environments made from their spec."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

import rewards
from envs.make import make, make_vec
from rewards.adapters.gym import VectorRewardWrapper
from runners.train import main
from tests.faults import Fault, Found
from tests.faults.child import run, sentence, train, warm

IDS = ("lodestar/CartPoleUpright-v0", "HalfCheetah-v5", "MiniGrid-DoorKey-8x8-v0", "NetHackScore-v0", "CarRacing-v3")
IDS += ("highway-fast-v0", "lodestar/NoisyRooms-v0", "FrozenLake-v1", "CartPole-v1", "lodestar/Crafter-v0")


def weights_absent(folder: Path, quick: bool) -> Found:
    """CLIP by a name whose weights are not here: downloads forbidden; a proxy that leads nowhere."""
    warm()
    slowest, failed, words = 0.0, 0, []
    clip = {"reward": "clip", "reward.clip.model": "ViT-B-32", "reward.clip.weights": "laion2b_s34b_b79k"}
    common = {**clip, "env": "lodestar/CartPoleUpright-v0", "total_timesteps": 64, "run_dir": folder / "run"}
    for name, places in {
        "offline": {"HF_HUB_OFFLINE": "1"},
        "unreachable": {"HF_ENDPOINT": "http://127.0.0.1:9"},
    }.items():

        def action(places: dict[str, str] = places) -> int:
            os.environ.update({**places, "HF_HOME": str(folder / "cache")})
            return train(**common)

        began = time.monotonic()
        code, printed = run(action, folder / "out.txt")
        slowest = max(slowest, time.monotonic() - began)
        failed += not (code == 2 and sentence(printed) and "reward.clip.weights=<path to a file>" in printed)
        words.append(f"{name}: code {code}")
    return Found(2, failed + (slowest > 3 and not quick), {"slowest_s": slowest}, "; ".join(words))


def out_of_memory(folder: Path, quick: bool) -> Found:
    """The encoder's memory has room for ever fewer frames."""
    from rewards.vision.encoder import ClipEncoder

    encoder = ClipEncoder("lodestar", "")
    torch, forward = encoder.torch, encoder.model.encode_image
    frames = np.random.default_rng(0).integers(0, 255, (64, encoder.size, encoder.size, 3), np.uint8)
    expected, failed = encoder.image(frames, 64).astype(np.float32), 0
    for room in (40, 20, 5, 2):

        def small(x: Any, room: int = room, **options: Any) -> Any:
            if len(x) > room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return forward(x, **options)

        encoder.model.encode_image = small
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            again = encoder.image(frames, 64).astype(np.float32)
        failed += not (told and np.abs(again - expected).max() < 2e-3)
    return Found(
        4, failed, {}, f"{4 - failed} of 4 batches were embedded in smaller pieces, with one warning a halving"
    )


def no_time_limit(folder: Path, quick: bool) -> Found:
    """A grid world that nothing but its goal ends, and policies that do not find it."""
    warm()
    wrong, steps, tried = [], 300, ("ppo",) if quick else ("ppo", "sb3_ppo", "dqn")
    for agent in tried:
        world = [f"agent={agent}", "env=CliffWalking-v1", f"run_dir={folder / agent}", "total_timesteps=256"]
        argv = [*world, f"eval_steps={steps}", "eval_episodes=5", "video=false"]
        code, printed = run(lambda argv=argv: main(argv), folder / "out.txt", 120)  # type: ignore[misc]
        scores = json.loads((folder / agent / "result.json").read_text()) if code == 0 else {}
        longest = max((row["length"] for row in scores.values()), default=0)
        if code != 0 or longest != steps or "max_episode_steps=" not in printed:
            wrong.append(f"{agent}: code {code}, episodes of {longest:g} steps")
    words = "; ".join(wrong) or f"episodes ended after {steps} steps, with a sentence that names max_episode_steps"
    return Found(len(tried), len(wrong), {}, words)


def autoreset(folder: Path, quick: bool) -> Found:
    """Episode by episode, rewards and lengths of a vector against those of a single environment."""
    trials = failed = 0
    for backend in ("sync", "async"):
        for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            envs: Any = make_vec("CartPole-v1", 3, seed=10, autoreset_mode=mode, backend=backend)
            spaces = envs.single_observation_space, envs.single_action_space
            mix = rewards.make({"task": rewards.get("task").Config()}, *spaces, gamma=0.99, seed=0)
            vector = VectorRewardWrapper(envs, mix)
            found = _episodes(vector, mode, 60 if quick else 600)
            envs.close()
            for number, returns in enumerate(found):
                trials += 1
                failed += returns != _alone(10 + number, len(returns)) or not returns
    return Found(trials, failed, {}, f"{trials - failed} of {trials} environments gave the episodes of one alone")


def _lean(obs: np.ndarray) -> np.ndarray:
    return (obs[..., 2] > 0).astype(np.int64)  # lasts 25 to 60 steps


def _episodes(vector: Any, mode: AutoresetMode, steps: int) -> list[list[float]]:
    found: list[list[float]] = [[], [], []]
    total = np.zeros(3)
    obs, _ = vector.reset(seed=10)
    fresh = np.zeros(3, bool)  # in NEXT_STEP the step after an end is none
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = vector.step(_lean(obs))
        total += np.where(fresh, 0, reward)
        ended = (terminated | truncated) & ~fresh
        for number in np.flatnonzero(ended):
            found[number].append(float(total[number]))
        total[ended] = 0
        fresh = ended & (mode == AutoresetMode.NEXT_STEP)
    return found


def _alone(seed: int, episodes: int) -> list[float]:
    env, found = make("CartPole-v1", seed=seed), []
    for _ in range(episodes):
        obs, _ = env.reset(seed=seed if not found else None)
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(_lean(obs))
            total, ended = total + float(reward), terminated or truncated
        found.append(total)
    return found


def rebuilt(folder: Path, quick: bool) -> Found:
    """Environments of every family, with all that is around them, from the JSON of their spec."""
    failed = []
    for env_id in IDS[:3] if quick else IDS:
        text: Any = "MiniGrid" in env_id or "NetHack" in env_id
        one = make(env_id, **({"text": True} if text else {}))
        assert one.spec is not None
        other = gym.make(gym.envs.registration.EnvSpec.from_json(one.spec.to_json()))
        layers = [[type(x).__name__ for x in _layers(env)] for env in (one, other)]
        starts = [env.reset(seed=3)[0] for env in (one, other)]
        same = all(np.array_equal(a, b) for a, b in zip(_parts(starts[0]), _parts(starts[1])))
        if layers[0] != layers[1] or not same or one.observation_space != other.observation_space:
            failed.append(env_id)
    count = 3 if quick else len(IDS)
    return Found(count, len(failed), {}, f"{count - len(failed)} of {count} were the same {' '.join(failed)}".strip())


def _layers(env: Any) -> list[Any]:
    return [env, *_layers(env.env)] if isinstance(env, gym.Wrapper) else [env]


def _parts(obs: Any) -> list[Any]:
    return [obs[key] for key in sorted(obs)] if isinstance(obs, dict) else [obs]


FAULTS = [
    Fault("weights-absent", "CLIP's weights are out of reach", "One sentence within 3 s, code 2.", weights_absent),
    Fault(
        "out-of-memory",
        "no memory for a batch of frames",
        "Half as many at once from then on; the same embeddings.",
        out_of_memory,
        real=False,
    ),
    Fault(
        "no-time-limit",
        "an evaluation in an environment that nothing ends",
        "eval_steps bounds the episode, and a sentence says so.",
        no_time_limit,
    ),
    Fault("autoreset", "auto-reset in either mode", "Every episode is that of a single environment.", autoreset),
    Fault("rebuilt", "an environment is made again from its spec", "The same wrappers, spaces and start.", rebuilt),
]
