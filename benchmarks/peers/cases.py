"""What is measured beside other libraries; the names of the figures of `benchmarks.peers.peers`.

PPO: rollouts of 2,048 frames, ten epochs, two networks of 64 x 64 with tanh, one environment or array program in this
process. `ours` has `agent.path=numba`, its rewards too, where long runs are; `ours, numpy` and `ours, torch` are where
short ones are.

    cartpole8_over_purejaxrl, cartpole64_over_purejaxrl   array programs on both sides, 8 and 64 environments
    cartpole_over_sb3_mb64, _mb256, _mb512   8 Gymnasium environments on both sides, by rows of a minibatch
    cartpole_over_<peer>, rnd_over_rllte     the same beside other libraries, minibatches of 64
    halfcheetah_over_sb3, halfcheetah_over_sbx, minigrid_over_sb3   the same; MiniGrid-DoorKey-6x6, the better of two
                                             inputs of theirs
    halfcheetah_batched_over_sb3, _over_sbx  the same, ours by backend=batched, theirs Gymnasium's
    cartpole_batched_over_sb3, minigrid_batched_over_sb3   64 environments: ours an array program, theirs Gymnasium's
    sac_over_sbx_utd1, _utd10, _utd20        HalfCheetah, networks of 256 x 256, batches of 256
    dqn_over_sb3                             CartPole, one network of 256 x 256, batches of 64, an update a step
    rnd_equal_over_rllte, icm_equal_over_rllte   `benchmarks.speed.exploration`, the smaller of two observations
    streams8_share                           1 - frames with eight rewards over frames with one
    run1000_cpu_s, run1000_mb                a process that trains for 1,000 steps, imports included; its largest memory
    bound_share_<task>                       time of the matrix products alone, as compiled, over time of the update
    clip_frames_ratio                        PPO with the reward of CLIP, over the tag 0.1.0
    make_train_s                             seconds of `make train` from a warm package cache, written by hand: a row
                                             of the CSV with case=make_train and wall_seconds
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import house
from benchmarks.peers import peers
from benchmarks.peers.peers import RLLTE, Case, Rates, Row, Variant, over
from benchmarks.speed import exploration

SBX = ("sbx-rl>=0.28,<0.29", "gymnasium[mujoco]>=1.2,<1.3")
JAX = ("jax>=0.10,<0.11", "flax>=0.12,<0.13", "optax>=0.2,<0.3", "distrax==0.1.9", "numpy>=2,<3")
PUREJAXRL = ("gymnax==0.0.9", *JAX)  # gymnax 1 returns what its wrappers do not take
TIANSHOU = ("tianshou>=2,<3", "gymnasium>=1.2,<1.3")
TORCHRL = ("torchrl>=0.14,<0.15", "gymnasium>=1.2,<1.3")
SAMPLE_FACTORY = ("sample-factory>=2.1,<2.2",)
CLEANRL = ("torch>=2.15,<2.16", "gymnasium==0.29.1", "numpy<2", "tyro>=0.5,<1")
ROLLOUT = 2_048
STREAMS = ["task", "rnd", "icm", "disagreement", "ride", "e3b", "pseudocount", "count"]
UPRIGHT = ("env=lodestar/CartPoleUpright-v0", "reward=clip")
RELEASE_0_1_0 = "dae834fd"  # its commit, with which the main job is compared


def ppo(
    script: str,
    task: str = "CartPole-v1",
    envs: int = 8,
    minibatch: int = 64,
    needs: tuple[str, ...] = (),
    checkout: str = "",
    rollouts: int = 1,
    **settings: Any,
) -> Variant:
    """Rollouts of 2,048 frames, so many a lap."""
    sizes = {"task": task, "envs": envs, "frames": ROLLOUT * rollouts, "minibatch": minibatch}
    updates = rollouts * ROLLOUT // minibatch * 10
    return Variant(script, {**sizes, "updates": updates, **settings}, needs, checkout)


def ours(backend: str = "gym", **settings: Any) -> dict[str, Variant]:
    """Ours compiled, and in NumPy."""
    paths = {"ours": "numba", "ours, numpy": "numpy"}
    return {name: ppo("ours_ppo", backend=backend, path=path, **settings) for name, path in paths.items()}


def off_policy(script: str, task: str, utd: int, net: int, minibatch: int, **settings: Any) -> Variant:
    """Laps of twenty steps, or of twenty updates where a step has many; learning begins after 300 steps."""
    frames = max(20 // utd, 5)
    sizes = {"task": task, "frames": frames, "minibatch": minibatch, "updates": frames * utd, "net": [net, net]}
    needs = SBX if settings.get("kind", [""])[0] == "sbx" else ()
    return Variant(script, {**sizes, "learning_rate": 3e-4, "starts": 300, **settings}, needs)


def sac(utd: int) -> Case:
    """Ours, sbx and Stable-Baselines3, which is slower than sbx and measured where a step has one update."""
    sizes: dict[str, Any] = {"task": "HalfCheetah-v5", "utd": utd, "net": 256, "minibatch": 256}
    variants = {
        "ours": off_policy("ours_dyna", critics=2, path="numba", **sizes),
        "ours, torch": off_policy("ours_dyna", critics=2, path="torch", **sizes),
        "sbx": off_policy("off_policy", kind=["sbx", "SAC"], **sizes),
    }
    if utd == 1:
        variants["sb3"] = off_policy("off_policy", kind=["stable_baselines3", "SAC"], **sizes)
    figures = {f"sac_over_sbx_utd{utd}": over("ours", "sbx")}
    return Case(variants, figures | ({"sac_over_sb3_utd1": over("ours", "sb3")} if utd == 1 else {}))


def dqn() -> Case:
    """One critic as theirs has, whose target does not choose its action; and two, as ours has by default."""
    sizes: dict[str, Any] = {"task": "CartPole-v1", "utd": 1, "net": 256, "minibatch": 64}
    variants = {
        "ours": off_policy("ours_dyna", critics=1, path="numba", **sizes),
        "ours, two critics": off_policy("ours_dyna", critics=2, path="numba", **sizes),
        "ours, torch": off_policy("ours_dyna", critics=1, path="torch", **sizes),
        "sb3": off_policy("off_policy", kind=["stable_baselines3", "DQN"], **sizes),
    }
    return Case(variants, {"dqn_over_sb3": over("ours", "sb3")})


def purejaxrl(envs: int) -> Case:
    """Array programs; theirs trains for 16 rollouts in one call."""
    home = "LODESTAR_PUREJAXRL=github.com/luchris429/purejaxrl"
    theirs = ppo("purejaxrl_ppo", envs=envs, rollouts=16, rollout=ROLLOUT, needs=PUREJAXRL, checkout=home)
    return Case(
        {**ours("batched", envs=envs), "purejaxrl": theirs},
        {f"cartpole{envs}_over_purejaxrl": over("ours", "purejaxrl")},
    )


def cartpole(minibatch: int) -> Case:
    """Eight Gymnasium environments."""
    variants = {**ours(minibatch=minibatch), "sb3": ppo("sb3_ppo", minibatch=minibatch)}
    return Case(variants, {f"cartpole_over_sb3_mb{minibatch}": over("ours", "sb3")})


def robots() -> Case:
    """HalfCheetah, eight Gymnasium environments; ours as an array program too, which is what backend=auto takes."""
    task: dict[str, Any] = {"task": "HalfCheetah-v5"}
    variants = {**ours(**task), "sb3": ppo("sb3_ppo", **task), "sbx": ppo("sbx_ppo", **task, needs=SBX)}
    variants["ours, batched"] = ppo("ours_ppo", backend="batched", path="numba", **task)
    figures = {f"halfcheetah_over_{name}": over("ours", name) for name in ("sb3", "sbx")}
    return Case(
        variants, {**figures, **{f"halfcheetah_batched_over_{x}": over("ours, batched", x) for x in ("sb3", "sbx")}}
    )


def minigrid(key: str, backend: str, envs: int) -> Case:
    """DoorKey; theirs reads our one-hot numbers, or the image as it is."""
    sizes: dict[str, Any] = {"task": "MiniGrid-DoorKey-6x6-v0", "envs": envs}
    theirs = {f"sb3, {name}": ppo("sb3_ppo", input=name, **sizes) for name in ("raw", "onehot")}
    return Case({**ours(backend, **sizes), **theirs}, {key: over("ours", *theirs)})


def batched() -> Case:
    """64 environments, ours an array program."""
    return Case(
        {**ours("batched", envs=64), "sb3": ppo("sb3_ppo", envs=64)}, {"cartpole_batched_over_sb3": over("ours", "sb3")}
    )


def cleanrl() -> Case:
    """CartPole, eight Gymnasium environments."""
    theirs = ppo("cleanrl_ppo", needs=CLEANRL, checkout="LODESTAR_CLEANRL=github.com/vwxyzjn/cleanrl")
    return Case({**ours(), "cleanrl": theirs}, {"cartpole_over_cleanrl": over("ours", "cleanrl")})


def others() -> Case:
    """CartPole, eight Gymnasium environments, beside all that are there."""
    variants = {
        **ours(),
        "sbx": ppo("sbx_ppo", needs=SBX),
        "rllte": ppo("rllte_ppo", needs=RLLTE),
        "tianshou": ppo("tianshou_ppo", needs=TIANSHOU),
        "torchrl": ppo("torchrl_ppo", needs=TORCHRL, compile=False),
        "torchrl_compiled": ppo("torchrl_ppo", needs=TORCHRL, compile=True),
        "sample_factory": ppo("sample_factory_ppo", needs=SAMPLE_FACTORY),
    }
    names = [name for name in variants if not name.startswith("ours")]
    return Case(variants, {f"cartpole_over_{name}": over("ours", name) for name in names}, rounds=3)


def rnd() -> Case:
    """PPO with RND, each with its own defaults."""
    names: dict[str, Any] = {"rewards": ["task", "rnd"]}
    variants = {**ours(**names), "rllte": ppo("rllte_ppo", needs=RLLTE, **names)}
    return Case(variants, {"rnd_over_rllte": over("ours", "rllte")}, rounds=3)


def streams() -> Case:
    """Rewards in one mix, by their number."""
    numbers = {str(n): ppo("ours_ppo", backend="gym", path="numba", rewards=STREAMS[:n]) for n in (1, 2, 4, 8)}

    def share(rates: Rates) -> float:
        return 1 - over("8", "1")(rates)

    return Case(numbers, {"streams8_share": share})


def bound(key: str, **settings: Any) -> Case:
    """The update as a whole, and its matrix products alone."""
    both = {part: ppo("ours_update", part=part, path="numba", **settings) for part in ("update", "products")}
    return Case(both, {f"bound_share_{key}": over("update", "products")})


def equal(method: str) -> Case:
    """Scored and learned from, networks as large as rllte's."""

    def measure() -> list[Row]:
        python, rows = peers.environment(peers.HOME, RLLTE), list[Row]()
        for turn in range(1, peers.ROUNDS + 1):
            for where, script in ((Path(sys.executable), "ours_rewards"), (python, "rllte_rewards")):
                for row in exploration.measured(where, script, method):
                    if (script, row["variant"]) != ("ours_rewards", "default"):
                        rows.append(_row(turn, f"{script}, {row['observation']}", row["version"], row["cpu_seconds"]))
                        rows[-1]["frames"] = row["transitions"]
        return rows

    def smaller(rates: Rates) -> float:
        return min(over(f"ours_rewards, {o}", f"rllte_rewards, {o}")(rates) for o in exploration.OBSERVATIONS)

    return Case(figures={f"{method}_equal_over_rllte": smaller}, measure=measure)


