"""What goes into a replay comes out of it, with the present reward."""

import copy
import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from sample import mostly_at_night
from scripted import JUDGED, ScriptedWorld, coded, demonstrations, labels, script, staged, tabled
from stable_baselines3.common.buffers import ReplayBuffer

import rewards
from agents.base import Steps, TaskScorer
from agents.networks.actor_critic import SpaceEncoding
from agents.replay.replay import Replay
from envs.transitions import Transitions
from envs.types import MODALITIES
from lodestar.state import pack, unpack
from rewards.adapters.sb3 import relabelling
from rewards.base import Reward, RewardConfig
from rewards.mix.mix import Mix, Stream

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]
N = 3


class Camera(gym.Env):
    """Shows a step count and the episode's number as a picture; episodes last two to four steps."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (1, 2, 2), np.uint8), "k": spaces.Box(0, 9, (1,), np.float32)}
    )
    action_space = spaces.Discrete(2)

    def __init__(self, index):
        self.index, self.episode = index, -1

    def _look(self):
        picture = np.array([[self.index, self.episode], [self.k, 7]], np.uint8)[None]
        return {"image": picture, "k": np.array([self.k], np.float32)}, {}

    def reset(self, *, seed=None, options=None):
        self.episode, self.k = self.episode + 1, 0
        return self._look()

    def step(self, action):
        self.k += 1
        last = self.k >= 2 + (self.index + self.episode) % 3
        obs, info = self._look()
        return obs, float(self.k), last and self.episode % 2 == 0, last and self.episode % 2 == 1, info


class Brightness(Reward):
    """Ten times the pixels after, less the pixels before."""

    requires = frozenset({"obs", "next_obs"})

    def score(self, batch, memory=None):
        before, after = (x["image"].reshape(len(x["image"]), -1).sum(1) for x in (batch.obs, batch.next_obs))
        return 10.0 * after.astype(np.float32) - before


class Level(Reward):
    level = 1.0

    def score(self, batch, memory=None):
        return np.full(batch.shape, self.level, np.float32)


MAKERS = {
    "Pendulum": lambda i: gym.make("Pendulum-v1", max_episode_steps=5 + i),
    "CartPole": lambda i: gym.make("CartPole-v1", max_episode_steps=12),
    "Camera": Camera,
    "Scripted": ScriptedWorld,
}


def lived(name, mode, steps, scorer=None, capacity=10_000, n=N, **kwargs):
    """A replay, and the batches that went into it."""
    envs = SyncVectorEnv([lambda i=i: MAKERS[name](i) for i in range(n)], autoreset_mode=mode)
    encoding = SpaceEncoding(envs.single_observation_space, envs.single_action_space)
    scorer = TaskScorer(0.9) if scorer is None else scorer
    replay = Replay(capacity, n, encoding, scorer, gamma=0.9, **kwargs)
    moves = Steps(envs, 0)
    moves.begin()
    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(steps):
        action = torch.rand(n, encoding.action_size, generator=generator) * 2 - 1
        if name == "Scripted":
            action = torch.eye(3)[script(moves.obs)]
        batches.append(copy.deepcopy(moves.step(action, encoding)))
        replay.add(batches[-1])
    return replay, batches


def one(reward, name, **config):
    space = MAKERS[name](0)
    stream = Stream("it", reward(RewardConfig(**config), space.observation_space, space.action_space), gamma=0.9)
    return Mix([stream])


def flat(steps, ends=(), terminated=True, reward=None):
    """A replay of one environment whose observation is the time."""
    box = spaces.Box(-100, 100, (1,), np.float32)
    replay = Replay(100, 1, SpaceEncoding(box, box), TaskScorer(0.5), gamma=0.5)
    step = 0
    for t in range(steps):
        end = np.array([t in ends])
        replay.add(
            Transitions(
                obs=np.array([[t]], np.float32),
                action=np.zeros((1, 1), np.float32),
                reward=np.array([2.0**t if reward is None else reward], np.float32),
                next_obs=np.array([[t + 1]], np.float32),
                terminated=end & terminated,
                truncated=end & (not terminated),
                valid=np.ones(1, bool),
                step=np.array([step]),
            )
        )
        step = 0 if t in ends else step + 1
    return replay


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["Pendulum", "CartPole", "Camera"])
def test_what_is_sampled_is_what_was_added_with_true_successors(name, mode):
    replay, batches = lived(name, mode, 60)
    encoding = replay.encoding
    assert len(replay) == sum(b.valid.sum() for b in batches)
    rows = replay.sample(300)
    t, i = np.divmod(rows.index.numpy(), N)
    assert len(set(rows.index.tolist())) > 100
    for j, (time, env) in enumerate(zip(t, i)):
        batch = batches[time]
        assert batch.valid[env]
        np.testing.assert_array_equal(rows.obs[j], encoding.vector(batch.obs)[env])
        np.testing.assert_array_equal(rows.next_obs[j], encoding.vector(batch.next_obs)[env])
        np.testing.assert_array_equal(rows.action[j], encoding.encode(batch.action)[env])
        assert rows.reward[j] == batch.reward[env] and rows.step[j] == batch.step[env]
        assert rows.discount[j] == pytest.approx(0.0 if batch.terminated[env] else 0.9)
    if name == "Pendulum":  # time limits of 5, 6 and 7 steps: nothing terminates, and steps count up to there
        assert rows.discount.min() > 0.89 and rows.step.max() == 6


@pytest.mark.parametrize("mode", MODES)
def test_the_whole_replay_is_handed_to_models_without_resets(mode):
    replay, batches = lived("CartPole", mode, 50, capacity=20 * N)
    obs, action, next_obs, task, terminated, step = replay.arrays()
    kept = batches[-20:]
    valid = np.stack([b.valid for b in kept])
    assert len(obs) == len(action) == len(replay) == valid.sum()
    for ours, theirs in ((obs, [b.obs for b in kept]), (next_obs, [b.next_obs for b in kept])):
        np.testing.assert_array_equal(np.sort(ours, 0), np.sort(np.stack(theirs)[valid], 0))
    assert task.sum() == np.stack([b.reward for b in kept])[valid].sum()
    assert terminated.sum() == np.stack([b.terminated for b in kept])[valid].sum()
    assert step.max() == np.stack([b.step for b in kept])[valid].max()


def test_rows_that_only_reset_are_never_drawn_and_all_others_alike():
    replay, batches = lived("Camera", AutoresetMode.NEXT_STEP, 40, capacity=30 * N)
    valid = np.stack([b.valid for b in batches[10:]])
    drawn = np.bincount(replay.sample(40_000).index, minlength=30 * N).reshape(30, N)
    drawn = np.roll(drawn, -10, 0)  # the ring begins again at the tenth step
    assert (drawn[~valid] == 0).all() and (~valid).sum() > 10
    expected = 40_000 / valid.sum()
    assert np.abs(drawn[valid] - expected).max() < 5 * expected**0.5


def test_the_box_of_all_observations_is_known():
    replay, batches = lived("Pendulum", MODES[0], 30)
    low, high = replay.bounds()
    everything = np.concatenate([np.stack([b.obs, b.next_obs]) for b in batches], 1).reshape(-1, 3)
    np.testing.assert_array_equal(low, everything.min(0))
    np.testing.assert_array_equal(high, everything.max(0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["Scripted", "Camera"])
def test_sequences_run_through_time_and_never_past_the_newest_row(name, mode):
    replay, batches = lived(name, mode, 50, capacity=20 * N)
    encoding = replay.encoding
    drawn = replay.sequences(500, 8)
    assert drawn.vector.shape == (8, 500, encoding.obs_size) and drawn.action.shape[:2] == (8, 500)
    t, i = np.divmod(drawn.index.numpy(), N)
    t = t + 20 * ((49 - t) // 20)  # of the last twenty steps
    assert (np.diff(t, axis=0) == 1).all() and t.max() == 49 and t[0].max() == 42 and t.min() == 30
    for name in ("valid", "terminated", "reward"):
        whole = np.stack([getattr(b, name) * b.valid for b in batches])
        np.testing.assert_array_equal(getattr(drawn, name).numpy(), whole[t, i])
    np.testing.assert_array_equal(drawn.first, np.stack([(b.step == 0) & b.valid for b in batches])[t, i])
    np.testing.assert_array_equal(drawn.vector, np.stack([encoding.vector(b.obs) for b in batches])[t, i])
    for key, images in drawn.pixels.items():
        np.testing.assert_array_equal(images, np.stack([b.obs[key] for b in batches])[t, i])
    assert drawn.valid[0].all()
    assert bool(drawn.valid.all()) == (mode == AutoresetMode.SAME_STEP)


@pytest.mark.parametrize("mode", MODES)
def test_images_are_stored_once_and_finals_are_not_lost(mode):
    mix = one(Brightness, "Camera")
    replay, batches = lived("Camera", mode, 50, mix, capacity=20 * N)
    rows = replay.rows(replay.sampler.in_order())
    assert len(rows.index) == sum(b.valid.sum() for b in batches[-20:])
    t, i = np.divmod(rows.index.numpy(), N)
    t = t + 21 * ((49 - t) // 21)  # a ring of 21: one row waits for what follows
    kept = replay.transitions(rows.index)
    for ours, theirs in (("obs", "obs"), ("next_obs", "next_obs")):
        whole = np.stack([getattr(b, theirs)["image"] for b in batches])
        np.testing.assert_array_equal(getattr(kept, ours)["image"], whole[t, i])
    scored = np.stack([mix.total(b, None, 0)[0] for b in batches])
    np.testing.assert_array_equal(rows.reward, scored[t, i])
    assert len(replay.images.finals["image"]) <= 32


def test_an_episode_that_is_reset_from_outside_is_not_joined_to_the_next():
    mix = rewards.make({"count": None}, ScriptedWorld.observation_space, ScriptedWorld.action_space)
    envs = SyncVectorEnv([lambda: Camera(0)], autoreset_mode=AutoresetMode.SAME_STEP)
    pictures = one(Brightness, "Camera")
    encoding = SpaceEncoding(envs.single_observation_space, envs.single_action_space)
    replay = Replay(50, 1, encoding, pictures, gamma=0.5)
    for _ in range(3):
        moves = Steps(envs, 0)
        moves.begin()
        replay.add(moves.step(torch.tensor([[1.0, 0.0]]), encoding))
    assert replay.rows(torch.arange(3)).discount.tolist() == [0.5] * 3
    after = replay.transitions(torch.arange(3)).next_obs["image"]
    assert after[:, 0, 1, 0].tolist() == [1, 1, 1]
    assert mix.keeps and not pictures.keeps


def test_old_transitions_have_the_newest_reward():
    mix = one(Level, "CartPole")
    replay, _ = lived("CartPole", MODES[0], 30, mix)
    assert replay.sample(16).reward.unique().tolist() == [1]
    mix.streams["it"].reward.level = 5.0
    assert replay.sample(16).reward.unique().tolist() == [5]
    assert replay.sequences(4, 8).reward.unique().tolist() == [5]


def test_a_reward_that_has_learned_relabels_at_once():
    env = MAKERS["CartPole"](0)
    mix = rewards.make(["rnd"], env.observation_space, env.action_space, gamma=0.9)
    mix.streams["rnd"].warmup = 0
    replay, _ = lived("CartPole", MODES[0], 40, mix, update_every=10**6)
    index = torch.arange(64)
    before = replay.rows(index).reward
    assert torch.equal(before, replay.rows(index).reward)
    batch = replay.transitions(torch.arange(90)).map(lambda x: x.reshape(30, 3, *x.shape[1:]))
    mix.update(batch, mix.relabel(batch), 0)
    after = replay.rows(index).reward
    assert not torch.equal(before, after)
    np.testing.assert_allclose(after, mix.total(replay.transitions(index), None, replay.timesteps)[0], rtol=1e-6)


def test_weights_that_follow_a_schedule_are_those_of_now():
    mix = one(Level, "CartPole", weight="linear:1:0:200")
    replay, _ = lived("CartPole", MODES[0], 20, mix)
    assert replay.sample(4).reward.tolist() == pytest.approx([1 - 60 / 200] * 4)
    replay.timesteps = 150
    assert replay.sample(4).reward.tolist() == pytest.approx([0.25] * 4)


class Average(Reward):
    """The mean of a picture's pixels, which stands for the picture."""

    requires = frozenset({"frame"})
    embedding = "average"

    def embed(self, batch):
        return batch.frame.reshape(len(batch.frame), -1).mean(1, keepdims=True, dtype=np.float32)

    def score(self, batch, memory=None):
        return batch.extras["average"][:, 0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", ["none", "potential"])
def test_embeddings_stand_for_frames(mode, shape):
    mix = one(Average, "Scripted", shape=shape)
    replay, batches = lived("Scripted", mode, 80, mix, capacity=70 * N)
    rows = replay.rows(replay.sampler.in_order())
    t, i = np.divmod(rows.index.numpy(), N)
    t = t + 70 * ((79 - t) // 70)
    scored = np.stack([mix.total(b, None, 0)[0] for b in batches])
    np.testing.assert_allclose(rows.reward, scored[t, i], rtol=1e-5, atol=1e-4)
    assert "frame" not in replay.columns and replay.columns["average"].shape == (70, N, 1)


SHUFFLED = {"judge": "simulated", "judge_options": {"shuffle": True, "positive": 0.5}, "min_labels": 1}
KNOWN = {"oni": SHUFFLED, "motif": {"data": labels()}, "code": {"file": coded()}, "table": {"file": tabled()}}
KNOWN |= {"stages": {"file": staged()}, "signal": {"column": 4}, "rubric": {"principles": JUDGED}}
WEIGHTS = {"clip", "contrast", "synthesis", "progress", "progress_model", "self_reference"}  # rewards that read CLIP
KNOWN |= {"discriminator": {"demos": demonstrations()}}
KNOWN |= {"hilp": {"data": demonstrations(), "steps": 3}}
KNOWN |= {"success": {"goals": demonstrations(), "steps": 5, "consecutive": 2}}


def scripted_mix(**configs):
    made = {}
    for name, options in configs.items():
        made[name] = rewards.get(name).Config(**KNOWN.get(name, {}) | options)
        made[name].warmup = 0
    return rewards.make(made, ScriptedWorld.observation_space, ScriptedWorld.action_space, gamma=0.9, seed=3)


CASES = [
    {"count": {}},
    {"rnd": {"shape": "potential"}},
    {"rnd": {"scale": "ema"}, "task": {"weight": 0.5}},
    {"oni": {"model": "count"}},
    {"e3b": {}, "task": {"shape": "clip", "clip_at": 0.5}},
    {"subgoals": {}},
]


@pytest.mark.parametrize("configs", CASES, ids=lambda c: "-".join(c))
def test_the_buffer_of_stable_baselines_gives_the_same_rewards(configs):
    ours = scripted_mix(**configs)
    theirs = scripted_mix(**configs)
    replay, batches = lived("Scripted", MODES[0], 60, ours, update_every=60)
    buffer = relabelling(ReplayBuffer)(
        300, ScriptedWorld.observation_space, ScriptedWorld.action_space, device="cpu", n_envs=N, mix=theirs,
        update_every=60,
    )  # fmt: skip
    shown = [name for name in MODALITIES if getattr(batches[0], name) is not None]
    for batch in batches:
        modalities = {name: getattr(batch, f"obs_{name}") for name in shown}
        buffer.tracker.cursor.show(modalities, np.ones(N, bool))
        infos = [{name: getattr(batch, name)[i] for name in shown} for i in range(N)]
        ended = batch.ended
        for i in range(N):
            infos[i]["TimeLimit.truncated"] = bool(batch.truncated[i])
        buffer.add(batch.obs, batch.next_obs, batch.action[:, None], batch.reward, ended, infos)
    assert replay.metrics == pytest.approx(buffer.metrics)
    times, columns = np.broadcast_arrays(np.arange(60)[:, None], np.arange(N))
    scored = replay.rows(torch.arange(60 * N)).reward.view(60, N)
    np.testing.assert_allclose(scored, buffer.rewards[times, columns], rtol=1e-5, atol=1e-6)
    assert scored.any() or "subgoals" in configs


# Learned bonuses share what is recomputed: by day a few of them, of which some remember, and all other rewards but the
# two that take longest.
BONUSES = {name for name, target in rewards.TABLE.items() if target.startswith("rewards.exploration.")}
RECOMPUTED = sorted(set(rewards.TABLE) - WEIGHTS)
BY_DAY = set(RECOMPUTED) - BONUSES - {"guidance", "lare"} | {"count", "ngu", "rnd", "e3b", "hindsight", "rdd"}


@pytest.mark.parametrize("name", mostly_at_night(RECOMPUTED, *BY_DAY))
def test_every_reward_can_be_recomputed_from_a_replay(name):
    replay, _ = lived(
        "Scripted", AutoresetMode.NEXT_STEP, 30, scripted_mix(**{name: {}}), capacity=20 * N, update_every=15
    )
    for rows in (replay.sample(32), replay.sequences(4, 5), replay.newest(9)):
        assert torch.isfinite(rows.reward).all()
    assert replay.metrics


def test_fresh_transitions_are_learned_from_once_in_time_order():
    mix = one(Level, "Scripted")
    seen = []
    mix.update = lambda batch, raw, timesteps: seen.append((batch.obs.copy(), timesteps)) or {"metric": 1.0}
    replay, batches = lived("Scripted", MODES[0], 30, mix, update_every=30, capacity=25 * N)
    assert [x.shape for x, _ in seen] == [(10, 3, 4)] * 3 and [t for _, t in seen] == [30, 60, 90]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in seen]), np.stack([b.obs for b in batches]))
    assert replay.metrics == {"metric": 1.0}


