"""Everything that ``arrol sim`` can vary, in physical units, and the parts built from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from arrol.config import Preset, PruningConfig
from arrol.errors import ArrolError
from arrol.sim.cost import StepTime, kv_capacity
from arrol.sim.engine import EngineLimits
from arrol.sim.hardware import Accelerator, ModelShape, find_accelerator, find_model
from arrol.sim.parameters import PARAMETERS
from arrol.sim.workload import Workload

MAX_ROLLOUTS = 1_000_000  #: rollouts of one step that a machine with 2 GiB simulates


@dataclass(frozen=True)
class SimSettings:
    """One simulated training set-up; the defaults are the paper's where it states them.

    The paper (arXiv 2603.24840) states G=16, κ=ρ=.5, λ=.5, L_detect=512 and 8,192 tokens. It does
    not state the batch, the lengths or the scores, so the other defaults are our priors: 64 prompts
    of 16 rollouts and 2,000 tokens are what Table 5's log-prob phase costs at 45% of a GH200's
    peak (15.76 s · 445 TFLOP/s / (2 · 1.72e9) = 2.04 M tokens).

    Each number is described, with its unit, range and source, in
    :data:`arrol.sim.parameters.PARAMETERS`; ``kv_tokens`` None takes what the accelerator's
    memory leaves beside the model.

    Raises:
        ArrolError: a value is out of range; the sentence names the flag.
    """

    model: ModelShape = field(default_factory=lambda: find_model("Qwen3-1.7B"))
    accelerator: Accelerator = field(default_factory=lambda: find_accelerator("GH200"))
    prompts: int = 64
    group_size: int = 16
    keep_ratio: float = 0.5
    target_ratio: float = 0.5
    strength: float = 0.5
    detect_length: int = 512
    max_num_seqs: int = 256
    kv_tokens: int | None = None
    mean_length: float = 2000.0
    length_spread: float = 0.6
    max_length: int = 8192
    prompt_tokens: int = 150
    pass_rate: float = 0.32
    pass_rate_concentration: float = 2.0
    length_correlation: float = -0.3
    score_auc: float = 0.78
    prompt_signal: float = 0.5
    preset: Preset = Preset.BALANCED
    seed: int = 0
    seeds: int = 5

    def __post_init__(self) -> None:
        if self.preset not in list(Preset):
            allowed = ", ".join(preset.value for preset in Preset)
            raise ArrolError(f"--preset is {self.preset!r}; allowed is one of {allowed}.")
        object.__setattr__(self, "preset", Preset(self.preset))
        for parameter in PARAMETERS:
            value = getattr(self, parameter.name)
            if value is not None or parameter.name != "kv_tokens":
                parameter.check(value)
        self._check_together()

    def _check_together(self) -> None:
        if self.detect_length >= self.max_length:
            raise ArrolError(
                f"--detect-length is {self.detect_length}; allowed is an integer below "
                f"--max-length, which is {self.max_length}."
            )
        if self.mean_length > self.max_length:
            raise ArrolError(
                f"--mean-length is {self.mean_length:g}; allowed is a number of at most "
                f"--max-length, which is {self.max_length}."
            )
        if self.prompts * self.group_size > MAX_ROLLOUTS:
            raise ArrolError(
                f"--prompts is {self.prompts}; allowed are at most {MAX_ROLLOUTS:,} rollouts, so "
                f"at most {MAX_ROLLOUTS // self.group_size} prompts with --group-size "
                f"{self.group_size}."
            )
        # As a real engine does, refuse a cache that one longest rollout would overflow.
        longest = self.prompt_tokens + self.max_length
        if self.kv_tokens is not None and self.kv_tokens < longest:
            raise ArrolError(
                f"--kv-tokens is {self.kv_tokens}; allowed is at least {longest} "
                "(--prompt-tokens plus --max-length)."
            )
        if self.kv_tokens is None and self._memory_tokens() < longest:
            raise ArrolError(
                f"--accelerator {self.accelerator.name} holds {self._memory_tokens():,} KV tokens "
                f"beside --model {self.model.name}; allowed is one that holds at least "
                f"{longest:,} (--prompt-tokens plus --max-length)."
            )
        try:
            self.workload()
        except ArrolError as error:
            raise ArrolError(_with_flags(str(error))) from None

    def _memory_tokens(self) -> int:
        try:
            return kv_capacity(self.model, self.accelerator)
        except ArrolError:  # not even the weights fit
            return 0

    def paper(self) -> SimSettings:
        """The paper's setting and rule, with this run's seed and number of seeds."""
        return SimSettings(preset=Preset.PAPER, seed=self.seed, seeds=self.seeds)

    def replace(self, **changes: object) -> SimSettings:
        """These settings with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def workload(self) -> Workload:
        """The law that rollouts are drawn from."""
        return _workload(
            prompts=self.prompts,
            group_size=self.group_size,
            prompt_tokens=self.prompt_tokens,
            mean_length=self.mean_length,
            length_spread=self.length_spread,
            max_length=self.max_length,
            pass_rate=self.pass_rate,
            pass_rate_concentration=self.pass_rate_concentration,
            length_correlation=self.length_correlation,
            score_auc=self.score_auc,
            prompt_signal=self.prompt_signal,
        )

    def config(self, **overrides: object) -> PruningConfig:
        """The pruning rule; its survival bounds widen where κ lies outside their defaults."""
        values = {
            "min_survival": min(PruningConfig.min_survival, self.keep_ratio),
            "max_survival": max(PruningConfig.max_survival, self.keep_ratio),
            "keep_ratio": self.keep_ratio,
            "target_ratio": self.target_ratio,
            "strength": self.strength,
            "detect_length": self.detect_length,
            "seed": self.seed,
        }
        return PruningConfig.preset(self.preset, **{**values, **overrides})

    def cost(self) -> StepTime:
        """Time of one decode step on this accelerator."""
        return StepTime.of(self.model, self.accelerator)

    def limits(self) -> EngineLimits:
        """What the engine may hold at once."""
        kv_tokens = self._memory_tokens() if self.kv_tokens is None else self.kv_tokens
        return EngineLimits(max_num_seqs=self.max_num_seqs, kv_tokens=kv_tokens)


@lru_cache(maxsize=64)
def _workload(**fields: Any) -> Workload:
    """A law; making one solves for its constants, so the last ones are kept."""
    return Workload(**fields)


def _with_flags(text: str) -> str:
    """The text with every field's name replaced by its flag."""
    for parameter in PARAMETERS:
        text = re.sub(rf"\b{parameter.name}\b", parameter.flag, text)
    return text
