"""The front door: `lodestar train ...` in a shell, `import lodestar as ld` in a program.

Importing it registers our environments with Gymnasium and loads nothing heavy; torch comes with the first call.
"""

from __future__ import annotations

import os
import sys


def _working_directory_last() -> None:
    """Take the folder that the command is called in off the path: a user's own `envs` or `runners` is not ours.

    `runners.run.trust` puts it back, behind all else, as soon as the user names something in it (`env=my_file:Id`).
    """
    here, home = os.getcwd(), os.path.dirname(os.path.abspath(__file__))
    if os.path.samefile(here, home):
        return
    sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) != here]
    listed = os.environ.get("PYTHONPATH")  # read by the processes that the command starts
    if listed is not None:
        kept = [folder for folder in listed.split(os.pathsep) if os.path.realpath(folder) != here]
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)


def main() -> int:
    """The command."""
    _working_directory_last()
    from runners.cli.verbs import main

    return main()


if os.path.splitext(os.path.basename(sys.argv[0]))[0] != "lodestar":  # an import, not the command
    import envs  # noqa: F401  (gymnasium.make("lodestar/..."))

if __name__ == "__main__":
    sys.exit(main())
