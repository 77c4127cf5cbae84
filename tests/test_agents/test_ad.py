"""Learning in context: tokens and stretches by hand, what is kept, acting with a memory, and what is refused."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import register, registry

from agents.offline.ad import AD, ADConfig
from envs.recording import save
from envs.transitions import Transitions
from runners.evaluation.context import play_tasks
from runners.offline import main

LINE, TWO = spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(2)
SMALL = {"width": 16, "layers": 1, "heads": 2, "context": 3}


class TwoArms(gym.Env):
    """One of two arms is rewarded; which one is drawn when it is reset with a seed."""

    observation_space, action_space = LINE, TWO

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.arm = seed % 2
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action == self.arm), True, False, {}


if "TwoArms-v0" not in registry:
    register("TwoArms-v0", TwoArms, max_episode_steps=1)


def histories(rewards, actions, tasks, lengths):
    """Episodes of so many steps, whose observation is the row's number."""
    step = np.concatenate([np.arange(length) for length in lengths])
    ended = np.isin(np.arange(len(step)), np.cumsum(lengths) - 1)
    obs = np.arange(len(step), dtype=np.float32)[:, None]
    flags = {"terminated": ended, "truncated": np.zeros_like(ended), "valid": np.ones_like(ended), "step": step}
    reward = np.array(rewards, np.float32)
    return Transitions(obs, np.array(actions), reward, obs, **flags, extras={"task": np.array(tasks)})


def built(data, **options):
    return AD(ADConfig(**{**SMALL, **options}), LINE, TWO, data)


def tokens(model):
    return (model._tokens * model.net.std + model.net.mean).numpy()


def test_a_token_has_what_came_before_it_also_across_episodes_but_not_across_tasks():
    model = built(histories([0, 1, 0, 5, 7, 0], [1, 0, 0, 1, 1, 0], [0, 0, 0, 0, 3, 3], [2, 2, 1, 1]))
    # Observation, whether an episode begins, the last action one-hot, the last reward.
    by_hand = [[0, 1, 0, 0, 0], [1, 0, 0, 1, 0], [2, 1, 1, 0, 1], [3, 0, 1, 0, 0], [4, 1, 0, 0, 0], [5, 1, 0, 1, 7]]
    np.testing.assert_allclose(tokens(model), by_hand, atol=1e-5)
    assert model._rows.tolist() == [[0, 3], [1, 3], [4, 5]]
    seen = []
    model.net.head.loss = lambda features, action, counts, generator: seen.append((action, counts)) or features.sum()
    model._loss(model._rows[1:])
    action, counts = (part.view(2, 3, 2) for part in seen[0])
    assert counts[..., 0].tolist() == [[True, True, True], [True, True, False]]
    assert action[0].argmax(-1).tolist() == [0, 0, 1] and action[1, :2].argmax(-1).tolist() == [1, 0]


def test_the_loss_is_the_negative_log_likelihood_of_the_steps_that_count():
    head = built(None).net.head
    with torch.no_grad():
        head.net.weight.zero_()
        head.net.bias.copy_(torch.log(torch.tensor([0.75, 0.25])))
    action, counts = torch.eye(2)[[0, 1, 1]], torch.tensor([1.0, 1.0, 0.0])[:, None].expand(3, 2)
    found = float(head.loss(torch.zeros(3, 16), action, counts, None).detach())
    assert found == pytest.approx(-np.log(0.75 * 0.25) / 2)


def test_histories_that_rose_most_are_kept_and_some_of_their_episodes():
    # From half to half: +1, -1, 0 and +0.5.
    rewards, tasks = [0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1], np.repeat([4, 5, 6, 7], 4)
    data = histories(rewards, [0] * 16, tasks, [1] * 16)
    np.testing.assert_allclose(tokens(built(data, keep=0.5))[:, 0], [0, 1, 2, 3, 12, 13, 14, 15], atol=1e-5)
    np.testing.assert_allclose(tokens(built(data, keep=0.01, every=2))[:, 0], [0, 2], atol=1e-5)


