"""A run with a replay on a cluster's actors: the same numbers, nothing half stored, a sentence for what cannot be."""

import os
import re
import signal

import numpy as np
import pytest
from gymnasium.error import NameNotFound
from pretend_ray import PretendRay, build_run
from stable_baselines3.common.callbacks import BaseCallback

from envs.transitions import NotFinite
from envs.vector.watchdog import WorkerError
from lodestar.state import pack, unpack
from runners.cli.compose import compose
from runners.cluster import fleet
from runners.cluster.actor import Actor
from runners.run.build import build
from runners.run.config import UsageError

pytestmark = pytest.mark.usefixtures("short_fits")
SMALL = [
    *("env=Pendulum-v1", "agent=dyna", "agent.preset=sac", "preset=none", "control=none", "video=false"),
    *("eval_episodes=0", "logger=[]", "backend=gym", "agent.path=torch", "agent.net_arch=[8]", "agent.batch_size=8"),
    *("agent.learning_starts=20", "agent.updates_per_step=0.5", "agent.rollout=20", "max_episode_steps=30"),
]
TWO = ("n_envs=2", "cluster=local", "workers=2")


def make_run(*more, ray=None):
    return build_run(compose([*SMALL, *more])[0], ray)


def learn(parts, steps=60):
    parts.model.learn(steps, reset_num_timesteps=False)
    return parts.model.get_state()


def assert_equal_states(one, other):
    """All that a checkpoint holds of an agent: weights, replay, random numbers, episodes; actors' own aside."""
    for state in (one, other):
        state["steps"].pop("draws", None)
    tree, arrays = pack(one)
    other_tree, other_arrays = pack(other)
    assert tree == other_tree
    for name, value in arrays.items():
        np.testing.assert_array_equal(value, other_arrays[name], err_msg=name)


def assert_no_transition_is_missing(replay, count):
    """Of the first `count` time rows, each leads to the next one of its episode: none is missing, none comes twice."""
    rows = replay._rows_at(np.arange(count))
    follows = rows.valid[1:] & (rows.step[1:] > 0)
    np.testing.assert_array_equal(rows.step[1:][follows], rows.step[:-1][follows] + 1)
    np.testing.assert_array_equal(rows.obs[1:][follows], rows.next_obs[:-1][follows])


def continue_run(before, after):
    """What a checkpoint brings from one run to another."""
    state = unpack(*pack([before.model.get_state(), before.mix.state_dict(), before.venv.snapshot()]))
    after.model.begin_rollout()
    after.model.set_state(state[0])
    after.mix.load_state_dict(state[1])
    after.venv.restore(state[2])


@pytest.mark.parametrize(
    "more",
    [
        ("reward=rnd",),
        ("env=CartPole-v1", "backend=batched", "n_envs=2"),
        (
            "agent.preset=mbpo",
            "agent.members=2",
            "agent.model_every=40",
            "agent.model_steps=4",
            "agent.model_hidden=[8]",
            "agent.rollouts_per_step=1",
        ),
    ],
    ids=["sac", "dqn", "mbpo"],
)
def test_one_actor_is_the_local_run_bit_for_bit(more):
    local, cluster = (learn(make_run(*more, *place)) for place in ((), ("cluster=local",)))
    assert local["counters"]["updates"] > 10
    assert_equal_states(local, cluster)


def test_two_actors_hold_the_environments_that_one_process_would_and_repeat():
    local, *two = (learn(make_run("n_envs=2", *more), 20) for more in ((), *[("cluster=local", "workers=2")] * 2))
    np.testing.assert_array_equal(local["replay"]["table"][:2, :3], two[0]["replay"]["table"][:2, :3])
    assert_equal_states(*two)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_run_continues_exactly_from_what_it_saved(lag):
    more = (*TWO, f"lag={lag}", "reward=rnd")
    expected = learn(make_run(*more), 120)
    before, after = make_run(*more), make_run(*more)
    learn(before, 60)
    continue_run(before, after)
    after.model.num_timesteps = 60
    assert_equal_states(expected, learn(after, 60))


