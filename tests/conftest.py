"""Settings for the whole suite."""

import importlib.util
import os

import pytest
from hypothesis import settings

if importlib.util.find_spec("vllm"):
    import vllm_settings  # noqa: F401  # its environment, before any test imports vLLM

# Machines that run tests are shared and slow at times: no test fails for being slow. CI tries the
# same examples every time, so that a change is judged by what it changed.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def toy_files(tmp_path_factory):
    """Model and prompts of the toy task that verl's training tests learn."""
    import verl_toy

    return verl_toy.make_files(tmp_path_factory.mktemp("toy"))