def two_arms(seed=0, tasks=40, pulls=6):
    """A learner that tries an arm at random, and keeps the one that was rewarded, or takes the other."""
    first = np.random.default_rng(seed).integers(2, size=tasks)
    arm = np.arange(tasks) % 2
    action = np.repeat(arm[:, None], pulls, 1)
    action[:, 0] = first
    rewards = action == arm[:, None]
    data = histories(rewards.ravel(), action.ravel(), np.repeat(np.arange(tasks), pulls), [1] * (tasks * pulls))
    return data.replace(obs=0 * data.obs, next_obs=0 * data.obs)


def test_it_learns_a_new_task_in_its_context_and_forgets_it_with_its_state(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = two_arms()
    for index in range(2):
        save(f"half{index}.safetensors", data[data.extras["task"] % 2 == index], {"env": "TwoArms-v0"})
    options = ["agent.width=16", "agent.context=6", "agent.learning_rate=0.01", "episodes=4", "steps=100"]
    assert main(["data=half0.safetensors,half1.safetensors", "algo=ad", "out=ad.safetensors", *options]) == 0
    printed = capsys.readouterr().out
    assert "first episode" in printed and "last episode" in printed
    model = AD.load("ad.safetensors", LINE, TWO)
    by_episode = [np.mean(scores.returns) for scores in play_tasks(model.learner(), "TwoArms-v0", 60, 4)]
    assert 0.3 < by_episode[0] < 0.7 and by_episode[1] > 0.9 and by_episode[3] > 0.9
    # A step at a time gives what one pass over the steps does, of the last three at most.
    model.config.context = 3
    state, obs, given = None, np.zeros((2, 1), np.float32), []
    for t in range(5):
        action, state = model.predict(obs, state, np.ones(2, bool), deterministic=True)
        given.append(state["window"][:, -1])
        state["reward"] = np.full(2, t % 2)
    whole = model.net.head.net(model.net(torch.tensor(np.stack(given[-3:], 1)))[:, -1])
    assert whole.argmax(-1).tolist() == action.tolist()
    with pytest.raises(ValueError, match=r"the reward of the last step is missing; give predict state \|"):
        model.predict(obs, {key: state[key] for key in ("window", "action")})


def test_continuous_actions_are_imitated_too():
    data = two_arms(tasks=4)
    stick = spaces.Box(-2, 2, (1,), np.float32)
    model = AD(ADConfig(**SMALL), LINE, stick, data.replace(action=np.full((24, 1), 1.5, np.float32)))
    model.learn(200)
    assert model.predict(np.zeros((3, 1), np.float32), deterministic=True)[0] == pytest.approx(1.5, abs=0.4)


def test_what_is_no_history_is_a_sentence():
    data = histories([0, 1, 0, 5], [1, 0, 0, 1], [0, 0, 1, 1], [2, 2])
    long = histories([0, 1, 0, 5], [1, 0, 0, 1], [7, 7, 7, 1], [3, 1])
    for batch, options, words in [
        (data.replace(extras={}), {}, r'which task a step is of; give each task a file, or extras\["task"\]'),
        (data.replace(extras={"task": np.zeros(4)}), {}, r"histories of 1 task cannot .*; give those of several"),
        (data.replace(extras={"task": np.array([0, 1, 0, 1])}), {}, r"2 tasks lie in 4 pieces; put each one's steps"),
        (long[[0, 2, 1, 3]], {}, r"step 2 follows step 0 in row 1 of task 7; give whole learning runs in the order"),
        (data.replace(reward=np.zeros(4)), {}, r"every reward of the histories is 0, so that nothing tells tasks"),
        (data, {"context": 1}, r"agent.context=1 is shorter than an episode of 2 steps, so that .*; give several"),
        (data.replace(reward=data.reward * np.nan), {}, r"4 rewards are not finite"),
    ]:
        with pytest.raises(ValueError, match=words):
            built(batch, **options)
    with pytest.raises(ValueError, match=r"agent.keep=0 is out of range"):
        ADConfig(keep=0)
