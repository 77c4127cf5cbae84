"""Quality-diversity: novelty and the map by hand, what is found, that a run continues exactly, and what is refused."""

import copy
from importlib.util import find_spec

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import envs.make
import lodestar as ld
import rewards
from agents.qd import QD, QDConfig, encode, fit_encoder, novelty, shrink_frames

MAZE = "benchmarks.worlds:HardMaze-v0"
SMALL = {"population": 20, "nearest": 5, "chunk": 40}


class Plane(gym.Env):
    """One step: the action is where it ends, in [-1, 1]^2, and the reward its first number."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.float32(action), float(action[0]), True, False, {}


gym.register("Plane-v0", Plane)


def agent(env=MAZE, n=20, reward="task", **changes):
    made = envs.make.make_vec(env, n, seed=0)
    mix = rewards.make([reward], made.single_observation_space, made.single_action_space, seed=0)
    return QD(made, QDConfig(**{**SMALL, **changes}), scorer=mix, seed=0)


def reached(model):
    return int(np.isfinite(model.map["fitness"]).sum())


def test_novelty_is_the_mean_distance_to_the_nearest_others():
    codes = np.array([[0.0], [1], [3]])
    assert novelty(codes, codes, 2).tolist() == [2, 1.5, 2.5]
    assert novelty(codes[:1], codes, 1).tolist() == [1]


def test_the_map_keeps_the_best_of_each_cell_and_the_mean_of_what_is_played_again():
    model = agent("Plane-v0", n=4, cells=2)
    genomes = np.arange(4 * model.genes, dtype=np.float32).reshape(4, -1)
    place = np.float32([[-0.5, -0.5], [-0.1, -0.9], [1, 1], [-1, 1]])
    new = {"genome": genomes, "place": place, "fitness": np.array([1.0, 3, 2, -5])}
    assert sorted(model._enter(new)) == [0, 1, 2, 3]
    assert model.map["fitness"].tolist() == [3, -5, -np.inf, 2] and (model.map["genome"][0] == genomes[1]).all()
    model.generation = 1
    again = {"genome": genomes, "place": place[[0, 0, 2, 3]], "fitness": np.array([0.0, 2, 2, -4])}
    assert model._enter(again).tolist() == [3, 1]  # 2 was there already; the best returned 3 and 0, so 1.5 in the mean
    assert model.map["fitness"].tolist() == [2, -4, -np.inf, 2] and model.map["episodes"].tolist() == [1, 1, 0, 1]


def test_fitness_is_the_return_of_the_agents_own_reward_and_the_best_acts():
    model = agent("Plane-v0", n=8, search="random", cells=4).learn(40)
    best = model.map["fitness"].argmax()
    action = model.predict(np.zeros(2, np.float32))[0]
    assert action[0] == pytest.approx(model.map["fitness"][best]) and model.map["place"][best] == pytest.approx(action)
    bonus = agent("Plane-v0", n=8, reward="count", search="random", cells=4).learn(8)
    assert 0 < bonus.map["fitness"].max() <= 1 and not np.allclose(bonus.map["fitness"], model.map["fitness"])


def test_an_autoencoder_keeps_apart_what_varies_and_leaves_out_what_does_not():
    angle = np.random.default_rng(0).uniform(-1, 1, 200)
    coder = fit_encoder(np.c_[angle, -2 * angle, np.ones(200)], 1, seed=0)
    codes = encode(np.c_[angle, -2 * angle, np.ones(200)], coder)
    assert codes.shape == (200, 1) and abs(np.corrcoef(np.argsort(np.argsort(codes[:, 0])), angle)[0, 1]) > 0.95


@pytest.mark.nightly
@pytest.mark.parametrize("changes", [{}, {"search": "novelty"}, {"descriptor": "autoencoder"}], ids=str)
def test_novelty_reaches_more_of_a_maze_than_random_weights(changes):
    chance, model = (agent(**each).learn(20 * 100 * 8) for each in ({"search": "random"}, changes))
    assert reached(model) > 1.4 * reached(chance)


def test_emitters_climb_around_what_was_rewarded():
    model = agent("Plane-v0", search="serene", chunk=60, cells=4, sigma=0.2).learn(20 * 12)
    played = [emitter for emitter in model.emitters if np.isfinite(emitter["gain"])]
    assert len(played) > 0
    for emitter in played:
        # What is seen at the end begins with the reward.
        assert emitter["fitness"].mean() > emitter["ancestor"][0, 0] + 0.05
    assert all(len(emitter["genome"]) <= 6 for emitter in model.emitters)


def people(fitness, seen):
    """Individuals without weights, with what was seen at their ends."""
    fitness = np.array(fitness, float)
    return {"genome": np.zeros((len(fitness), 1)), "seen": np.float32(seen)[:, None], "fitness": fitness}


def test_what_beats_its_emitter_joins_the_rewarded_individuals():
    model = agent("Plane-v0", n=4)
    model.emitters = [{**people([1, 3], [0, 0]), "ancestor": np.float32([[5]]), "gain": np.inf, "waited": 0}]
    model.playing = 0
    # The first one is the best of all, played again.
    assert model._advance_emitter(people([9, 2, 4, 5], [1, 2, 3, 4])) == 0
    assert model.rewarded["fitness"].tolist() == [4, 5]
    [emitter] = model.emitters
    assert emitter["fitness"].tolist() == [5, 4, 3, 2, 1]
    assert (emitter["gain"], emitter["ancestor"].tolist()) == (1.0, [[5.0]])
    emitter["waited"] = 10
    assert model._advance_emitter(people([9, 0, 0, 0], [1, 2, 3, 4])) == -1


def test_the_next_emitter_is_drawn_from_the_front_of_novelty_and_gain():
    model = agent("Plane-v0", n=4, nearest=1)
    model.people = people([0, 0, 0], [0, 1, 9])
    # Their ancestors ended at 0, 1, 4, 9 of the rewarded ones: novelties 0, 0, 3, 0 beside the population's.
    model.rewarded = people([1, 1, 1, 1], [0, 1, 4, 9])
    gains = [2.0, 3.0, 1.0, 3.0]
    model.emitters = [{"ancestor": model.rewarded["seen"][[i]], "gain": gain} for i, gain in enumerate(gains)]
    assert {model._choose_emitter() for _ in range(50)} == {1, 2, 3}


def test_frames_are_shrunk_to_grey_numbers():
    frames = np.zeros((2, 32, 32, 3), np.uint8)
    frames[1, :2, :2] = [255, 0, 0]
    small = shrink_frames(frames)
    assert small.shape == (2, 256)
    assert small[1, 0] == pytest.approx(1 / 3)
    assert np.count_nonzero(small) == 1


def test_novelty_compares_a_code_of_the_last_frames():
    made = envs.make.make_vec("CartPole-v1", 4, seed=0, frame_size=64)
    goal = {"clip": {"goal": "pole standing upright on the cart"}}
    mix = rewards.make(goal, made.single_observation_space, made.single_action_space, seed=0)
    model = QD(made, QDConfig(**SMALL, descriptor="frame", search="novelty"), scorer=mix, seed=0).learn(60)
    assert model.people["seen"].shape[1] == 256
    assert model._codes(model.people).shape[1] == 4


@pytest.mark.parametrize("changes", [{}, {"search": "novelty", "descriptor": "autoencoder"}], ids=str)
def test_a_search_continues_exactly(changes):
    whole, first, second = (agent("Plane-v0", n=10, chunk=20, **changes) for _ in range(3))
    whole.learn(80)
    state = copy.deepcopy(first.learn(40).get_state())
    snapshots = first.envs.call("snapshot")
    second.envs.reset(seed=0)
    for env, snapshot in zip(second.envs.envs, snapshots):
        env.get_wrapper_attr("restore")(snapshot)
    second.set_state(state)
    second.learn(40, reset_num_timesteps=False)
    assert all((second.map[key] == whole.map[key]).all() for key in whole.map)
    assert (second.children == whole.children).all() and second.generation == whole.generation == 8


def test_a_run_has_a_picture_of_its_map_and_is_evaluated_and_explained_as_any_other(tmp_path, drawn_curves):
    run = ld.train(
        "CartPole-v1", "task", "qd", run_dir=str(tmp_path / "a"), total_timesteps=400, n_envs=8, eval_episodes=2,
        video=False, control="none", **{"agent.axes": [0, 2]},
    )  # fmt: skip
    assert (tmp_path / "a" / "archive.png").stat().st_size > 5000
    assert run.policy.predict(np.zeros(4, np.float32))[0] in (0, 1)
    found = run.explain(2, steps=20)
    assert "agent=qd is read by its likeliest action only" in found["left_out"][0] and found["tree"]


@pytest.mark.nightly  # importing pyribs takes ten seconds
def test_what_pyribs_searched_goes_on_and_loses_no_cell():
    pytest.importorskip("ribs")
    model, again = agent(search="cma_me").learn(20 * 100), agent(search="cma_me")
    again.set_state(model.get_state())
    again.envs.reset(seed=0)
    again.learn(20 * 10, reset_num_timesteps=False)
    assert reached(again) >= reached(model) > 1


@pytest.mark.nightly
def test_pyribs_finds_more_than_random_weights():
    pytest.importorskip("ribs")
    chance, model = (agent(search=search).learn(20 * 100 * 8) for search in ("random", "cma_me"))
    assert reached(model) > reached(chance)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"axes": [0, 2]}, r"agent.axes=\[0, 2\] are not two of the observation's 2 entries, from 0 on"),
        ({"axes": [0]}, r"agent.axes=\[0\] are not two of"),
        ({"descriptor": "embedding"}, "agent.descriptor=embedding needs a reward that reads frames; give reward=clip"),
        ({"descriptor": "frame"}, "agent.descriptor=frame needs a reward that reads frames; give reward=clip"),
        ({"sigma": 0}, "agent.sigma=0 is out of range"),
        pytest.param(
            *({"search": "cma_me"}, r"agent.search=cma_me needs pyribs; pip install 'lodestar-rl\[qd\]'"),
            marks=pytest.mark.skipif(find_spec("ribs") is not None, reason="pyribs is installed"),
        ),
    ],
)
def test_what_cannot_be_searched_is_one_sentence_at_construction(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        agent("Plane-v0", **changes)


def test_images_are_refused():
    with pytest.raises(ValueError, match=r"QD's small policies cannot read images, .* use agent=ppo"):
        QD.check(spaces.Box(0, 255, (3, 8, 8), np.uint8), spaces.Discrete(2))
