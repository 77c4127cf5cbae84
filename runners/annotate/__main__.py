"""Let a judge label the captions of a recording, or find out how far a judge can be trusted.

    python -m runners.record env=NetHackScore-v0 policy=random steps=20000 text=true out=play.safetensors
    python -m runners.annotate record=play.safetensors judge=openai judge.model=qwen3-8b out=labels.jsonl dry_run=true
    python -m runners.annotate record=play.safetensors judge=openai judge.model=qwen3-8b out=labels.jsonl
    python -m runners.annotate audit=labels.jsonl judge=openai judge.model=qwen3-8b against=rules out=audit.json

Each different caption is asked about once. Stopped at any moment, the same command continues. Rewards read the file as
judge=recorded judge_options={path:labels.jsonl}. An audit asks about n= texts twice, in other words and in the other
order.
"""

from __future__ import annotations

import sys

from runners.annotate.audit import audit, table
from runners.annotate.labels import AnnotateConfig, annotate
from runners.cli.command import Command


def run(config: AnnotateConfig) -> None:
    """Annotate or audit."""
    if config.audit:
        print(table(audit(config)))
    else:
        annotate(config)


main = Command(AnnotateConfig, run, __doc__, stopped="stopped; the same command continues from here")

if __name__ == "__main__":
    sys.exit(main())
