"""The command ``python -m arrol.adapters.verl_run``: compose, check, launch.

Mistakes end before Ray, torch or verl are imported, in one sentence and exit code 2.
"""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from arrol.adapters.verl.composition import HERE, PRIMARY, compose_config, keys_of
from arrol.adapters.verl.paths import check_files
from arrol.adapters.verl.settings import Settings, nearest
from arrol.adapters.verl.versions import check_versions
from arrol.errors import ArrolError
from arrol.records import Mode

if TYPE_CHECKING:
    from omegaconf import DictConfig

CLOSED = 141  #: exit code where the reader of the output has gone, as shells give it
PRINT = "--print-config"
_OURS = re.compile(r"\$\{[^}]*\b(arrol|demo)\b")

HELP = """\
Train with verl, with rollouts pruned while they are generated.

  python -m arrol.adapters.verl_run [KEY=VALUE ...]

The settings are verl's own (its ppo_trainer) and one group more, arrol. The
syntax is Hydra's: key=value sets a dotted key, +key=value adds one, ~key takes
one out; recipes=NAME takes a recipe, recipes=[A,B] two: the later wins.

Examples
  # train
  python -m arrol.adapters.verl_run recipes=grpo_qwen3_1.7b_base \\
    data.train_files=train.parquet data.val_files=test.parquet

  # the same without pruning: plain verl, number for number
  python -m arrol.adapters.verl_run recipes=grpo_qwen3_1.7b_base \\
    data.train_files=train.parquet data.val_files=test.parquet arrol.mode=off

  # what a recipe and a change of yours come to; nothing is started
  python -m arrol.adapters.verl_run recipes=[grpo_qwen3_4b_base,dr_grpo] \\
    arrol.keep_ratio=0.4 --print-config

  -h, --help            this text
  --print-config [KEY]  the whole composed configuration as YAML, or what lies
                        under KEY (arrol, say), without starting anything

Recipes, in {recipes}
{names}
{demo}
The group arrol, with its defaults

{group}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives its exit code: 2 after a user's mistake, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without κ shows a question mark
            stream.reconfigure(errors="replace")
    try:
        run(list(sys.argv[1:] if arguments is None else arguments))
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"{PRIMARY}: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # head or less has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    except Exception as error:
        mistake = mistake_in(error) or unreadable(error)
        if mistake is None:
            raise
        return _complain(str(mistake))
    return 0


def run(arguments: Sequence[str]) -> None:
    """Do what the arguments ask for.

    Raises:
        ArrolError: they can't be carried out.
    """
    words, shown, wanted = _split(arguments)
    if shown == "help":
        _show(help_text() + "\n")
        return
    config = compose_config(words)
    if shown == "config":
        _show(_yaml(config, wanted))
        return
    settings = Settings.from_config(config)
    if settings.mode is not Mode.OFF:
        check_versions(by_name=config.get("demo") is None)
    _prepare_demo(config)
    check_files(config)
    launch(config, settings.mode)


def launch(config: DictConfig, mode: Mode) -> None:
    """Train, by verl's own way to its trainer.

    With mode off, the configuration that verl gets is the one that its ``main_ppo`` would have
    composed, and everything after it is verl's own.

    Raises:
        ArrolError: verl refuses the configuration.
    """
    from verl.trainer import main_ppo
    from verl.utils.device import auto_set_device

    if mode is Mode.OFF:
        config = plain_config(config)
    auto_set_device(config)
    validate(config)
    main_ppo.run_ppo(config, task_runner_class=_runner(config, mode))
    _say_where(config)


def _say_where(config: DictConfig) -> None:
    """Say what has been written: verl's last line is a progress bar."""
    places = []
    if config.trainer.save_freq > 0:
        places.append(f"checkpoints are in {config.trainer.default_local_dir}")
    if "arrol" in config and config.arrol.rollouts:
        places.append(f"rollouts are in {config.arrol.rollouts}")
    print(f"{PRIMARY}: {'; '.join(['trained', *places])}.", flush=True)