def test_with_a_lag_actors_act_by_the_weights_of_one_rollout_before():
    parts = make_run(*TWO, "lag=1", "agent.rollout=10")
    learn(parts, 60)
    assert parts.venv.take_metrics()["time/lag"] == 1
    assert [len(member.flight) for member in parts.venv.members] == [1, 1]
    # Six rollouts of each actor were learnt from, and one is under way.
    assert parts.model.replay.added == 60 and parts.venv.delivered == 12


@pytest.mark.parametrize("lag", [0, 1])
def test_an_actor_that_is_lost_is_replaced_and_what_it_had_under_way_dropped_whole(lag):
    ray = PretendRay()
    # The second actor's second answer.
    ray.lose("collect", 4)
    parts = make_run(*TWO, f"lag={lag}", ray=ray)
    said = []
    parts.venv.say = said.append
    learn(parts, 80)
    sentence = r"actor 1, with the environments 1 to 1, was lost \(the actor died\); [12] rollouts are dropped, its"
    assert len(said) == 1 and re.match(sentence, said[0]) and parts.venv.restarts == 1
    rows = parts.model.replay._rows_at(np.arange(40))
    lost = np.argwhere(~rows.valid).tolist()
    # A rollout of 20 steps is ten rows.
    row = 10 if lag else 1
    assert lost == [[row, 1]]
    assert rows.truncated[row, 1] and rows.step[row + 1, 1] == 0
    assert len(parts.model.replay) == 79
    assert_no_transition_is_missing(parts.model.replay, 40)


def test_an_actor_that_dies_at_once_each_time_ends_the_run():
    ray = PretendRay()
    for count in range(4, 9):
        ray.lose("collect", count)
    sentence = "actor 1, with the environments 1 to 1, was lost 3 times in a row without a rollout"
    with pytest.warns(RuntimeWarning, match="rollouts are dropped"), pytest.raises(WorkerError, match=sentence):
        learn(make_run(*TWO, ray=ray))


def test_a_run_goes_on_with_fewer_actors_and_in_one_process():
    parts = make_run(*TWO)
    learn(parts, 40)
    for more in (("cluster=local",), ()):
        other = make_run("n_envs=2", *more)
        continue_run(parts, other)
        learn(other, 20)
        rows = other.model.replay._rows_at(np.arange(30))
        assert rows.valid.all()
        np.testing.assert_array_equal(rows.obs[20], rows.next_obs[19])
        assert rows.step[20].tolist() == [20, 20]


def test_with_a_lag_fewer_actors_begin_new_episodes_after_a_row_that_is_no_transition():
    parts, other = make_run(*TWO, "lag=1"), make_run("n_envs=2", "cluster=local", "lag=1")
    learn(parts, 40)
    said = []
    other.venv.say = said.append
    continue_run(parts, other)
    learn(other, 20)
    rows = other.model.replay._rows_at(np.arange(30))
    assert said == ["the saved episodes do not divide among these actors: they are lost, and new ones begin"]
    assert not rows.valid[20].any() and rows.valid[21:].all() and rows.step[21].tolist() == [0, 0]


def test_frames_embedded_by_a_server_are_stored_as_the_learner_would_embed_them():
    clip = ("env=CartPole-v1", "reward=clip", "reward.clip.goal=pole upright", "reward.clip.shape=delta")
    columns = []
    for more in ((), ("servers=1",)):
        parts = make_run(*clip, *more, "cluster=local", "lag=1", "agent.learning_starts=60")
        learn(parts, 40)
        parts.model.replay.flush()
        columns.append(parts.model.replay.columns)
        assert (parts.model.replay._rows_at(np.arange(40)).step == 0).sum() > 1
    learner, served = columns
    assert learner.keys() == served.keys() and "frame" not in served
    for name, value in learner.items():
        # Minibatches of CLIP round the last digits of float16 otherwise.
        np.testing.assert_allclose(value[:40], served[name][:40], atol=2e-2, err_msg=name)


