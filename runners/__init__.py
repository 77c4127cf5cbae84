"""How an experiment runs: configuration, training, evaluation, logs, checkpoints. Nothing imports this package."""

import sys

if sys.argv[:1] == ["-m"]:  # a command, before it imports anything of a foreign `envs` or `agents`
    from runners.run.packages import name_collision

    if sentence := name_collision():
        print(f"error: {sentence}", file=sys.stderr)
        raise SystemExit(2)
