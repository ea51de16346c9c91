"""What ``arrol sim`` lets you set: one row a parameter, for flags, checks, help and report."""

from __future__ import annotations

from dataclasses import replace

from arrol.options import Parameter

PAPER = "the paper's"
STATE = "our prior; the paper does not state it"

_PARAMETERS = (
    Parameter("prompts", "prompts (groups) in a step", "prompts", 1, 100_000, integer=True),
    Parameter(
        "group_size", "rollouts of a prompt, G", "rollouts", 2, 1024, integer=True, source=PAPER
    ),
    Parameter(
        "keep_ratio", "share of rollouts to keep, κ", "", 0, 1, open_low=True, source=PAPER
    ),
    Parameter(
        "target_ratio", "share of right answers to steer survivors to, ρ", "", 0, 1, source=PAPER
    ),
    Parameter("strength", "strength of the balance correction, λ", "", 0, 10, source=PAPER),
    Parameter(
        "detect_length", "generated tokens at which a rollout is decided, L_detect", "tokens",
        1, 1_000_000, integer=True, source=PAPER,
    ),
    Parameter(
        "max_num_seqs", "sequences that the engine runs at once", "sequences",
        1, 100_000, integer=True, source="our prior; a default of vLLM",
    ),
    Parameter(
        "kv_tokens", "KV cache", "tokens", 1, 1e12, integer=True,
        source="90% of the accelerator's memory, less weights and 3 GiB",
    ),
    Parameter("mean_length", "mean generated length of a rollout, uncut", "tokens", 1, 1_000_000),
    Parameter("length_spread", "standard deviation of log length", "", 0, 3),
    Parameter(
        "max_length", "generated tokens at which a rollout is cut", "tokens",
        2, 1_000_000, integer=True, source=PAPER,
    ),
    Parameter("prompt_tokens", "length of a prompt", "tokens", 1, 1_000_000, integer=True),
    Parameter(
        "pass_rate", "mean over prompts of P(right)", "", 0, 1, open_low=True, open_high=True,
        source="Table 4's mean positive ratio",
    ),
    Parameter(
        "pass_rate_concentration",
        "a + b of the prompts' Beta(a, b) pass rates; small: most prompts are easy or hopeless",
        "", 0, 1e6, open_low=True,
    ),
    Parameter(
        "length_correlation", "correlation of log length with being right", "", -0.9, 0.9
    ),
    Parameter("score_auc", "AUC of the quality score", "", 0.5, 1, open_high=True),
    Parameter(
        "prompt_signal", "share of the score's signal that only knows the prompt", "", 0, 1
    ),
    Parameter("seed", "seed of all randomness", "", 0, 2**32 - 1, integer=True, source="ours"),
    Parameter(
        "seeds",
        "repetitions behind means and 95% intervals; where a study takes fewer or more, the notes "
        "of its tables say how many",
        "", 2, 1000, integer=True, source="ours",
    ),
)  # fmt: skip

#: All of them, each with the source of its default.
PARAMETERS = tuple(p if p.source else replace(p, source=STATE) for p in _PARAMETERS)