def run1000() -> Case:
    """A short run as a user starts it, without evaluation, control and video."""

    def measure() -> list[Row]:
        rows = []
        for turn in range(1, peers.ROUNDS + 1):
            with tempfile.TemporaryDirectory() as folder:
                arguments = ["env=CartPole-v1", "total_timesteps=1000", f"run_dir={folder}/run", *house.COMMON[:3]]
                process = subprocess.Popen(
                    [sys.executable, "-m", "runners.train", *arguments],
                    cwd=peers.ROOT,
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, **peers.SETTINGS, "PYTHONPATH": str(peers.ROOT)},
                )
                clock = time.perf_counter()
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                if process.returncode:
                    raise RuntimeError(f"a run of 1,000 steps ended with {process.returncode}")
            row = _row(turn, "run", "", used.ru_utime + used.ru_stime, time.perf_counter() - clock, 1_000)
            rows.append({**row, "settings": " ".join(["env=CartPole-v1", *house.COMMON[:3]])})
            rows[-1]["megabytes"] = round(used.ru_maxrss / 1024, 1)
        return rows

    def figures(rows: list[Row]) -> dict[str, float]:
        keys = {"run1000_cpu_s": "cpu_seconds", "run1000_mb": "megabytes"}
        return {name: float(np.median([float(row[key]) for row in rows])) for name, key in keys.items()}

    return Case(measure=measure, rows=figures)


