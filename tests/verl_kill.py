"""A kill -9 of the trainer in the middle of a step, where ``ARROL_TEST_KILL=METHOD:STEP`` says.

verl loads this module in its processes (``VERL_USE_EXTERNAL_MODULES``). The method is one of verl's
trainer; the process is killed when it is about to be called in that step.
"""

import os
import signal
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

HOME = "verl.trainer.ppo.v1.trainer_base"


class _Watch(MetaPathFinder):
    """Puts the kill in place once verl's trainer has been imported, which is later than this."""

    def find_spec(self, name, path=None, target=None):
        if name != HOME:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        load = spec.loader.exec_module

        def loaded(module):
            load(module)
            _arm(module.PPOTrainer, *os.environ["ARROL_TEST_KILL"].split(":"))

        spec.loader.exec_module = loaded
        return spec


def _arm(trainer, method, step):
    original = getattr(trainer, method)

    def kill_or_call(self, *args, **kwargs):
        if self.global_steps == int(step):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *args, **kwargs)

    setattr(trainer, method, kill_or_call)


if "ARROL_TEST_KILL" in os.environ:
    sys.meta_path.insert(0, _Watch())
