"""All updates of a step in one compiled call (`agents.off_policy.kernel`, by numba): SAC's, and DQN's.

    agent.path=auto       torch until `LONG` updates were made, then compiled: short runs do not wait
    agent.path=numba      compiled from the first update
    agent.path=torch      never

How many were made is part of a run's state: resumed, it changes over at the same update. Compiling takes 15 CPU-seconds
the first time, then one from numba's cache on the disk. Limitations: x86 processors with AVX2; the settings that
`ClosedFormUpdate` takes, without bounds for targets, and for DQN those of the same kind; an actor's step with each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.networks.compiled import kernel, say
from agents.off_policy.closed_form import LOG_STD, ClosedFormUpdate
from agents.off_policy.dqn import DeepQ
from agents.off_policy.sac import Critics
from agents.replay.replay import Rows

LONG = 10_000  # updates: a minute with two layers of 256
WHOSE = "the update of actor and critics"


def fits(learner: Critics) -> bool:
    """Whether a compiled update does what this learner's would."""
    config = learner.config
    return ClosedFormUpdate.fits(learner) and not config.bounded_targets and config.actor_every == 1


def updates(learner: Critics, parts: Sequence[Rows | None], count: int, made: int) -> dict[str, Tensor] | None:
    """`count` updates after `made`, and the last one's metrics; None where the usual path makes them.

    Each minibatch is the next piece of all parts, which are real transitions and imagined ones.
    """
    asked = learner.config.path == "numba" or (learner.config.path == "auto" and made >= LONG)
    if not asked:
        return None
    if not fits(learner):
        if learner.config.path == "numba":
            say(
                WHOSE, "torch, as agent.path=numba is for plain critics with ReLUs, without further options, on the CPU"
            )
        return None
    compiled = kernel("agents.off_policy.kernel", WHOSE, "torch, at half the speed")
    if compiled is None:
        return None
    pieces = [[x.view(count, -1, *x.shape[1:]) for x in part[:5]] for part in parts if part is not None]
    rows = [np.require(torch.cat(x, 1).flatten(0, 1).numpy(), np.float32, ["C", "W"]) for x in zip(*pieces)]
    return (_deep_q if isinstance(learner, DeepQ) else _soft_actor_critic)(compiled, learner, rows, count)


def _soft_actor_critic(compiled: Any, learner: Any, rows: list[np.ndarray], count: int) -> dict[str, Tensor]:
    size = len(rows[0]) // count
    noise = torch.empty(count, 2, size, learner.action_size)
    for now, then in noise:  # in the order in which the other paths draw
        then.normal_(generator=learner.generator)
        now.normal_(generator=learner.generator)
    flats = [learner.actor_flat, learner.alpha_flat]
    found = compiled.soft_actor_critic(
        _vectors(learner.critic_flat),
        learner.target_flat.numpy(),
        *map(_vectors, flats),
        np.array([int(flat.steps) for flat in (learner.critic_flat, *flats)]),
        *map(_sizes, (learner.critic, learner.actor)),
        learner.critic.count,
        _whitening(learner),
        *rows,
        noise.numpy(),
        size,
        _settings(learner, learner.target_entropy, learner.learned_alpha, *LOG_STD),
        learner.config.target == "min",
    )
    for flat in (learner.critic_flat, *flats[: 1 + learner.learned_alpha]):
        flat.steps += count
    return _metrics(found, "critic_loss", "q", "actor_loss", "alpha", "entropy")


def _deep_q(compiled: Any, learner: Any, rows: list[np.ndarray], count: int) -> dict[str, Tensor]:
    found = compiled.deep_q(
        _vectors(learner.critic_flat),
        learner.target_flat.numpy(),
        int(learner.critic_flat.steps),
        _sizes(learner.critic),
        learner.critic.count,
        _whitening(learner),
        *rows,
        len(rows[0]) // count,
        _settings(learner),
        learner.config.target == "min",
    )
    learner.critic_flat.steps += count
    return _metrics(found, "critic_loss", "q")


def _settings(learner: Critics, *more: float) -> np.ndarray:
    config = learner.config
    return np.array([config.learning_rate, config.tau, config.max_grad_norm, *more], np.float64)


def _whitening(learner: Critics) -> np.ndarray:
    return torch.stack([learner.mean, learner.scale]).numpy()


def _metrics(found: np.ndarray, *names: str) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in zip(names, found.tolist())}


def _vectors(flat: Any) -> tuple[np.ndarray, ...]:
    return tuple(x.numpy() for x in (flat.value, flat.grad, flat.mean, flat.square))


def _sizes(net: Any) -> np.ndarray:
    return np.array([net.inputs, *net.hidden, net.outputs])
