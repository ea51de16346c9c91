"""``python -m arrol.adapters.verl_run``: train with verl, with rollouts pruned as they grow."""

import sys

if __name__ == "__main__":
    try:
        from arrol.adapters.verl.command import main
    except KeyboardInterrupt:  # while the imports run
        sys.exit(130)
    sys.exit(main())
