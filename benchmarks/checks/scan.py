"""Does a world model with a selective state space remember as well as one with a GRU, and what do long sequences cost?

    python -m benchmarks scan

MiniGrid-MemoryS7-v0: the agent looks at a key or a ball, turns around, waits in a hallway from which it cannot be seen,
walks to a fork, and goes to one side at random. It is rewarded if the object there is the one that it saw. Episodes are
scripted, all of 16 steps, 2,048 to train on and 512 others. `agents.world_model`'s latent model is trained on them at
its defaults (preset dreamer, 16 episodes a minibatch, the reward weighed as all steps together) for 8,000 updates;
recall is the share of the other episodes whose reward it predicts on the right side of one half before the last step.
A guess is right in half of them.

    rssm      a GRU, Dreamer's cell
    mamba     the selective state space of agent.preset=drama
    ssm       the linear recurrence with gates that stood in for it until 0.4
    simnorm   no memory: the control
    oracle    rssm, where every observation also shows the object: how much of the task is not memory

`cost` is the CPU time of an update with 256 steps a sequence over that with 16 steps, at equal numbers of steps: 1 if
long sequences cost nothing. Five seeds draw episodes, networks and minibatches. The verdict stands in effects.yaml,
written before the first run of these seeds. The length and the number of updates were chosen on seed 100, where after
3,000 updates ssm and oracle recalled everything, rssm and mamba nothing, and after 8,000 these two, too.
Estimate: 65 core-minutes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import results

SEEDS = 5
ARMS = ("rssm", "mamba", "ssm", "simnorm", "oracle")
COSTED = ("rssm", "mamba", "ssm")
EPISODE_STEPS, TRAINED_EPISODES, TEST_EPISODES = 16, 2048, 512
# One step in an episode is rewarded, so that the reward has to weigh as much as all frames together.
REWARD_WEIGHT = 16.0
UPDATES, BATCH_EPISODES, LEARNING_RATE = 8000, 16, 1e-3
SHORT, LONG, COST_STEPS, COST_UPDATES = 16, 256, 4096, 10
LEFT, RIGHT, FORWARD, WAIT = 0, 1, 2, 6
# Empty, wall, key and ball, as MiniGrid numbers them. Each is a column of its own in every cell of the view: the plain
# numbers of a key and a ball are 5 and 6, which a reconstruction hardly tells apart.
SHOWN_KINDS = np.array([1, 2, 5, 6])


def run(folder: Path) -> dict[str, float]:
    """Measure the seeds that have no row; recall and cost of every arm."""
    path = folder / "scan.csv"
    for seed in range(SEEDS):
        for arm in ARMS:
            if results.lacks_row(path, arm=arm, seed=seed):
                results.append_rows(path, [measure(arm, seed)])
    rows = results.read_rows(path)
    figures: dict[str, float] = {}
    for arm in ARMS:
        own_rows = [row for row in rows if row["arm"] == arm]
        figures |= results.summary(f"scan_{arm}_recall", [float(row["recall"]) for row in own_rows])
        if arm in COSTED:
            figures |= results.summary(f"scan_{arm}_cost", [float(row["cost"]) for row in own_rows])
            figures |= results.summary(f"scan_{arm}_long_ms", [float(row["long_ms"]) for row in own_rows])
    return figures


def measure(arm: str, seed: int, updates: int = UPDATES) -> dict[str, Any]:
    """One row: recall, and what an update costs."""
    from envs.make import make

    env = make("MiniGrid-MemoryS7-v0", seed=seed)
    rng = np.random.default_rng(seed)
    encoding, episodes = play(env, rng, TRAINED_EPISODES + TEST_EPISODES, arm == "oracle")
    env.close()
    world, step = build(arm, encoding, seed)
    trained = {name: part[:, :TRAINED_EPISODES] for name, part in episodes.items()}
    for _ in range(updates):
        index = torch.as_tensor(rng.integers(TRAINED_EPISODES, size=BATCH_EPISODES))
        step(sequences({name: part[:, index] for name, part in trained.items()}))
    with torch.no_grad():
        tested = sequences({name: part[:, TRAINED_EPISODES:] for name, part in episodes.items()})
        replayed = world.replay_states(tested)
        predicted = world.reward(replayed.features[-1], replayed.action[-1])
    recall = float(((predicted > 0.5) == (tested.reward[-1] > 0.5)).float().mean())
    row: dict[str, Any] = {"arm": arm, "seed": seed, "recall": round(recall, 4), "cost": "", "long_ms": ""}
    if arm in COSTED:
        short_ms = update_ms(arm, encoding, episodes, SHORT)
        long_ms = update_ms(arm, encoding, episodes, LONG)
        row |= {"cost": round(long_ms / short_ms, 3), "long_ms": round(long_ms, 1)}
    return row


def play(env: Any, rng: np.random.Generator, count: int, shows_object: bool) -> tuple[Any, dict[str, Tensor]]:
    """Episodes of the script, time first; with `shows_object` what was seen first is appended to every observation."""
    from gymnasium import spaces

    from agents.networks.actor_critic import SpaceEncoding

    actions_encoding = SpaceEncoding(env.observation_space, env.action_space)
    columns: dict[str, list[Any]] = {"vector": [], "action": [], "reward": []}
    for _ in range(count):
        env.reset(seed=int(rng.integers(2**31)))
        inner = env.unwrapped
        middle = inner.height // 2
        saw_key = inner.grid.get(1, middle - 1).type == "key"
        x = int(inner.agent_pos[0])
        turn = LEFT if rng.random() < 0.5 else RIGHT
        before = [LEFT, LEFT, *[FORWARD] * (x - 1), LEFT, LEFT, FORWARD, FORWARD]
        after = [FORWARD] * (inner.width - 5) + [turn, FORWARD]
        waits = [WAIT] * (EPISODE_STEPS - len(before) - len(after))
        vectors = []
        reward = 0.0
        actions = [*before, *waits, *after]
        for action in actions:
            kinds = inner.gen_obs()["image"][..., 0].ravel()
            vectors.append((kinds[:, None] == SHOWN_KINDS).astype(np.float32).ravel())
            _, reward, terminated, _, _ = env.step(action)
        if not terminated:
            raise RuntimeError("the script of MiniGrid-Memory does not end an episode; has the environment changed?")
        vector = np.stack(vectors)
        if shows_object:
            object_column = np.full((EPISODE_STEPS, 1), float(saw_key), np.float32)
            vector = np.concatenate([vector, object_column], -1)
        columns["vector"].append(vector)
        columns["action"].append(actions_encoding.encode(np.array(actions)))
        columns["reward"].append([*[0.0] * (EPISODE_STEPS - 1), float(reward > 0)])
    size = columns["vector"][0].shape[-1]
    encoding = SpaceEncoding(spaces.Box(0, 1, (size,), np.float32), env.action_space)
    parts = {name: torch.as_tensor(np.array(column, np.float32)).transpose(0, 1) for name, column in columns.items()}
    return encoding, {name: part.contiguous() for name, part in parts.items()}


def build(arm: str, encoding: Any, seed: int) -> tuple[Any, Any]:
    """A latent model, and what takes one step of learning from sequences."""
    from agents.world_model.agent import WorldLearner
    from agents.world_model.config import WorldModelConfig

    cell = "rssm" if arm == "oracle" else arm
    options: dict[str, Any] = {"preset": "dreamer", "cell": cell, "reward_weight": REWARD_WEIGHT}
    if cell == "simnorm":
        # Trained on single observations: what it cannot see it cannot know.
        options |= {"kl": "none", "unroll": 1, "consistency": 1.0, "batch_length": 1}
    config = WorldModelConfig(**options)
    learner = WorldLearner(config, encoding, seed=seed, device=torch.device("cpu"))
    world = learner.world
    flats = world.flats()

    def step(seq: Any) -> None:
        losses, _ = world.losses(seq)
        for flat in flats.values():
            flat.grad.zero_()
        torch.stack(list(losses.values())).sum().backward()
        for flat in flats.values():
            flat.step(LEARNING_RATE, 100.0)

    return world, step


def sequences(parts: dict[str, Tensor]) -> Any:
    """Whole episodes as the replay would give them."""
    from agents.replay.replay import Sequences

    reward = parts["reward"]
    first = torch.zeros(reward.shape, dtype=torch.bool)
    first[0] = True
    terminated = torch.zeros_like(reward)
    terminated[-1] = 1.0
    valid = torch.ones_like(first)
    index = torch.zeros(reward.shape, dtype=torch.int64)
    return Sequences(parts["vector"], {}, parts["action"], reward, reward, terminated, first, valid, index)


def update_ms(arm: str, encoding: Any, episodes: dict[str, Tensor], length: int) -> float:
    """CPU milliseconds of an update on COST_STEPS steps in sequences of `length`."""
    _, step = build(arm, encoding, 0)
    count = COST_STEPS // length
    parts = {}
    for name, part in episodes.items():
        # Episodes one after the other, as long as the sequences shall be.
        flat = part.transpose(0, 1).flatten(0, 1)[: length * count]
        parts[name] = flat.unflatten(0, (count, length)).transpose(0, 1).contiguous()
    seq = sequences(parts)
    step(seq)
    begin = time.process_time()
    for _ in range(COST_UPDATES):
        step(seq)
    return 1000 * (time.process_time() - begin) / COST_UPDATES