def test_weights_that_are_not_finite_act_at_random_and_the_learner_returns_to_finite_ones():
    states = []
    for more in ((), ("cluster=local",)):
        parts = make_run(*more)
        learn(parts, 40)
        parts.model.learner.actor.stack[-1].data[:] = np.nan
        states.append(learn(parts, 1))
        assert parts.model._restored == 1
    assert_equal_states(*states)


def test_a_reward_that_is_not_finite_is_refused_as_in_a_local_run(monkeypatch):
    from gymnasium.envs.classic_control.pendulum import PendulumEnv

    step = PendulumEnv.step
    monkeypatch.setattr(PendulumEnv, "step", lambda self, action: (step(self, action)[0], np.nan, False, False, {}))
    with pytest.raises(NotFinite, match="reward"):
        learn(make_run("cluster=local"))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("agent=sac", "cannot divide the loop of agent=sac, .*; give agent=dyna agent.preset=sac"),
        ("agent=dqn env=CartPole-v1", "cannot divide the loop of agent=dqn, .*; give agent=dyna agent.preset=sac"),
        ("workers=0", r"workers=0 is out of range"),
    ],
)
def test_a_command_that_no_cluster_can_run_is_refused(more, sentence):
    with pytest.raises(ValueError, match=sentence):
        compose(["env=Pendulum-v1", "agent=dyna", "cluster=auto", *more.split()])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("workers=2", "workers=2 actors cannot share n_envs=1 environments; give n_envs=2"),
        ("agent.planner=cem agent.update=none", "agent.planner=cem acts by the model, which stays with the learner"),
    ],
)
def test_what_this_cluster_cannot_run_is_refused_before_anything_starts(more, sentence, monkeypatch):
    monkeypatch.setattr(fleet, "misfit", lambda *_: "")
    config = compose([*SMALL, "cluster=auto", *more.split()])[0]
    with pytest.raises(UsageError, match=sentence):
        fleet.refuse(PretendRay(), config, 1, build(compose(SMALL)[0]).mix)


def test_an_environment_that_no_actor_can_make_is_named_with_what_to_do(monkeypatch):
    def make(self, *arguments):
        raise NameNotFound("Environment `Mine` doesn't exist.")

    monkeypatch.setattr(Actor, "make", make)
    sentence = "actors cannot make env=Pendulum-v1 .*; register it in a module, and give env=module:Id"
    with pytest.raises(UsageError, match=sentence):
        make_run("cluster=local")


# ----------------------------------------------------------------------------------------------------- with real Ray


class KillActor(BaseCallback):
    """Kills the first actor by SIGKILL after so many steps."""

    def __init__(self, fleet, step):
        super().__init__()
        self.fleet = fleet
        self.step = step

    def _on_step(self):
        if self.num_timesteps == self.step:
            os.kill(self.fleet.members[0].pid, signal.SIGKILL)
        return True


@pytest.mark.nightly  # a cluster takes half a minute to start
def test_on_ray_one_actor_is_the_local_run_and_killed_ones_leave_nothing_half_stored():
    pytest.importorskip("ray")
    from benchmarks.scale.cluster import local_cluster, made

    local = learn(make_run("reward=rnd"))
    with local_cluster():
        with made(*SMALL, "reward=rnd", "cluster=auto") as parts:
            assert_equal_states(local, learn(parts))
        for lag in (0, 1):
            with made(*SMALL, "n_envs=2", "workers=2", "cluster=auto", f"lag={lag}") as parts:
                parts.venv.say = lambda sentence: None
                parts.model.learn(400, KillActor(parts.venv, 100))
                assert parts.venv.restarts == 1
                assert_no_transition_is_missing(parts.model.replay, 200)
                assert len(parts.model.replay) == 399