def test_what_is_logged_before_the_rewards_have_learned_moves_nothing():
    mix = scripted_mix(task={}, rnd={"scale": "ema"})
    replay, batches = lived("Scripted", MODES[0], 40, mix)
    before = copy.deepcopy((pack(mix.state_dict()), pack(replay.state_dict())))
    measured = replay.measure()
    task = np.concatenate([batch.reward[batch.valid] for batch in batches])
    assert replay.metrics == {} and measured["reward/task"] == pytest.approx(task.mean())
    assert {"reward/rnd", "reward/total", "rollout/ep_learned_mean"} <= set(measured)
    np.testing.assert_equal((pack(mix.state_dict()), pack(replay.state_dict())), before)


def test_training_and_imagination_are_counted():
    replay, _ = lived("CartPole", MODES[0], 20, sampling="dfs")
    sampler = replay.sampler
    index = replay.sequences(10, 5).index
    counts = np.bincount(index.reshape(-1), minlength=60) / 5
    np.testing.assert_allclose(sampler.trained[:60], counts, rtol=1e-5)
    assert sampler.imagined.sum() == 0
    obs, step = replay.starts(200)
    assert obs.shape == (200, 4) and step.dtype == torch.int64
    assert sampler.imagined.sum() == 200 and sampler.imagined[sampler.trained == 0].sum() == 0
    replay.sequences(10, 5, imagine=True)
    assert sampler.imagined.sum() == pytest.approx(210) and sampler.trained.sum() == pytest.approx(10)
    replay.sample(7)
    assert sampler.trained.sum() == pytest.approx(17)


