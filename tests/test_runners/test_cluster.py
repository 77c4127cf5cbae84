"""One run on a cluster's actors: the same numbers, nothing half used, and a sentence for what cannot be."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pretend_ray import PretendRay, build_run
from stable_baselines3.common.callbacks import BaseCallback

from envs.vector.watchdog import WorkerError
from runners.cli.compose import compose
from runners.cluster import fleet
from runners.cluster.fleet import Flight
from runners.run import checkpoint
from runners.run.build import build
from runners.run.config import UsageError, from_dict, to_dict
from runners.train import train

SMALL = [
    *("env=CartPole-v1", "preset=none", "control=none", "video=false", "eval_episodes=0", "logger=[]", "n_envs=4"),
    *("agent.n_steps=16", "agent.batch_size=32", "agent.n_epochs=2", "agent.net_arch=[16]", "agent.normalize_obs=true"),
]
ROLLOUT = 64


def made(*more, ray=None):
    """Parts of a run, on pretended actors if there is a cluster."""
    return build_run(compose([*SMALL, *more])[0], ray)


class Rollouts(BaseCallback):
    """Keeps copies of what was learnt from."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        collector = self.model.collector
        rollout, importance = collector.rollout, collector.importance
        kept = (rollout.obs, rollout.action, rollout.valid, rollout.truncated, importance)
        self.kept.append([None if x is None else x.copy() for x in kept])


def learn(parts, rollouts=3):
    seen = Rollouts()
    parts.model.learn(rollouts * ROLLOUT, seen)
    return parts.model.flat.value.clone(), seen.kept


@pytest.mark.parametrize(
    "more", [("reward=rnd",), ("agent.path=eager", "backend=gym"), ("agent.gru=8", "agent.sequence=8")], ids=" ".join
)
def test_one_actor_is_the_local_run_bit_for_bit(more):
    local, cluster = learn(made(*more))[0], learn(made(*more, "cluster=local"))[0]
    assert torch.equal(local, cluster)


def test_two_actors_hold_the_environments_that_one_process_would_and_repeat():
    local, *two = (learn(made("backend=gym", *more)) for more in ((), *[("cluster=local", "workers=2")] * 2))
    np.testing.assert_array_equal(local[1][0][0][0], two[0][1][0][0][0])  # each is seeded as there
    assert torch.equal(two[0][0], two[1][0])


def test_an_actor_that_is_lost_is_replaced_and_its_rollout_dropped_whole():
    ray = PretendRay()
    ray.lose("collect", 4)  # the second actor's second rollout
    parts = made("backend=gym", "cluster=local", "workers=2", ray=ray)
    said = []
    parts.venv.say = said.append
    _, kept = learn(parts)
    first, second = kept[:2]
    assert (parts.venv.restarts, parts.venv.dropped, parts.venv.delivered) == (1, 1, 6)
    assert re.match(r"actor 1, with the environments 2 to 3, was lost \(the actor died\); 1 rollouts", said[0])
    np.testing.assert_array_equal(second[0][0], first[0][-1])  # no row is missing between two rollouts
    assert second[2][1:].all() and second[2][0].tolist() == [True, True, False, False]
    assert second[3][0].tolist() == [False, False, True, True]


def test_an_actor_that_dies_at_once_each_time_ends_the_run():
    ray = PretendRay()
    for count in range(4, 9):
        ray.lose("collect", count)
    sentence = "actor 1, with the environments 2 to 3, was lost 3 times in a row without a rollout"
    with pytest.warns(RuntimeWarning, match="1 rollouts are dropped"), pytest.raises(WorkerError, match=sentence):
        learn(made("backend=gym", "cluster=local", "workers=2", ray=ray))


def test_no_rollout_is_learnt_from_twice():
    parts = made("cluster=local")
    parts.venv.reset(seed=0)
    member = parts.venv.members[0]
    member.flight.append(Flight(0, {"number": 1, "version": 1}))
    with pytest.raises(RuntimeError, match="gave rollout 1 where 0 was due"):
        list(parts.venv.gather())


