"""Begin a run with what another one has learned: `init_from=RUN`, its agent, its rewards, or both."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Any

from runners.run.build import Parts, load_checkpoint
from runners.run.config import TrainConfig, UsageError, read


def initialise(config: TrainConfig, parts: Parts) -> str:
    """Give a new run's agent and rewards the weights of `config.init_from`; returns a sentence about what was taken.

    PPO keeps the values of rewards that both runs have; optimisers, counts and replay are new.

    Raises:
        UsageError: if it is no run, or has another agent, other spaces or sizes.
    """
    run = Path(config.init_from)
    if not (run / "config.yaml").exists():
        raise UsageError(f"init_from={run} is no run's folder (it has no config.yaml); give one below runs/")
    saved = read(run / "config.yaml")
    name, streams = dict(saved.get("agent") or {}).get("name"), list(saved.get("reward") or {})
    state, step = load_checkpoint(run)
    taken = []
    try:
        if config.init != "rewards":
            if name != config.agent_name:
                raise UsageError(
                    f"init_from={run} has agent={name}, this run agent={config.agent_name}; give init=rewards"
                )
            _agent(parts.model, state["agent"], streams)
            taken.append("agent")
        shared = [one for one in streams if one in parts.mix.streams and one != "task"]
        if config.init == "rewards" and not shared:
            raise UsageError(f"init_from={run} has the rewards {', '.join(streams)}, none of which this run learns")
        for one in shared if config.init != "agent" else ():
            parts.mix.streams[one].load_state_dict(state["mix"]["streams"][one])
            taken.append(one)
    except (RuntimeError, LookupError, TypeError, AttributeError) as error:
        words = shorten(str(error), 160, placeholder=" ...")
        raise UsageError(
            f"init_from={run} does not fit this run ({words}); its environment, networks and options must be this run's"
        ) from None
    return f"from step {step:,} of {run}: {', '.join(taken)}"


def _agent(model: Any, state: dict[str, Any], streams: list[str]) -> None:
    if hasattr(model, "start_from"):
        model.start_from(state, streams)
    else:
        model.policy.load_state_dict(state["modules"]["policy"])
