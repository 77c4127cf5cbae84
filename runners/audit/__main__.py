"""Did a reward lead where the task wants it? A verdict on finished runs, a page each, and an exit code for CI.

    python -m runners.audit audits/mine
    python -m runners.audit runs/CartPole-v1

A FOLDER is what `lodestar.Audit` wrote beside a training with any library, or a run of `lodestar train`, or one below
which such folders are looked for. It writes audit.html into each.

Exit code 0: all are sound. 1: an alarm was raised for one. 9: none alarmed, but one cannot be judged.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from lodestar.settings import Settings, setting
from runners.cli.command import Command
from runners.run.config import UsageError


@dataclass
class AuditConfig(Settings):
    """What to judge."""

    rest: list[str] = setting([], "the FOLDERs")

    def __post_init__(self) -> None:
        super().__post_init__()
        for folder in self.rest:
            if not Path(folder).is_dir():
                raise UsageError(f"{folder} is no folder; give what lodestar.Audit wrote, or a run below runs/")
        if not self.rest:
            raise UsageError("there is no FOLDER; give what lodestar.Audit wrote, or a run below runs/")


def audit(config: AuditConfig) -> int:
    """Judge every folder; returns the exit code."""
    from runners.audit.page import finish
    from runners.audit.verdict import ALARM, EXIT_CODES, SOUND, UNKNOWN

    states = set()
    for path in config.rest:
        folders = logged_folders(Path(path))
        if not folders:
            raise UsageError(f"{path} holds no metrics.csv; give what lodestar.Audit wrote, or a run below runs/")
        for folder in folders:
            if len(folders) + len(config.rest) > 2:
                print(f"{folder}")
            states.add(finish(folder).state)
    for state in (ALARM, UNKNOWN):
        if state in states:
            return EXIT_CODES[state]
    return EXIT_CODES[SOUND]


def logged_folders(path: Path) -> list[Path]:
    """The folder itself, or those below it, that hold a log; without the controls of runs."""
    if (path / "metrics.csv").exists():
        return [path]
    logs = sorted(path.rglob("metrics.csv"))
    return [log.parent for log in logs if "control" not in log.relative_to(path).parts]


main = Command(AuditConfig, audit, __doc__)

if __name__ == "__main__":
    sys.exit(main())
