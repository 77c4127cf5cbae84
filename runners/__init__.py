"""How an experiment runs: configuration, training, evaluation, logs, checkpoints. Nothing imports this package.

`python -m runners.<command>` searches the folder that it is called in before all others, and so would execute whatever
lies there under the name of a module: an `envs.py`, a `json.py`, a plug-in's entry points. Here that folder is taken
off the path before anything else is imported. `runners.cli.command` does the same for the processes that a command
starts; `runners.run.trust` puts it at the end as soon as the user names something in it, as in `env=my_file:Id`.
"""

import os
import sys

if sys.argv[:1] == ["-m"]:  # a command, not an import
    _here, _home = os.getcwd(), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not os.path.samefile(_here, _home):
        if sys.path[:1] == [_here]:
            del sys.path[0]
        if {"", "."} & {*os.environ.get("PYTHONPATH", "").split(os.pathsep)}:  # a slip, such as PYTHONPATH=:/folder
            sys.path[:] = [folder for folder in sys.path if folder != _here]

    from runners.run.packages import name_collision

    if sentence := name_collision():
        print(f"error: {sentence}", file=sys.stderr)
        raise SystemExit(2)

import envs

envs.policy_loader = "runners.run.policies:load"
