"""Settings for the whole suite."""

import os

from hypothesis import settings

# Machines that run tests are shared and slow at times: no test fails for being slow. CI tries the
# same examples every time, so that a change is judged by what it changed.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
