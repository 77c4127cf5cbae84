"""The extensions of PPO: the settings of each, and what a setting adds to the core.

Importing it is cheap: a class is imported when an agent is made whose settings ask for it.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lodestar.settings import Schedule, Settings, setting


@dataclass
class ExtensionSettings(Settings):
    """Of all extensions."""

    # Of `agents.ppo.plugins.balance.Balance`.
    balance: str = setting(
        "none",
        "streams by their weights; with advantages of equal size (normalize); or by their policy gradients: a"
        " direction in which none loses (min_norm), or without what each has against the others (project)",
        "none | normalize | min_norm | project",
    )
    balance_only: list[str] = setting([], "streams that are balanced, the others are added by weight; none for all")

    # Of `agents.ppo.plugins.blend.Blend`.
    blend: str = setting(
        "none",
        "how weights that are `learned` find what serves the task: aligned (by the next rollout's gradient), implicit"
        " (by where the policy would end), search (by trying: ten rollouts a step)",
        "none | aligned | implicit | search",
    )
    blend_rate: float = setting(0.2, "of learned weights: a rollout's step of softplus^-1, at most", "(0, 10]")

    # Of `agents.ppo.plugins.clip_cov.ClipCovUpdate`.
    clip_cov: float = setting(
        0.0,
        "share of a minibatch without policy gradient, drawn from rows whose covariance of log-probability and "
        "advantage lies between clip_cov_low and clip_cov_high: entropy falls later; 0: none [0.0002; SPEAR 0.02]",
        "[0, 1]",
    )
    clip_cov_low: float = setting(1.0, "the least such covariance, of advantages of unit deviation", ">= 0")
    clip_cov_high: float = setting(5.0, "the greatest; SPEAR has 40", "> 0")

    # Of `agents.ppo.plugins.imitate.Imitation`.
    imitate: Any = setting(0.0, "learning rate of imitating own good episodes (SIL) over PPO's; a number or a schedule")
    imitate_updates: int = setting(4, "of it after each rollout", ">= 1")
    imitate_max_age: int = setting(0, "rollouts that episodes are kept; 0 for any number", ">= 0")
    imitate_baseline: str = setting(
        "value", "what a return has to beat: its state's value, or the median episode's", "value | median"
    )
    imitate_cap: float = setting(
        5.0,
        "-log of the probability of each number of an action, z^2 / 2 of a Gaussian; rarer ones are not imitated",
        "> 0",
    )

    # Of `agents.ppo.plugins.demonstrations.Demonstrations`.
    demos: str = setting("", "a recording, or the name of one that ships, to begin as a clone of and to go back to")
    demo_start: int = setting(2000, "demos: minibatches of cloning before training; 0 begins as without", ">= 0")
    demo_rate: Any = setting(
        0.3, "demos: learning rate after rollouts, over PPO's, where the agent expects less; a number or a schedule"
    )
    demo_updates: int = setting(4, "demos: minibatches after each rollout", ">= 1")

    # Of `agents.ppo.learners`: the network, and `agents.ppo.trees` in its place.
    net: str = setting(
        "mlp",
        "what reads flat observations; glyphs: those with declared parts (NetHack); trees: boosted trees instead of a "
        "network, one more a minibatch, so take large ones, as batch_size=512",
        "mlp | glyphs | trees",
    )
    tree_depth: int = setting(4, "questions a tree asks", "[1, 10]")
    tree_bins: int = setting(32, "thresholds an input may be compared with, and 1 [256]", "[2, 1024]")
    tree_rate: float = setting(0.1, "share of the gradient that a tree adds to the policy's outputs", "(0, 10]")
    tree_value_rate: float = setting(0.02, "the same of the values", "(0, 1]")
    tree_limit: int = setting(
        0, "trees beyond which half as many are fitted to what they say at the rollout's rows; 0: any number", ">= 0"
    )

    # Of `agents.ppo.plugins.overlap.Overlap`.
    overlap: bool = setting(
        False,
        "collect the next rollout while the last one is learnt from, on a second core: one rollout of policy lag",
    )

    # Of `agents.ppo.plugins.reference.Reference`.
    reference: str = setting(
        "",
        "a policy to stay near: a file of one, or start, the one that training begins with",
    )
    kl: float = setting(0.0, "what a nat of divergence from the reference costs", ">= 0")
    reference_every: int = setting(0, "rollouts after which the policy becomes the reference; 0: never", ">= 0")


def refuse_conflicts(config: Any) -> None:
    """Raise a ValueError for settings of a `PPOConfig` that do not go together."""
    config.refuse_if(
        config.balance_only and config.balance == "none",
        "agent.balance_only={balance_only} balances nothing; give agent.balance=min_norm or project",
    )
    config.refuse_if(
        config.balance != "none" and config.blend != "none",
        "agent.balance={balance} and agent.blend={blend} both decide what a stream counts; give one of them",
    )
    config.refuse_if(
        config.gru and config.blend == "implicit",
        "agent.blend=implicit needs second derivatives, which agent.gru={gru} lacks; take aligned or search",
    )
    is_trees = config.net == "trees"
    for name in ("gru", "normalize_obs", "blend", "imitate"):
        value = getattr(config, name)
        config.refuse_if(
            is_trees and value and value != "none",
            f"agent.{name}={{{name}}} is for networks, and agent.net={{net}} has no use for it; leave one out",
        )
    config.refuse_if(config.tree_limit == 1, "agent.tree_limit=1 leaves no tree; give 2 or more, or 0 for any number")
    config.refuse_if(
        config.overlap and (is_trees or config.blend != "none"),
        "agent.overlap learns from a rollout that an earlier policy collected, which agent.net=trees (here: {net}) "
        "and agent.blend (here: {blend}) do not; give agent.overlap=false",
    )
    config.refuse_if(
        bool(config.reference) != bool(config.kl),
        "agent.reference={reference} and agent.kl={kl} need each other; give both, as in agent.reference=start "
        "agent.kl=0.1, or neither",
    )
    config.refuse_if(
        config.reference and (config.gru or config.net == "trees" or config.blend != "none"),
        "agent.reference={reference} is for networks without memory and weights that are given; take agent.gru=0 "
        "(here: {gru}), agent.blend=none (here: {blend}) and another agent.net than trees (here: {net})",
    )
    config.refuse_if(
        config.clip_cov and (is_trees or config.path in ("numba", "numpy")),
        "agent.clip_cov={clip_cov} takes rows out of torch's gradient; give agent.path=auto or eager (here: {path}) "
        "and another agent.net than trees (here: {net})",
    )
    config.refuse_if(
        config.clip_cov_low >= config.clip_cov_high,
        "agent.clip_cov_low={clip_cov_low} and agent.clip_cov_high={clip_cov_high} leave no covariance between them; "
        "give a lower clip_cov_low",
    )
    Schedule(config.demo_rate, "agent.demo_rate")
    clones_steps = not (config.gru or is_trees or config.overlap or config.streams == "sum")
    config.refuse_if(
        config.demos and not clones_steps,
        "agent.demos={demos} clones single steps into a network with a value of each stream; take agent.gru=0 (here: "
        "{gru}), agent.net other than trees (here: {net}), agent.overlap=false and agent.streams=separate",
    )
    Schedule(config.imitate, "agent.imitate")
    config.refuse_if(
        config.imitate and (config.gru or config.streams == "sum"),
        "agent.imitate learns from single steps, with a value of each goal; take gru=0 and streams=separate",
    )


class Extension(NamedTuple):
    """A class that takes the place of a seam's default, or is added to it."""

    # Of `agents.ppo.seams`: learner, estimator, combiner, extra, schedule or penalty.
    seam: str
    # Of its attribute in `PPO.extensions`, and of its part of a saved state.
    name: str
    # module:Class below `agents.ppo.plugins`, which is made with the agent; a learner as the default is.
    target: str