def clip(steps: int = 4_096) -> Case:
    """The main job, without its control and video, in this version and in 0.1.0."""

    def measure() -> list[Row]:
        rows = []
        with house.checkout(RELEASE_0_1_0) as before:
            for turn in range(1, 4):
                for name, root in (("0.1.0", before), ("ours", peers.ROOT)):
                    rows.append(_row(turn, name, "", house.train(root, UPRIGHT, steps), frames=steps))
                    rows[-1]["settings"] = " ".join(UPRIGHT)
        return rows

    return Case(figures={"clip_frames_ratio": over("ours", "0.1.0")}, measure=measure, rounds=3)


def _row(turn: int, variant: str, versions: str, cpu: float, wall: float = 0.0, frames: int = 0) -> Row:
    found = {"round": turn, "variant": variant, "versions": versions, "settings": ""}
    return {**found, "frames": frames, "cpu_seconds": round(cpu, 5), "wall_seconds": round(wall, 5)}


CASES: dict[str, Case] = {
    "cartpole8": purejaxrl(8),
    "cartpole64": purejaxrl(64),
    **{f"cartpole_mb{rows}": cartpole(rows) for rows in (64, 256, 512)},
    "cartpole_batched": batched(),
    "halfcheetah": robots(),
    "minigrid": minigrid("minigrid_over_sb3", "gym", 8),
    "minigrid_batched": minigrid("minigrid_batched_over_sb3", "batched", 64),
    **{f"sac_utd{utd}": sac(utd) for utd in (1, 10, 20)},
    "dqn": dqn(),
    "rnd_equal": equal("rnd"),
    "icm_equal": equal("icm"),
    "streams": streams(),
    "run1000": run1000(),
    "bound_cartpole": bound("cartpole", backend="batched", envs=64),
    "bound_halfcheetah": bound("halfcheetah", task="HalfCheetah-v5", backend="gym"),
    "bound_minigrid": bound("minigrid", task="MiniGrid-DoorKey-6x6-v0", backend="batched", envs=64),
    "clip": clip(),
    "cleanrl": cleanrl(),
    "others": others(),
    "rnd": rnd(),
}
