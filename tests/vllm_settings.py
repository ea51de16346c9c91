"""Settings of the environment that tests on real engines need; made before vLLM is imported."""

import os
import types
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # kernels of tiny models only wait for others
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling log-prob kernels takes 20 s
# An engine process finds the tests' worker extension.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)


def use_model_runner_v2() -> None:
    """Model Runner V2 on a CPU: its Triton kernels run in Triton's interpreter.

    PyPI's Triton has no CPU backend and vLLM looks for one; the interpreter needs none, so that
    an entry in the list of backends is enough. Nothing else is changed.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    from triton.backends import backends

    driver = type("Interpreter", (), {"is_active": staticmethod(lambda: True)})
    backends["cpu"] = types.SimpleNamespace(driver=driver, compiler=None)


def set_in_process(value: bool) -> None:
    """Have the next engine in this process, or in one of its own."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if value else "1"
    from vllm import envs

    envs.disable_envs_cache()  # the first engine froze it


if os.environ.get("ARROL_TEST_RUNNER") == "V2":
    use_model_runner_v2()
