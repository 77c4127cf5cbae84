"""How an experiment runs: configuration, training, evaluation, logs, checkpoints. Nothing imports this package."""
