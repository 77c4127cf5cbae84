"""What every other file shares: the axis letters, the names of types, the protocols of rewards.

Axis letters, used in shape comments everywhere:
    N transitions (or environments)   T steps in time   B minibatch   K ensemble members   D features   H horizon
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat, runtime_checkable

if TYPE_CHECKING:
    from envs.transitions import Transitions

MASK = "action_mask"
# What an environment may add to its observations, in its info.
MODALITIES = ("frame", "text", "signals", MASK)
# The fields of `Transitions` that hold them before a step, and all such fields.
OBS_MODALITIES = tuple(map("obs_{}".format, MODALITIES))
MODALITY_FIELDS = (*MODALITIES, *OBS_MODALITIES)
# A numpy.ndarray, or a torch.Tensor inside a model-based agent.
Array = Any
# An Array, or a dict of Arrays (a `gymnasium.spaces.Dict` observation).
Obs = Any
# A dict of arrays with leading axis N, or None.
Memory = Any
Info = dict[str, Any]
# Keyword arguments by name, of a reset or a constructor.
Options = dict[str, Any]
# What captions remember of an episode.
Notes = dict[str, Any]
# Plain data and arrays, for a checkpoint or a snapshot.
StateDict = dict[str, Any]
# obs, info; of a vector (N, ...) and info by name.
EnvReset = tuple[Any, Info]
# obs, reward, terminated, truncated, info.
EnvStep = tuple[Any, SupportsFloat, bool, bool, Info]
# The same of a vector, arrays (N, ...).
VectorStep = tuple[Any, Any, Any, Any, Info]


class MaskFault(ValueError):
    """An environment's action mask is missing, has another shape, or allows nothing."""


@runtime_checkable
class Scorer(Protocol):
    """What an agent sees of a reward; `rewards.mix.mix.Mix` is one."""

    requires: frozenset[str]  # which fields of `Transitions` it reads
    relabelable: bool  # whether it may score stored or imagined transitions

    def initial_memory(self, n: int) -> Memory:
        """Memory for `n` environments at the start of their episodes."""

    def total(self, batch: "Transitions", memory: Memory, timesteps: int) -> tuple[Array, Memory]:
        """Float32 rewards with the batch's leading shape, and the memory that belongs to the next step."""


class StreamScorer(Scorer, Protocol):
    """A scorer with separate streams: for an agent with a value, a discount and an end for each of them."""

    # name -> something with `gamma`, and `episodic`: whether its return ends with the episode
    streams: Mapping[str, Any]

    def embed(self, batch: "Transitions") -> "Transitions":
        """The batch with frames replaced by their embeddings."""

    def score(self, batch: "Transitions", memory: Memory) -> tuple[dict[str, Array], Memory]:
        """Raw scores by stream, leading shape of the batch."""

    def scale_rewards(self, raw: dict[str, Array]) -> dict[str, Array]:
        """The rewards that each stream's value predicts."""

    def weights(self, timesteps: Any) -> dict[str, Any]:
        """How much each stream's advantage counts after `timesteps` environment steps."""

    def update(self, batch: "Transitions", raw: dict[str, Array], timesteps: Any) -> dict[str, float]:
        """Learn from fresh transitions, each handed in once; returns metrics by tag."""


class ReplayScorer(StreamScorer, Protocol):
    """A scorer of stored and imagined transitions: for an agent with a replay."""

    is_task: bool  # whether it is the task's own reward as it is, and nothing else
    keeps: bool  # whether `keep` returns any columns

    def keep(self, batch: "Transitions", memory: Memory) -> tuple[dict[str, Array], Memory]:
        """Columns that a replay stores beside transitions (T, N) in time order for `relabel` to score later."""

    def relabel(self, batch: "Transitions") -> dict[str, Array]:
        """Raw scores by stream, by the rewards as they are now, of stored transitions in any order."""

    def combine(self, raw: dict[str, Array], timesteps: Any) -> Array:
        """The reward an agent receives, float32: scores weighted, scaled and added up."""
