"""All updates of a step in one compiled call (`agents.off_policy.kernel`, by numba): SAC's, and DQN's.

    agent.path=auto       torch until `TORCH_UPDATES` updates were made, then compiled: short runs do not wait
    agent.path=numba      compiled from the first update
    agent.path=torch      never

How many were made is part of a run's state: resumed, it changes over at the same update. Compiling takes 6 CPU-seconds
the first time, then 0.5 from numba's cache on the disk. Limitations: x86 processors with AVX2; the settings that
`ClosedFormUpdate` takes, without bounds for targets, and for DQN those of the same kind; an actor's step with each.
"""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from agents.off_policy.closed_form import MAX_LOG_STD, MIN_LOG_STD, ClosedFormUpdate
from agents.off_policy.dqn import DeepQ
from agents.off_policy.sac import Critics
from agents.replay.replay import Rows
from lodestar.numerics.compiled import kernel, warn_once
from lodestar.numerics.descent import Flat

LEARNER_NAME = "the update of actor and critics"
METRIC_NAMES = ("critic_loss", "q", "actor_loss", "alpha", "entropy")


def updates(learner: Critics, rows: Rows, count: int) -> dict[str, Tensor] | None:
    """`count` updates on as many minibatches, and the last one's metrics; None where the usual path makes them."""
    config = learner.config
    if not ClosedFormUpdate.fits(learner) or config.bounded_targets or config.actor_every > 1:
        if config.path == "numba":
            where = "torch, as agent.path=numba is for plain critics with ReLUs and no further options, on the CPU"
            warn_once(LEARNER_NAME, where)
        return None
    compiled = kernel("agents.off_policy.kernel", LEARNER_NAME, "torch, at half the speed")
    if compiled is None:
        return None
    columns = (rows.obs, rows.action, rows.reward, rows.next_obs, rows.discount)
    size = len(rows.obs) // count
    settings = [config.learning_rate, config.tau, config.max_grad_norm]
    flats = [learner.critic_flat]
    moved = flats
    update = compiled.deep_q
    of_policy: tuple[Any, ...] = ()
    if not isinstance(learner, DeepQ):
        policy = cast(Any, learner)
        update = compiled.soft_actor_critic
        settings += [policy.target_entropy, policy.learned_alpha, MIN_LOG_STD, MAX_LOG_STD]
        flats = [policy.critic_flat, policy.actor_flat, policy.alpha_flat]
        moved = flats if policy.learned_alpha else flats[:2]
        vectors = (_vectors(policy.actor_flat), _vectors(policy.alpha_flat))
        of_policy = (*vectors, _layer_sizes(policy.actor), _draw_noise(policy, count, size))
    # The kernel moves weights, moments and targets in place; the steps that it took are counted afterwards.
    step_counts = torch.stack([flat.steps for flat in flats])
    metrics = update(
        _vectors(learner.critic_flat),
        learner.target_flat.numpy(),
        step_counts.numpy().astype(np.int64),
        _layer_sizes(learner.critic),
        learner.critic.count,
        torch.stack([learner.mean, learner.scale]).numpy(),
        *(np.require(column.numpy(), np.float32, ["C", "W"]) for column in columns),
        size,
        np.array(settings),
        config.target == "min",
        *of_policy,
    )
    for flat in moved:
        flat.steps += count
    # DQN's kernel returns the first two metrics alone.
    return {name: torch.tensor(value) for name, value in zip(METRIC_NAMES, metrics.tolist())}


def _draw_noise(learner: Any, count: int, size: int) -> np.ndarray:
    """Of each update, for the action now and the next one: (count, 2, rows of a minibatch, A)."""
    noise = torch.empty(count, 2, size, learner.action_size)
    for now, following in noise:
        # The next action's noise comes first, as on the other paths, so that seeds mean the same.
        following.normal_(generator=learner.generator)
        now.normal_(generator=learner.generator)
    return noise.numpy()


def _vectors(flat: Flat) -> tuple[np.ndarray, ...]:
    """Values, gradients and Adam's two moments, which the kernel writes into."""
    vectors = (flat.value, flat.grad, flat.mean, flat.square)
    return tuple(vector.numpy() for vector in vectors)


def _layer_sizes(net: Any) -> np.ndarray:
    return np.array([net.inputs, *net.hidden, net.outputs])