def extensions_on(config: Any, streams: Mapping[str, Any]) -> Iterator[Extension]:
    """What the settings, or the streams of the reward, ask for."""
    if config.clip_cov:
        yield Extension("learner", "clip_cov", "clip_cov:ClipCovUpdate")
    if config.reference:
        yield Extension("penalty", "reference", "reference:Reference")
    if config.overlap:
        yield Extension("schedule", "overlap", "overlap:Overlap")
    # It stands before credit, as the first estimator counts, and gives the other streams their credit.
    if any(map(is_average, streams.values())):
        yield Extension("estimator", "average", "average:AverageEstimator")
    if any(credit_of(stream) != "sum" for stream in streams.values()):
        yield Extension("estimator", "credit", "credit:CreditEstimator")
    if config.balance != "none":
        yield Extension("combiner", "balance", "balance:Balance")
    # A weight that is to be learned without the setting is refused when `Blend` is made.
    if config.blend != "none" or any(map(is_learned, streams.values())):
        yield Extension("extra", "blend", "blend:Blend")
    if config.demos:
        yield Extension("extra", "demonstrations", "demonstrations:Demonstrations")
    if config.imitate:
        yield Extension("extra", "imitation", "imitate:Imitation")


def is_average(stream: Any) -> bool:
    """Whether a stream has no discount; the streams of a scorer of one's own need not say."""
    return getattr(stream, "average", False)


def credit_of(stream: Any) -> str:
    """What an action of a stream answers for; the streams of a scorer of one's own need not say."""
    return getattr(stream, "credit", "sum")


def is_learned(stream: Any) -> bool:
    """Whether a stream's weight is learned; the streams of a scorer of one's own need not say."""
    return getattr(stream, "learned", False)


def extension_classes(seam: str, config: Any, streams: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and class of each extension of a seam that is on."""
    for extension in extensions_on(config, streams):
        if extension.seam == seam:
            yield extension.name, pkgutil.resolve_name(f"agents.ppo.plugins.{extension.target}")
