"""``python -m arrol.adapters.verl_run``: train with verl, with rollouts pruned as they grow."""

import sys

from arrol.adapters.verl.command import main

if __name__ == "__main__":
    sys.exit(main())