def validate(config: DictConfig) -> None:
    """verl's own check of its configuration.

    Raises:
        ArrolError: with what verl says of it.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.tracking import Tracking

    loggers = config.trainer.logger
    for name in [loggers] if isinstance(loggers, str) else loggers:
        if name not in (*Tracking.supported_backend, "tracking"):
            known = ", ".join(Tracking.supported_backend)
            raise ArrolError(f"trainer.logger is {name!r}; allowed is one of {known}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the critic is off, in every run
            validate_config(
                config=config,
                use_reference_policy=need_reference_policy(config),
                use_critic=need_critic(config),
            )
    except (ArithmeticError, AssertionError, AttributeError, ValueError, TypeError,
            NotImplementedError, HydraException, OmegaConfBaseException) as error:  # fmt: skip
        reason = (error.__cause__ if isinstance(error, HydraException) else None) or error
        text = " ".join(str(reason).split()) or type(reason).__name__
        raise ArrolError(f"verl refuses its configuration: {text.rstrip('.')}.") from error


def plain_config(config: DictConfig) -> DictConfig:
    """The configuration without what is ours: what verl alone would have composed.

    Where the user's settings refer to ours (``run-${arrol.mode}``), the values stay.
    """
    from omegaconf import open_dict

    plain = config.copy()
    with open_dict(plain):
        _settle(plain)
        plain.pop("arrol", None)
        plain.pop("demo", None)
    return plain


def mistake_in(error: BaseException) -> ArrolError | None:
    """The user's mistake that an error from Ray's processes carries, if it is one."""
    seen: BaseException | None = error
    while seen is not None:
        if type(seen) is ArrolError:
            return seen
        cause = getattr(seen, "cause", None)  # a RayTaskError's, however deep the tasks lie
        seen = cause if isinstance(cause, BaseException) and cause is not seen else seen.__cause__
    return None


def unreadable(error: Exception) -> ArrolError | None:
    """A value that refers to what isn't there, or is missing, as one sentence."""
    if "omegaconf" not in sys.modules:
        return None
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(error, OmegaConfBaseException):
        return None
    place = f"{error.full_key} " if getattr(error, "full_key", None) else ""
    reason = str(error.msg or error).splitlines()[0].rstrip(".")
    return ArrolError(f"the setting {place}can't be read: {reason}; allowed is a value.")


def help_text() -> str:
    """What ``--help`` prints: at most 80 columns, but for the folder's name."""
    names = [path.stem for path in sorted((HERE / "recipes").glob("*.yaml"))]
    demos = [path.stem for path in sorted((HERE / "demo").glob("*.yaml"))]
    demo = "".join(f"\ndemo={name} trains a tiny model on this machine.\n" for name in demos)
    text = (HERE / f"{PRIMARY}.yaml").read_text(encoding="utf-8")
    return HELP.format(
        recipes=HERE / "recipes",
        names="\n".join(f"  {name}" for name in names if not name.startswith("_")),
        demo=demo,
        group=text[text.index("# null is") :].rstrip(),
    )


def _show(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = None  # or the interpreter would try again at its end
        raise ArrolError(f"the output can't be written: {error.strerror}.") from None


def _settle(node: Any) -> None:
    """Put values where something refers to the groups that are about to go."""
    for key in list(node) if hasattr(node, "keys") else range(len(node)):
        child = node._get_node(key)
        if child._is_interpolation():
            if _OURS.search(str(child._value())):
                node[key] = node[key]
        elif not (child._is_none() or child._is_missing()) and hasattr(child, "_get_node"):
            _settle(child)


def _runner(config: DictConfig, mode: Mode) -> Any:
    if mode is not Mode.OFF:
        from arrol.adapters.verl.runner import PruningTaskRunner

        return PruningTaskRunner
    if config.trainer.use_v1:
        from verl.trainer.main_ppo import TaskRunnerV1

        return TaskRunnerV1
    from verl.trainer.main_ppo_v0 import TaskRunner

    return TaskRunner


def _prepare_demo(config: DictConfig) -> None:
    """Make what a demo needs: its model, its data, its environment."""
    if config.get("demo") is not None:
        from arrol.adapters.verl.demo import prepare

        prepare(config)


def _split(arguments: Sequence[str]) -> tuple[list[str], str, str | None]:
    """Overrides, what to show instead of training ("help", "config" or ""), and which part."""
    words: list[str] = []
    shown, wanted, previous = "", None, ""
    for word in arguments:
        if word in ("-h", "--help"):
            return [], "help", None
        if word == PRINT:
            shown = "config"
        elif word.startswith("-"):
            raise ArrolError(
                f"{word} is no option; allowed are --help and {PRINT}, and settings as key=value."
            )
        elif previous == PRINT and "=" not in word and not word.startswith("~"):
            wanted = word
        else:
            words.append(word)
        previous = word
    return words, shown, wanted


def _yaml(config: DictConfig, wanted: str | None) -> str:
    """The configuration as YAML, interpolations as they are; under ``wanted`` only, if given."""
    from omegaconf import OmegaConf

    part: Any = OmegaConf.to_container(config)
    path = wanted.split(".") if wanted else []
    for name in path:
        if not isinstance(part, dict) or name not in part:
            near = nearest(wanted or "", keys_of(config))
            raise ArrolError(
                f"{wanted} is no key of the configuration; allowed is a dotted name from it"
                + (f", such as {near}." if near else ".")
            )
        part = part[name]
    for name in reversed(path):
        part = {name: part}
    text: str = OmegaConf.to_yaml(OmegaConf.create(part))
    return text


def _complain(message: str) -> int:
    print(f"{PRIMARY}: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return 2
