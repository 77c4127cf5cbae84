"""All updates of a step in one compiled call (`agents.off_policy.kernel`, by numba): SAC's, and DQN's.

    agent.path=auto       torch until `LONG` updates were made, then compiled: short runs do not wait
    agent.path=numba      compiled from the first update
    agent.path=torch      never

How many were made is part of a run's state: resumed, it changes over at the same update. Compiling takes 6 CPU-seconds
the first time, then 0.5 from numba's cache on the disk. Limitations: x86 processors with AVX2; the settings that
`ClosedFormUpdate` takes, without bounds for targets, and for DQN those of the same kind; an actor's step with each.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from agents.off_policy.closed_form import LOG_STD, ClosedFormUpdate
from agents.off_policy.dqn import DeepQ
from agents.off_policy.sac import Critics
from agents.replay.replay import Rows
from lodestar.numerics.compiled import kernel, say

LONG = 10_000  # updates: a minute with two layers of 256
WHOSE = "the update of actor and critics"
NAMES = ("critic_loss", "q", "actor_loss", "alpha", "entropy")


def updates(learner: Critics, parts: Sequence[Rows | None], count: int, made: int) -> dict[str, Tensor] | None:
    """`count` updates after `made`, and the last one's metrics; None where the usual path makes them.

    Each minibatch is the next piece of all parts, which are real transitions and imagined ones.
    """
    config, own = learner.config, cast(Any, learner)
    if config.path == "torch" or (config.path == "auto" and made < LONG):
        return None
    if not ClosedFormUpdate.fits(learner) or config.bounded_targets or config.actor_every > 1:
        if config.path == "numba":
            say(WHOSE, "torch, as agent.path=numba is for plain critics with ReLUs and no further options, on the CPU")
        return None
    compiled = kernel("agents.off_policy.kernel", WHOSE, "torch, at half the speed")
    if compiled is None:
        return None
    pieces = [[x.view(count, -1, *x.shape[1:]) for x in part[:5]] for part in parts if part is not None]
    rows = [np.require(torch.cat(x, 1).flatten(0, 1).numpy(), np.float32, ["C", "W"]) for x in zip(*pieces)]
    nets, flats = [learner.critic], [learner.critic_flat]
    if policy := not isinstance(learner, DeepQ):
        nets, flats = [*nets, own.actor], [*flats, own.actor_flat, own.alpha_flat]
    vectors = [tuple(x.numpy() for x in (flat.value, flat.grad, flat.mean, flat.square)) for flat in flats]
    steps = np.array([int(flat.steps) for flat in flats])
    sizes = [np.array([net.inputs, *net.hidden, net.outputs]) for net in nets]
    given: tuple[Any, ...] = (learner.target_flat.numpy(), steps, sizes[0], learner.critic.count)
    given += (torch.stack([learner.mean, learner.scale]).numpy(), *rows, len(rows[0]) // count)
    settings = [config.learning_rate, config.tau, config.max_grad_norm]
    if policy:
        noise = torch.empty(count, 2, len(rows[0]) // count, own.action_size)
        for now, then in noise:  # in the order in which the other paths draw
            then.normal_(generator=learner.generator)
            now.normal_(generator=learner.generator)
        settings += [own.target_entropy, own.learned_alpha, *LOG_STD]
        more = (vectors[1], vectors[2], sizes[1], noise.numpy())
        found = compiled.soft_actor_critic(vectors[0], *given, np.array(settings), config.target == "min", *more)
    else:
        found = compiled.deep_q(vectors[0], *given, np.array(settings), config.target == "min")
    for flat in flats[: 2 + (policy and own.learned_alpha)]:
        flat.steps += count
    return {name: torch.tensor(value) for name, value in zip(NAMES, found.tolist())}