def test_with_a_lag_what_another_policy_acted_counts_as_often_as_it_would_be_chosen():
    parts = made("cluster=local", "workers=2", "lag=1", "agent.learning_rate=0.01")
    _, kept = learn(parts)
    np.testing.assert_allclose(kept[0][4], 1.0, atol=1e-6)  # the first policy acted out the first two rollouts
    assert all((importance > 0).all() and (importance <= 2).all() for *_, importance in kept)
    assert (kept[1][4] < 1 - 1e-4).mean() > 0.2
    assert [len(member.flight) for member in parts.venv.members] == [1, 1]
    assert parts.venv.take_metrics()["time/lag"] == 1


@pytest.mark.parametrize("lag", [0, 1])
def test_a_run_continues_exactly_from_what_it_saved(lag):
    more = ("cluster=local", "workers=2", f"lag={lag}", "backend=gym")
    whole = learn(made(*more), 4)[0]
    before, after = made(*more), made(*more)
    learn(before, 2)
    state = before.model.get_state(), before.mix.state_dict(), before.venv.snapshot()
    after.model.begin_rollout()
    after.model.set_state(state[0])
    after.mix.load_state_dict(state[1])
    after.venv.restore(state[2])
    after.model.learn(2 * ROLLOUT, reset_num_timesteps=False)
    assert torch.equal(after.model.flat.value, whole)


def test_a_run_goes_on_with_fewer_actors_and_in_one_process():
    parts = made("cluster=local", "workers=2", "backend=gym")
    learn(parts, 1)
    state = parts.model.get_state(), parts.venv.snapshot()
    for more in (("cluster=local",), ()):
        other = made("backend=gym", *more)
        other.model.begin_rollout()
        other.model.set_state(state[0])
        other.venv.restore(state[1])
        _, kept = learn(other, 1)
        np.testing.assert_array_equal(kept[0][0][0], parts.model.collector.rollout.obs[0])
        assert kept[0][2].all()


def test_episodes_that_do_not_divide_are_lost_in_rows_that_are_no_transitions():
    parts, other = made("cluster=local", "workers=2"), made("cluster=local")
    learn(parts, 1)
    said = []
    other.venv.say = said.append
    other.model.begin_rollout()
    other.venv.restore(parts.venv.snapshot())  # of two array programs
    _, kept = learn(other, 1)
    assert not kept[0][2][0].any() and kept[0][3][0].all() and kept[0][2][1:].all()
    assert said == ["the saved episodes do not divide among these actors: they are lost, and new ones begin"]


CLIP = ("reward=clip", "reward.clip.goal=pole upright", "reward.clip.shape=delta", "n_envs=2", "agent.n_steps=32")


def test_frames_embedded_by_a_server_give_the_rewards_of_the_local_run():
    class Scores(Rollouts):
        def _on_rollout_end(self):
            self.kept.append((self.locals["raw"]["clip"].copy(), self.locals["batch"].ended.copy()))

    scores = []
    for more in ((), ("cluster=local", "servers=1")):
        parts, seen = made(*CLIP, *more), Scores()
        parts.model.learn(ROLLOUT, seen)
        parts.model.learn(ROLLOUT, seen)
        scores.append(seen.kept)
    assert "frame" not in parts.model.collector.rollout.modalities
    for (local, ended), (served, _) in zip(*scores):  # minibatches of CLIP round the last digits of float16 otherwise
        assert ended.any() and np.abs(local).max() > 0.01
        np.testing.assert_allclose(local, served, atol=2e-3)


def test_a_server_that_is_lost_sees_the_same_frames_again():
    ray = PretendRay()
    ray.lose("embed", 4)
    quiet, lossy = (made(*CLIP, "cluster=local", "workers=2", "servers=1", ray=one) for one in (PretendRay(), ray))
    said = []
    lossy.venv.say = said.append
    one, other = (learn(parts, 2)[0] for parts in (quiet, lossy))
    assert torch.equal(one, other) and lossy.venv.servers.restarts == 1
    assert said == ["reward server 0 was lost and is replaced; it sees the same frames again"]