def test_errors_of_values_decide_what_is_sampled():
    replay, _ = lived("CartPole", MODES[0], 20, sampling="lap")
    replay.sampler.set_priority(torch.tensor([7]), torch.tensor([-1e9]))
    assert (replay.sample(100).index == 7).float().mean() > 0.95


@pytest.mark.parametrize(
    ("mode", "sampling"),
    mostly_at_night(
        list(itertools.product(MODES, ["uniform", "dfs", "lap"])),
        (MODES[0], "uniform"),
        (MODES[1], "dfs"),
        (MODES[0], "lap"),
    ),
)
def test_a_saved_replay_continues_equally(mode, sampling):
    def build():
        return scripted_mix(count={}, oni={"model": "count"}, task={})

    first, _ = lived("Scripted", mode, 70, build(), capacity=25 * N, update_every=30, sampling=sampling)
    first.sample(8)
    second = Replay(25 * N, N, first.encoding, build(), gamma=0.9, update_every=30, sampling=sampling, seed=9)
    state = unpack(*pack(first.state_dict()))  # as a checkpoint keeps it
    scorer = copy.deepcopy(first.scorer.state_dict())
    second.load_state_dict(state)
    second.scorer.load_state_dict(scorer)
    _, more = lived("Scripted", mode, 100)
    for batch in more[70:]:
        first.add(batch)
        second.add(batch)
        for ours, theirs in zip(first.sample(16), second.sample(16)):
            assert torch.equal(ours, theirs)
    for ours, theirs in zip(first.bounds(), second.bounds()):
        assert torch.equal(ours, theirs)
    assert first.metrics == pytest.approx(second.metrics) and len(first) == len(second)


