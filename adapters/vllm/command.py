"""``arrol generate``: prompts in, rollouts out, pruned inside vLLM while they are generated.

Importing this module imports neither vLLM nor torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from arrol.adapters.vllm.generate import RunSettings, check_settings, run, trained_at
from arrol.adapters.vllm.prompts import Columns, read_prompts
from arrol.adapters.vllm.rollout_file import check_out
from arrol.adapters.vllm.summary import print_run
from arrol.config import Preset, PruningConfig
from arrol.errors import ArrolError
from arrol.options import Parameter, number_option
from arrol.records import Mode
from arrol.terminal import print_problems

SHOWN_PROBLEMS = 5
DETECT_LENGTH = 512

EPILOG = """
\b
Two runs, as pruning needs a head that has seen rollouts of the model:
  arrol generate ... --mode shadow --save-head head/ --out first.jsonl
  arrol generate ... --mode on --head head/ --out second.jsonl

\b
A prompt is a text, or a list of messages with role and content. A
rollout is a row that arrol replay and arrol vote read: group, index,
step, prompt, text, tokens, prompt_tokens, finish_reason (stop, length,
pruned, failed), reward and outcome (where it could be graded), answer,
score (quality score), detection (the decision).
"""

GROUP_SIZE = Parameter("group_size", "rollouts of a prompt, G", "rollouts", 1, 1024, integer=True)
KEEP_RATIO = Parameter("keep_ratio", "share of rollouts to keep, κ", "", 0, 1, open_low=True)
TARGET_RATIO = Parameter(
    "target_ratio", "share of right answers to steer survivors to, ρ", "", 0, 1
)
STRENGTH = Parameter("strength", "strength of the balance correction, λ", "", 0, 10)
LENGTH = Parameter(
    "detect_length", "generated tokens at which a rollout is decided, L_detect", "tokens",
    1, 1_000_000, integer=True,
)  # fmt: skip
MAX_TOKENS = Parameter(
    "max_tokens", "generated tokens at which a rollout is cut", "tokens", 1, 10_000_000,
    integer=True,
)  # fmt: skip
TEMPERATURE = Parameter("temperature", "sampling temperature", "", 0, 2)
TOP_P = Parameter("top_p", "share of probability that is sampled from", "", 0, 1, open_low=True)
SEED = Parameter("seed", "seed of the sampling and of the draws", "", 0, 2**63 - 1, integer=True)
LIMIT = Parameter("limit", "prompts to use", "prompts", 1, 1_000_000_000, integer=True)


@click.command(
    "generate",
    short_help="Generate rollouts with vLLM and prune them on the way.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG.lstrip(),
)
@click.option(
    "--model", required=True, metavar="NAME", help="Model: a folder or a name that vLLM can load."
)
@click.option(
    "--prompts", "prompt_file", required=True, metavar="FILE", type=click.Path(path_type=Path),
    help="Prompts: JSON lines, also gzipped, or Parquet.",
)  # fmt: skip
@click.option(
    "--out", required=True, metavar="FILE", type=click.Path(path_type=Path),
    help="Rollouts: JSON lines, written as they end.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace --out and --save-head if they are there.")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.SHADOW.value,
    show_default=True,
    help="off: decide nothing; shadow: decide and record only; on: prune.",
)
@click.option(
    "--head", metavar="DIR", type=click.Path(path_type=Path),
    help="Quality head and controller’s state that --save-head wrote.",
)  # fmt: skip
@click.option(
    "--save-head", metavar="DIR", type=click.Path(path_type=Path),
    help="Train a new head on this run’s graded rollouts and write it here.",
)  # fmt: skip
@click.option(
    "--preset",
    type=click.Choice([preset.value for preset in Preset]),
    default=Preset.BALANCED.value,
    show_default=True,
    help="Pruning rule.",
)
@number_option(GROUP_SIZE, 16)
@number_option(KEEP_RATIO, 0.5)
@number_option(TARGET_RATIO, 0.5)
@number_option(STRENGTH, 0.5)
@number_option(LENGTH, None, f"that of --head, else {DETECT_LENGTH}")
@number_option(MAX_TOKENS, 2048)
@number_option(TEMPERATURE, 1.0)
@number_option(TOP_P, 1.0)
@number_option(SEED, 0)
@number_option(LIMIT, None, "all")
@click.option("--prompt-column", metavar="NAME", show_default="prompt, else question",
              help="Column of the prompts.")  # fmt: skip
@click.option("--answer-column", metavar="NAME", show_default="answer, where there is one",
              help="Column of the gold answers.")  # fmt: skip
@click.option("--id-column", metavar="NAME", show_default="line of the file",
              help="Column of what names a prompt in the rollouts.")  # fmt: skip
@click.option(
    "--chat/--no-chat",
    default=None,
    show_default="--chat if the model has a chat template",
    help="A text is a user’s message, or the prompt as it stands.",
)
@click.option(
    "--engine", multiple=True, metavar="KEY=VALUE",
    help="Engine argument of vLLM, its value in JSON or plain (dtype=float32, "
    "max_model_len=4096). May be given many times.",
)  # fmt: skip
def generate(
    model: str,
    prompt_file: Path,
    out: Path,
    overwrite: bool,
    head: Path | None,
    save_head: Path | None,
    engine: tuple[str, ...],
    chat: bool | None,
    prompt_column: str | None,
    answer_column: str | None,
    id_column: str | None,
    limit: int | None,
    **values: Any,
) -> None:
    """Generate G rollouts for each prompt with vLLM, and prune them at the detection length.

    Rollouts are graded against the gold answers, where there are any. Ends with a table: tokens
    generated and saved, keep rate, pass rate, AUC of the head. Exit code: 0, or 2 if a flag is
    wrong, nothing could be generated or no head could be learned; 130 on Ctrl-C, and what had ended
    is in the file.
    """
    console = Console(highlight=False)
    prompts, problems = read_prompts(
        prompt_file, Columns(prompt_column, answer_column, id_column), limit
    )
    settings = RunSettings(
        model=model, out=out, config=_config(values, head), chat=chat, engine=engine, head=head,
        save_head=save_head, seed=values["seed"], group_size=values["group_size"],
        max_tokens=values["max_tokens"], temperature=values["temperature"],
        top_p=values["top_p"],
    )  # fmt: skip
    check_settings(settings, prompts, overwrite)
    check_out(out, prompt_file, overwrite)
    print_problems(console, problems, SHOWN_PROBLEMS, "prompt file")
    result = run(settings, prompts)
    print_run(console, result)
    console.print(f"Rollouts: {out}", soft_wrap=True)
    if result.not_learned:
        raise ArrolError(result.not_learned)


def _config(values: dict[str, Any], head: Path | None) -> PruningConfig:
    """The rule's configuration; a run is one step, so its cold start is over with the head's."""
    length = values["detect_length"]
    known = None if head is None else trained_at(head)
    if length is not None and known is not None and length != known:
        raise ArrolError(
            f"--detect-length is {length}; allowed is {known}, where the head in {head} reads."
        )
    names = ("mode", "keep_ratio", "target_ratio", "strength", "seed")
    return PruningConfig.preset(
        values["preset"],
        detect_length=length or known or DETECT_LENGTH,
        cold_start_steps=0,
        **{name: values[name] for name in names},
    )
