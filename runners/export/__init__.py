"""A trained policy without what trained it: `python -m runners.export run=...`, and `load` for what it wrote."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runners.export.policy import Policy


def load(folder: str | Path) -> "Policy":
    """Read an exported policy: a torch module whose `act(obs)` gives actions in the environment's own range.

    It needs torch, numpy and safetensors, and no code that trains; nothing in the folder is executed. A ValueError if
    the folder holds a policy that only its agent can run (recurrent, planning), or none.
    """
    from runners.export.policy import Policy

    return Policy.read(Path(folder))