@pytest.mark.parametrize("lag", [0, 1])
def test_every_transition_is_learnt_from_once_with_its_own_reward(lag):
    from benchmarks.scale.cluster import TICKETS, Inspector

    ray = PretendRay(cpus=3)
    for lost in (("collect", 4), ("collect", 9), ("embed", 5), ("embed", 6)):
        ray.lose(*lost)
    parts = made(*TICKETS, "cluster=local", "workers=2", "servers=1", f"lag={lag}", ray=ray)
    parts.venv.say = lambda sentence: None
    check = Inspector(parts.venv, 0)
    parts.model.learn(8 * 128, check)
    assert (check.rows, check.wrong, parts.venv.delivered) == (8 * 128, 0, 16)
    assert parts.venv.restarts == 2 + parts.venv.servers.restarts and parts.venv.servers.restarts in (1, 2)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("workers=2", "workers=2 is for actors on a cluster; give cluster=auto with it"),
        ("cluster=nowhere", "cluster=nowhere is no address of a cluster; give none, auto, local or host:port"),
        ("cluster=auto agent=world_model", "cluster=auto is for agent=ppo and dyna, not world_model; leave it out"),
        ("cluster=auto lag=2", r"lag=2 is out of range"),
    ],
)
def test_a_command_that_no_cluster_can_run_is_refused(more, sentence):
    with pytest.raises(ValueError, match=sentence):
        compose(["env=CartPole-v1", *more.split()])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("workers=8 n_envs=4", "workers=8 actors cannot share n_envs=4 environments; give n_envs=8"),
        ("workers=3 n_envs=4", r"workers=3 and servers=0 are more than the cluster has CPUs \(2\); give fewer, or add"),
        ("agent.overlap=true", "agent.overlap collects in this process what actors collect; give lag=1"),
        ("servers=1", "servers=1 embed frames, and no reward here reads any; leave it out"),
        ("agent.gru=8 agent.sequence=8 lag=1", "agent.gru=8 remembers by weights that lag=1 replaces"),
    ],
)
def test_what_this_cluster_cannot_run_is_refused_before_anything_starts(more, sentence, monkeypatch):
    monkeypatch.setattr(fleet, "misfit", lambda *_: "")
    config = compose([*SMALL, "cluster=auto", *more.split()])[0]
    mix = build(compose([*SMALL, *[one for one in more.split() if one.startswith("reward")]])[0]).mix
    with pytest.raises(UsageError, match=sentence):
        fleet.refuse(PretendRay(), config, config.n_envs, mix)


def test_a_reward_that_acts_inside_the_environments_stays_with_the_learner():
    ends = SimpleNamespace(reward=SimpleNamespace(config=SimpleNamespace(ends=True), guides=0))
    config = compose([*SMALL, "cluster=auto"])[0]
    with pytest.raises(UsageError, match=r"the reward pole acts inside the environments, .* may not leave the learner"):
        fleet.refuse(PretendRay(), config, 4, SimpleNamespace(streams={"pole": ends}))


def test_where_a_run_is_computed_is_no_part_of_what_it_is():
    local, cluster, later = (
        compose([*SMALL, *more])[0] for more in ((), ("cluster=auto", "workers=2"), ("cluster=auto", "lag=1"))
    )
    assert local.key() == cluster.key() != later.key()
    assert "cluster" not in to_dict(local) and from_dict(to_dict(cluster)).workers == 2


# ----------------------------------------------------------------------------------------------------- with real Ray


@pytest.mark.nightly  # a cluster takes half a minute to start
def test_runs_on_ray_equal_the_local_one_and_survive_killed_actors_and_servers(tmp_path):
    pytest.importorskip("ray")
    from benchmarks.scale.cluster import bitwise, kills

    assert bitwise(tmp_path, rollouts=2) == {"bitwise_equal_local": 2 * 1024}
    assert kills(tmp_path, count=3) == {"ray_kills": 3, "ray_lost": 0}


@pytest.mark.nightly
def test_a_run_that_was_begun_on_a_cluster_is_finished_by_the_same_command(tmp_path):
    pytest.importorskip("ray")
    weights = []
    for parts in (("total_timesteps=256",), ("total_timesteps=128", "total_timesteps=256")):
        folder = tmp_path / str(len(parts))
        for more in parts:
            assert train([*SMALL, "cluster=local", "workers=2", "lag=1", more, f"run_dir={folder}"]) == 0
        weights.append(checkpoint.load(folder / "checkpoints")[0]["agent"]["modules"]["policy"])
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
