"""verl's platform for the CPU, registered on import (``VERL_USE_EXTERNAL_MODULES``).

verl 0.9 trains on CUDA and NPU only. Here a CPU plays one GPU: Ray is told of a GPU that isn't
there, memory figures are 0, and process groups use gloo. Two demos may run at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
import torch.distributed
from ray.runtime_context import RuntimeContext
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class CpuDevice(ModuleType):
    """What verl asks of ``torch.cuda``, for the CPU: ``torch.cpu``, and figures that are 0."""

    Stream = torch.cpu.Stream
    current_stream = staticmethod(torch.cpu.current_stream)
    stream = staticmethod(torch.cpu.stream)
    synchronize = staticmethod(torch.cpu.synchronize)
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: torch.device("cpu"))
    set_device = staticmethod(lambda device: None)
    get_device_name = staticmethod(lambda device=None: "CPU")
    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    manual_seed = staticmethod(torch.manual_seed)
    manual_seed_all = staticmethod(torch.manual_seed)
    empty_cache = staticmethod(lambda: None)
    ipc_collect = staticmethod(lambda: None)
    set_per_process_memory_fraction = staticmethod(lambda fraction, device=None: None)
    reset_peak_memory_stats = staticmethod(lambda device=None: None)
    mem_get_info = staticmethod(lambda device=None: (2**30, 2**30))
    memory_allocated = staticmethod(lambda device=None: 0)
    memory_reserved = staticmethod(lambda device=None: 0)
    max_memory_allocated = staticmethod(lambda device=None: 0)
    max_memory_reserved = staticmethod(lambda device=None: 0)


_DEVICE = CpuDevice("arrol_demo_cpu_device")


@PlatformRegistry.register(platform="cpu")
class PlatformCpu(PlatformBase):
    """One CPU that plays one GPU. The methods are those of verl's ``PlatformBase``."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return _DEVICE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        with nullcontext():
            yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def _init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
    """torch's own, but for verl's "cpu:gloo,<device>:<backend>" of a device that is a CPU."""
    if backend == "cpu:gloo,cpu:gloo":
        backend = "gloo"
    return _torch_init_process_group(backend, *args, **kwargs)


_torch_init_process_group = torch.distributed.init_process_group
torch.distributed.init_process_group = _init_process_group


def _stay(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The tensor itself: pinned memory is for a GPU to read, and torch refuses it without one."""
    return tensor


# verl pins the weights of a reference model.
torch.Tensor.pin_memory = _stay  # type: ignore[assignment, method-assign]


def _job_of_this_run(self: RuntimeContext) -> str:
    """Ray's number of the job, and the run's: verl names sockets in /tmp by it.

    Every Ray counts its jobs from one, so that two on one machine would take each other's weights.
    """
    return f"{_ray_job_id(self)}-{os.environ.get('ARROL_DEMO_RUN', '')}"


_ray_job_id = RuntimeContext.get_job_id
RuntimeContext.get_job_id = _job_of_this_run
