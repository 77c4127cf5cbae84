"""The latent model and TD3 in it: which steps count, what follows what."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import envs.make
from agents.networks.actor_critic import SpaceEncoding
from agents.replay.replay import Sequences
from agents.world_model.agent import WorldLearner, WorldModel
from agents.world_model.config import WorldModelConfig
from agents.world_model.model import slice_steps
from agents.world_model.td3 import joint_hidden

SMALL = {"latent": 16, "hidden": 16, "embed": 16, "groups": 4, "classes": 4}
BOX = spaces.Box(-1, 1, (2,), np.float32)


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def learner(preset, actions=BOX, **changes):
    config = WorldModelConfig(preset=preset, **{**SMALL, **changes})
    return WorldLearner(
        config, SpaceEncoding(spaces.Box(-9, 9, (3,), np.float32), actions), seed=0, device=torch.device("cpu")
    )


def sequences(length=6, batch=5, actions=2):
    draw = random(3)
    no = torch.zeros(length, batch, dtype=torch.bool)
    return Sequences(
        torch.randn(length, batch, 3, generator=draw),
        {},
        torch.rand(length, batch, actions, generator=draw),
        torch.randn(length, batch, generator=draw),
        torch.zeros(length, batch),
        torch.zeros(length, batch),
        no,
        ~no,
        torch.arange(length * batch).view(length, batch),
    )


@pytest.mark.parametrize("preset", ["mrq", "tdmpc2"])
def test_what_lies_behind_the_end_of_an_episode_is_not_predicted(preset):
    made = learner(preset)
    for flat in made.flats.values():  # heads begin by saying the same of everything
        flat.value.add_(0.05 * torch.randn(flat.value.shape, generator=random(1)))
    seq = sequences()
    seq.terminated[1], seq.first[2] = 1.0, True
    joint_loss = made.behaviour.value_loss if made.behaviour.joint else None

    def loss(rows):
        made.generator.manual_seed(0)
        return sum(made.world.losses(rows, joint_loss)[0].values()).item()

    before = loss(seq)
    other = sequences()
    for whole, part in ((seq.vector, other.vector), (seq.action, other.action), (seq.reward, other.reward)):
        whole[2:] = part[2:] + 5
    assert loss(seq) == pytest.approx(before)
    seq.reward[1] += 3
    assert loss(seq) != pytest.approx(before)


@pytest.mark.parametrize(("preset", "decay"), [("tdmpc2", 0.5), ("mrq", 1.0)])
def test_a_later_step_of_a_prediction_weighs_as_the_behaviour_says(preset, decay):
    made, weights = learner(preset), []
    heads = made.world._heads

    def read_weights(*given):
        weights.append(given[-1])
        return heads(*given)

    made.world._heads = read_weights
    made.world.losses(sequences(), made.behaviour.value_loss if made.behaviour.joint else None)
    (weight,) = weights
    expected = torch.tensor([decay**step for step in range(len(weight))])
    assert len(weight) >= 3
    torch.testing.assert_close(weight, expected[:, None].expand_as(weight))


def test_the_losses_of_reward_and_end_are_weighted_means_times_their_weights():
    made = learner("mrq", reward_weight=0.5, continue_weight=0.25)
    world, last = made.world, made.world.end_net[-1]
    with torch.no_grad():
        last.weight.zero_(), last.bias.fill_(np.log(3))  # every step continues with probability 3/4
    z, action = torch.zeros(2, 2, 16), torch.zeros(2, 2, 2)
    torch.testing.assert_close(world.continues(z, action), torch.full((2, 2), 0.75))
    ended, weight = torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.5], [0.5, 0.0]])
    reward = torch.randn(2, 2, generator=random())
    losses = world._heads(z, sequences()._replace(action=action, reward=reward, terminated=ended), weight)
    assert losses["continue"].item() == pytest.approx(-0.25 * (1.5 * np.log(3 / 4) + 0.5 * np.log(1 / 4)) / 2)
    bins = world.head.outputs  # at first all are equally likely, whatever the reward
    assert losses["reward"].item() == pytest.approx(0.5 * np.log(bins), rel=1e-5)


def test_empowerment_is_raised_where_the_successor_is_known_and_divergences_have_weights_of_their_own():
    class Told(torch.nn.Module):
        def log_prob(self, features, next_features, action):
            return -torch.arange(1.0, 6)[:, None].expand(5, 5)  # of the steps 0 to 4

    made, seq = learner("dreamer", empowerment=0.1, kl_dyn=0.5, kl_rep=0.25, free_nats=1.0), sequences()
    seq.first[2] = True  # so the successor of step 1 belongs to another episode
    made.world.empowerment = Told()
    made.world.cell.kl = lambda stats: (torch.full((6, 5), 3.0), torch.full((6, 5), 0.2))
    losses, _ = made.world.losses(seq)
    assert losses["empowerment"].item() == pytest.approx(0.1 * (1 + 3 + 4 + 5) / 4)
    assert losses["kl"].item() == pytest.approx(0.5 * 3 + 0.25 * 1)


def test_steps_that_only_reset_teach_a_memory_nothing():
    made = learner("dreamer")
    seq = sequences()
    seq.valid[4:] = False

    def loss():
        made.generator.manual_seed(0)
        return sum(made.world.losses(seq)[0].values()).item()

    before = loss()
    seq.reward[4:] += 100
    seq.vector[4:] += 100
    assert loss() == pytest.approx(before, rel=1e-5)


def test_the_slow_encoder_moves_only_when_it_catches_up():
    made = learner("mrq")
    vector = torch.randn(4, 3, generator=random())
    slow = made.world.encode(vector, {}, slow=True)
    made.flats["model"].value.add_(0.1 * torch.randn(made.flats["model"].value.shape, generator=random(1)))
    assert torch.equal(made.world.encode(vector, {}, slow=True), slow)
    made.world.catch_up()
    torch.testing.assert_close(made.world.encode(vector, {}, slow=True), made.world.encode(vector, {}))


def test_the_hidden_layer_leads_to_the_next_latent_and_can_be_read_without_moving_its_weights():
    made = learner("mrq")
    cell, z = made.world.cell, torch.rand(4, 16, generator=random())
    action = torch.rand(4, 2, generator=random(1), requires_grad=True)
    zsa = joint_hidden(cell, z, action, frozen=True)
    torch.testing.assert_close(cell.normalized(cell.next[-1](zsa)), cell.step({"z": z}, action)["z"])
    made.flats["model"].grad.zero_()
    zsa.sum().backward()
    assert action.grad.abs().sum() > 0 and made.flats["model"].grad.abs().sum() == 0


def test_plans_are_evaluated_by_the_models_own_heads():
    made = learner("tdmpc2")
    z, action = torch.rand(4, 16, generator=random()), torch.rand(4, 2, generator=random(1))
    predicted = made.world.step(z, action)
    assert torch.equal(predicted.next_obs, made.world.cell.step({"z": z}, action)["z"])
    assert torch.equal(predicted.reward, made.world.reward(z, action))
    torch.testing.assert_close(predicted.terminated, 1 - made.world.continues(z, action))


def test_rewards_are_divided_by_their_root_mean_square_one_burst_late_for_the_slow_value():
    made = learner("mrq")
    behaviour = made.behaviour
    made.flats["critic"].value.add_(1.0), made.flats["actor"].value.add_(2.0)
    behaviour.begin_burst(made.world, torch.tensor([0.0, 3.0, 0.0, 4.0]))
    for slow, fast in (("slow", "critic"), ("slow_actor", "actor")):
        assert torch.equal(made.flats[slow].value, made.flats[fast].value)
    assert behaviour.scale.item() == pytest.approx(2.5) and behaviour.slow_scale.item() == 1.0
    behaviour.begin_burst(made.world, torch.zeros(4))
    assert behaviour.scale.item() == behaviour.slow_scale.item() == pytest.approx(2.5)


def test_targets_of_td3_are_the_slow_networks_in_the_slow_unit_of_rewards():
    """r0 + r1 / 2 + r2 / 4 + s' / 8 min_k Q'_k(z', the best action of their mean), divided by s."""
    made = learner("mrq", spaces.Discrete(3), gamma=0.5, burst=10)
    world, behaviour = made.world, made.behaviour
    for name in ("model", "critic", "slow"):  # the networks and their slow copies differ
        made.flats[name].value.add_(0.3 * torch.randn(made.flats[name].value.shape, generator=random(len(name))))
    behaviour.scale.fill_(2.0), behaviour.slow_scale.fill_(3.0)
    seq = sequences(actions=3)
    seq.action.copy_(torch.eye(3)[torch.arange(30).view(6, 5) % 3])
    with torch.no_grad():
        slow_z = world.encode(seq.vector[3], {}, slow=True)
        every = [joint_hidden(world.slow["cell"], slow_z, torch.eye(3)[[a] * 5]) for a in range(3)]
        values = torch.stack([behaviour.slow_q(x)[..., 0] for x in every], -1)  # (2, 5, 3)
        best = values.mean(0).argmax(-1)
        follows = values.amin(0)[torch.arange(5), best]
        total = seq.reward[0] + seq.reward[1] / 2 + seq.reward[2] / 4
        expected = (total + follows * 3.0 / 8) / 2.0
        z = world.encode(seq.vector[0], {})
        gap = (behaviour.q(joint_hidden(world.cell, z, seq.action[0]))[..., 0] - expected).abs()
    loss = torch.where(gap < 1, gap.square() / 2, gap - 0.5).sum() / 5
    metrics = behaviour.update(world, seq)
    torch.testing.assert_close(behaviour.errors[1], gap.amax(0))
    torch.testing.assert_close(metrics["critic_loss"].detach(), loss)


def test_continuous_targets_of_td3_take_the_slow_policys_action_with_noise_that_is_cut(monkeypatch):
    made = learner("mrq")
    behaviour, cell = made.behaviour, made.world.slow["cell"]
    for name in ("slow", "slow_actor"):
        made.flats[name].value.add_(0.3 * torch.randn(made.flats[name].value.shape, generator=random()))
    drawn = torch.tensor([[0.5, 9.0], [-9.0, 0.0]])
    monkeypatch.setattr("agents.world_model.td3.draw_normal", lambda generator, *shape: drawn)
    z = torch.rand(2, 16, generator=random())
    with torch.no_grad():
        noise = torch.tensor([[0.1, 0.3], [-0.3, 0.0]])
        action = (torch.tanh(behaviour.slow_policy(z)) + noise).clamp(-1, 1)
        expected = behaviour.slow_q(joint_hidden(cell, z, action))[..., 0].min(0).values
        torch.testing.assert_close(behaviour._next_value(cell, z), expected)


def test_the_policy_of_td3_ascends_the_mean_of_its_critics():
    made = learner("mrq", burst=10)
    world, behaviour, seq = made.world, made.behaviour, sequences()
    for name in ("critic", "actor"):
        made.flats[name].value.add_(0.3 * torch.randn(made.flats[name].value.shape, generator=random()))
    with torch.no_grad():
        z = world.encode(seq.vector[0], {})
        raw = behaviour.policy(z)
        value = behaviour.q(joint_hidden(world.cell, z, torch.tanh(raw)))[..., 0].mean(0)
        loss = (1e-5 * raw.square().mean(-1) - value).mean()
    behaviour.descend = lambda loss, *names: None
    torch.testing.assert_close(behaviour.update(world, seq)["actor_loss"].detach(), loss)


def test_td3_acts_at_random_in_half_of_the_noise_and_adds_it_to_continuous_actions(monkeypatch):
    made = learner("mrq", spaces.Discrete(3), exploration=0.4)
    made.flats["critic"].value.add_(0.3 * torch.randn(made.flats["critic"].value.shape, generator=random()))
    z = torch.rand(6000, 16, generator=random(1))
    with torch.no_grad():
        (best, _), (taken, _) = (made.behaviour.act(made.world, {"z": z}, {}, quiet) for quiet in (True, False))
    assert (best * taken).sum(-1).mean().item() == pytest.approx(1 - 0.2 * 2 / 3, abs=0.015)

    made = learner("mrq", exploration=0.4)
    drawn = torch.tensor([[0.5, 9.0]])
    monkeypatch.setattr("agents.world_model.td3.draw_normal", lambda generator, *shape: drawn)
    with torch.no_grad():
        (mode, _), (taken, _) = (made.behaviour.act(made.world, {"z": z[:1]}, {}, quiet) for quiet in (True, False))
    torch.testing.assert_close(taken, torch.stack([mode[:, 0] + 0.2, torch.ones(1)], -1))


def two_critics(behaviour, values):
    """Says `values` (2,) of every latent by `q`, and by `slow_q` ten times as much."""
    behaviour._values = lambda q, z: torch.stack(
        [torch.full(z.shape[:-1], v * (10.0 if q is behaviour.slow_q else 1.0)) for v in values]
    )


def test_targets_of_mpc_are_the_smaller_of_two_slow_critics_and_nothing_follows_an_end():
    made = learner("tdmpc2", gamma=0.5)
    behaviour, seq, told = made.behaviour, sequences(), {}
    two_critics(behaviour, (4.0, 2.0))
    behaviour.head.loss = lambda logits, target: told.update(target=target) or torch.zeros(5, *target.shape)
    seq.terminated[1, 0] = 1.0
    z = torch.zeros(6, 5, 16)
    behaviour.value_loss(slice_steps(seq, 0, 3), z[:4], z[1:4], torch.ones(3, 5), torch.ones(3, 5) > 0)
    expected = seq.reward[:3] + 0.5 * 20
    expected[1, 0] = seq.reward[1, 0]
    torch.testing.assert_close(told["target"].view(3, 5), expected)


def test_plans_of_mpc_end_with_the_mean_of_two_critics():
    made = learner("tdmpc2")
    behaviour, told = made.behaviour, {}
    two_critics(behaviour, (4.0, 2.0))
    behaviour.planner.plan = lambda rollout, obs, **how: told.update(value=how["value"](obs))
    behaviour.act(made.world, {"z": torch.zeros(3, 16)}, behaviour.initial(3))
    assert told["value"].tolist() == [3.0] * 3


def test_values_of_mpc_are_of_actions_within_their_bounds():
    behaviour = learner("tdmpc2").behaviour
    behaviour.policy.sample = lambda distribution, generator: torch.tensor([[-1.7], [0.2], [1.4]])
    assert behaviour._sample(torch.zeros(3, 16)).flatten().tolist() == pytest.approx([-1.0, 0.2, 1.0])


def test_the_policy_of_mpc_ascends_the_mean_of_two_critics_and_later_steps_count_half():
    made = learner("tdmpc2", entropy_weight=0.0)
    behaviour, told = made.behaviour, {}
    values = torch.tensor([[4.0, 1.0, 0.0, 8.0], [2.0, 3.0, 0.0, 8.0]])  # of two critics at four steps
    behaviour._draw_values = lambda q, z, action: values[..., None].expand(2, 4, 5)
    behaviour.scale.update = lambda value: told.update(scaled=value) or behaviour.scale.high.fill_(2.0)
    behaviour.descend = lambda loss, *names: told.update(names=names)
    seq = sequences(4)
    seq.valid[3] = False
    metrics = behaviour.update(made.world, seq, made.world.replay_states(seq))
    assert metrics["actor_loss"].item() == pytest.approx(-(3 / 2 + 0.5 * 2 / 2 + 0.25 * 0) / 1.75)
    assert told["scaled"].tolist() == [3.0] * 5 and told["names"] == ("actor",)


def test_the_reward_head_alone_moves_when_it_is_refitted():
    made = envs.make.make_vec("Pendulum-v1", 2, seed=0)
    config = WorldModelConfig(**SMALL, batch_size=4, batch_length=6, learning_starts=1000, rollout=30, refit=3)
    agent = WorldModel(made, config, seed=0).learn(60)
    before = {name: flat.value.clone() for name, flat in agent.learner.flats.items()}
    agent.learner.refit(agent.replay)
    moved = {name for name, flat in agent.learner.flats.items() if not torch.equal(flat.value, before[name])}
    assert moved == {"reward"}


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "preset"), [("Joint", "mrq"), ("Policy", "r2dreamer")])
def test_it_solves_the_probes(name, preset):
    made = envs.make.make_vec(f"lodestar/Probe{name}-v0", 4, seed=0, backend="gym")
    sizes = {"batch_size": 32, "train_ratio": 16.0, "burst": 20, "learning_starts": 100}
    if preset == "r2dreamer":
        sizes = {"batch_size": 8, "batch_length": 4, "train_ratio": 16.0, "horizon": 2, "learning_starts": 100}
        sizes |= {"actor_learning_rate": 3e-3, "imagine_starts": 32}
    model = WorldModel(made, WorldModelConfig(preset=preset, **SMALL, rollout=50, **sizes), seed=0).learn(600)
    obs = np.array([[-1.0], [1.0]], np.float32) if name == "Joint" else np.zeros((2, 1), np.float32)
    actions, _ = model.predict(obs, deterministic=True)
    assert actions.tolist() == ([0, 1] if name == "Joint" else [1, 1])