def test_saved_images_continue_equally():
    first, _ = lived("Camera", MODES[0], 30, one(Brightness, "Camera"), capacity=20 * N)
    second = Replay(20 * N, N, first.encoding, one(Brightness, "Camera"), gamma=0.9, seed=5)
    second.load_state_dict(unpack(*pack(first.state_dict())))
    _, more = lived("Camera", MODES[0], 60)
    for batch in more[30:]:
        first.add(batch)
        second.add(batch)
        assert torch.equal(first.sample(32).reward, second.sample(32).reward)


def test_what_is_too_small_is_refused():
    box = spaces.Box(-1, 1, (1,), np.float32)
    encoding = SpaceEncoding(box, box)
    with pytest.raises(ValueError, match=r"capacity=3 has no room for a step of 4 environments; give 4"):
        Replay(3, 4, encoding, TaskScorer(0.9), gamma=0.9)
    replay = Replay(9, 1, encoding, TaskScorer(0.9), gamma=0.9)
    with pytest.raises(ValueError, match=r"the replay is empty; collect transitions"):
        replay.sample(1)
    with pytest.raises(ValueError, match=r"holds 5 steps of each environment, of 100 .* no sequence of 6"):
        flat(5).sequences(2, 6)
    assert flat(5).sequences(2, 5).index[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["CartPole", "Camera"])
def test_a_replay_on_a_gpu_holds_the_same(name):
    made = [lived(name, MODES[1], 40, device=device)[0] for device in ("cpu", "cuda")]
    index = made[0].sampler.in_order()
    for ours, theirs in zip(made[0].rows(index), made[1].rows(index.cuda())):
        torch.testing.assert_close(ours, theirs.cpu())
    assert made[1].sequences(4, 5).vector.device.type == "cuda"
