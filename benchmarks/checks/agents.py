"""The trained agents of assets/agents: trained, evaluated by 100 episodes, exported with their cards.

Each is one command of `runners.train`; one that was cut continues, one that is there is left alone until its folder is
removed. Agents of the table beside published returns have the seed whose result was the median of its study. The
figures are the cards': the IQM of the task's return and its 95 % interval, a random policy's IQM.
"""

from __future__ import annotations

import datetime
import shlex
from pathlib import Path

from benchmarks.study import commit
from lodestar.files import read_json
from runners.run.config import UsageError

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "assets" / "agents"
ALL = "device=cpu control=none video=false logger=[] eval_episodes=100 eval_steps=1e6"
MINIGRID = "preset=none n_envs=16 agent.n_steps=128 agent.batch_size=256 agent.n_epochs=4 agent.entropy_weight=0.01"
COMMANDS = {  # name -> what it is trained with, as in the studies that chose the settings
    "upright-clip": "env=lodestar/CartPoleUpright-v0 reward=clip",
    "cartpole-task": "env=CartPole-v1 reward=task total_timesteps=150000 n_envs=16",
    "mountaincar-rnd": "env=MountainCar-v0 reward=rnd",
    "deepsea-count": f"env=lodestar/DeepSea-v0 env.size=20 reward=count {MINIGRID} total_timesteps=100000 "
    "agent.net_arch=[32,32] agent.learning_rate=5e-4 reward.count.memory=lifetime reward.count.kind=sqrt "
    "reward.count.episodic=false reward.count.scale=return reward.count.weight=linear:0.3:0:66666",
    "multiroom-count": f"env=MiniGrid-MultiRoom-N4-S5-v0 reward=count {MINIGRID} total_timesteps=300000 "
    "agent.net_arch=[32,32] agent.learning_rate=5e-4 reward.count.scale=return reward.count.weight=linear:0.1:0:150000",
    "doorkey-oni": f"env=MiniGrid-DoorKey-8x8-v0 env.captions=full reward=oni {MINIGRID} total_timesteps=350000 "
    "agent.learning_rate=1e-3 reward.oni.judge=rules reward.oni.model=retrieval reward.oni.weight=linear:0.1:0:150000",
    "pendulum-dyna": "env=Pendulum-v1 agent=dyna agent.preset=mbpo total_timesteps=5000 agent.updates_per_step=5 "
    "agent.net_arch=[64,64] agent.members=1 agent.model_hidden=[128,128] agent.batch_size=128",
    "pendulum-preferences": "env=Pendulum-v1 agent=sac reward=bradley_terry preset=none n_envs=4 total_timesteps=10000 "
    "agent.learning_rate=1e-3 agent.gamma=0.95 agent.net_arch=[64,64] agent.batch_size=128 agent.learning_starts=1000 "
    "agent.gradient_steps=2 reward.bradley_terry.seed_steps=1000 reward.bradley_terry.every=400 "
    "reward.bradley_terry.queries=20 reward.bradley_terry.budget=300 "
    "reward.bradley_terry.judge=scripted "
    "'reward.bradley_terry.judge_options={mistakes: 0.1}'",
    "highway-synthesis": "env=highway-fast-v0 reward=synthesis backend=batched preset=none n_envs=16 "
    "total_timesteps=20000 agent.n_steps=64 agent.batch_size=128 agent.n_epochs=10 agent.learning_rate=1e-3 "
    "agent.entropy_weight=0.01 agent.gamma=0.9 reward.synthesis.model=lodestar-96",
    "nethack-score": "env=lodestar/NetHackScore-v0 reward=task total_timesteps=500000 agent.net_arch=[32,32]",
    # The presets of these hold the settings of their studies.
    "lunarlander-task": "env=LunarLander-v3 seed=1001",
    "hopper-task": "env=Hopper-v5 seed=1002",
    "walker2d-task": "env=Walker2d-v5 seed=1002",
    "swimmer-task": "env=Swimmer-v5 seed=1002",
    "halfcheetah-task": "env=HalfCheetah-v5 seed=1002",
    "keycorridor-noveld": "env=MiniGrid-KeyCorridorS3R3-v0 reward=noveld eval_sampled=true seed=1003",
    "lockedroom-noveld": "env=MiniGrid-LockedRoom-v0 reward=noveld eval_sampled=true seed=1004",
    "keycorridor_s6r3-noveld": "env=MiniGrid-KeyCorridorS6R3-v0 reward=noveld eval_sampled=true seed=1002",
}


def run(folder: Path) -> dict[str, float]:
    """Train and export those that are not there."""
    del folder
    from runners.export.__main__ import ExportConfig, export
    from runners.train import train

    figures: dict[str, float] = {}
    for name, command in COMMANDS.items():
        place = HOME / name
        if not place.exists():
            trained = ROOT / "runs" / "agents" / name
            if train([*shlex.split(f"{command} {ALL}"), f"run_dir={trained}"]):
                raise UsageError(f"{name} was not trained; see {trained}")
            export(ExportConfig(run=str(trained), out=str(place), format="none"))
            (place / "README.md").write_text(finished((place / "README.md").read_text(), name))
        scores = read_json(place / "result.json")
        low, high = scores["this run"]["task_return_interval"]
        figures |= {
            f"{name}_iqm": scores["this run"]["task_return_iqm"],
            f"{name}_random_iqm": scores["random"]["task_return_iqm"],
        }
        figures |= {f"{name}_iqm_low": low, f"{name}_iqm_high": high}
    return figures


def finished(card: str, name: str) -> str:
    """The card of an agent that stays here: where it is, by what it was made, and its licence."""
    card = card.partition("\n## Licence")[0].replace("<this folder>", f"assets/agents/{name}")
    made = f"Made by `python -m benchmarks agents` from commit {commit()} on {datetime.date.today().isoformat()}."
    return f"{card}\n## Licence\n\nMIT, as the suite's. {made}\n"
