"""How an experiment runs: configuration, training, evaluation, logs, checkpoints. Nothing imports this package.

`python -m runners.<command>` searches the folder that it is called in before all others, and so would execute whatever
lies there under the name of a module: an `envs.py`, a `json.py`, a plug-in's entry points. Here that folder is taken
off the path before anything else is imported. `runners.cli.command` does the same for the processes that a command
starts; `runners.run.trust` puts it at the end as soon as the user names something in it, as in `env=my_file:Id`.
"""

import os
import sys

# A command, not an import.
if sys.argv[:1] == ["-m"]:
    _working_folder = os.getcwd()
    _home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not os.path.samefile(_working_folder, _home):
        if sys.path[:1] == [_working_folder]:
            del sys.path[0]
        # An empty entry means this folder, too; it is a slip, as in PYTHONPATH=:/folder.
        if {"", "."} & {*os.environ.get("PYTHONPATH", "").split(os.pathsep)}:
            sys.path[:] = [folder for folder in sys.path if folder != _working_folder]

    from runners.run.packages import name_collision

    _sentence = name_collision()
    if _sentence:
        print(f"error: {_sentence}", file=sys.stderr)
        raise SystemExit(2)

import envs

envs.policy_loader = "runners.run.policies:load"
