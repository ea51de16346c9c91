"""What the group ``arrol`` of verl's configuration says, and what pruning can't work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from arrol.config import Preset, PruningConfig
from arrol.errors import ArrolError, as_member, check_integer, check_range
from arrol.head_config import HeadConfig
from arrol.records import Mode

ROLLOUT = "actor_rollout_ref.rollout"
AGENT = "single_turn_agent"  #: verl's name for the one agent loop that fits
Value = TypeVar("Value")

#: Fields of PruningConfig by their key in the group.
PRUNING_KEYS = {
    "keep_ratio": "keep_ratio",
    "target_ratio": "target_ratio",
    "detect_length": "detect_length",
    "strength": "strength",
    "min_survival": "min_survival",
    "max_survival": "max_survival",
    "cold_start_steps": "cold_start_steps",
    "min_survivors": "min_survivors",
    "seed": "seed",
    "calibration.calibrator": "calibrator",
    "calibration.bins": "bins",
    "calibration.smoothing": "smoothing",
    "calibration.buffer_rows": "buffer_rows",
    "guard.auc": "guard_auc",
}
#: Fields of HeadConfig by their key in the group.
HEAD_KEYS = {
    f"head.{name}": name
    for name in ("width", "learning_rate", "weight_decay", "batch_size", "epochs", "buffer_rows",
                 "max_weight", "seed")
}  # fmt: skip
OTHER_KEYS = ("mode", "preset", "outcome.metric", "outcome.threshold", "sentinel", "rollouts")
KEYS = (*PRUNING_KEYS, *HEAD_KEYS, *OTHER_KEYS)

#: What a key of verl's must be where rollouts are pruned or decided on, and why.
_NEEDED: dict[str, tuple[object, str]] = {
    "trainer.use_v1": (True, "the older trainer has no replay buffer to drop rollouts from"),
    "trainer.v1.trainer_mode": ("sync", "plans go out between the steps of one loop"),
    "trainer.v1.sampler.custom_sampler.path": (None, "pruning brings a sampler of its own"),
    "trainer.v1.sampler.custom_sampler.name": (None, "pruning brings a sampler of its own"),
    "algorithm.adv_estimator": ("grpo", "groups of survivors need group-relative advantages"),
    "distillation.enabled": (False, "a teacher would go on scoring pruned rollouts"),
    "skip.rollout_tq.enable": (False, "stored rollouts were decided on under other plans"),
    f"{ROLLOUT}.name": ("vllm", "pruning happens inside that engine"),
    f"{ROLLOUT}.agent.agent_loop_manager_class": (None, "pruning brings one of its own"),
    f"{ROLLOUT}.agent.agent_loop_config_path": (None, "only verl's own single turn is marked"),
    f"{ROLLOUT}.agent.default_agent_loop": (AGENT, "a rollout is one answer"),
    f"{ROLLOUT}.multi_turn.enable": (False, "a rollout is one answer"),
    f"{ROLLOUT}.disaggregation.enabled": (False, "the engine that decodes must have the prompt"),
    f"{ROLLOUT}.data_parallel_size": (1, "replicas inside one engine can't be told apart"),
    f"{ROLLOUT}.engine_kwargs.vllm.speculative_config": (None, "a draft runs past the detection"),
    f"{ROLLOUT}.engine_kwargs.vllm.data_parallel_size": (None, "replicas can't be told apart"),
    f"{ROLLOUT}.engine_kwargs.vllm.worker_extension_cls": (None, "vLLM takes one, and it is ours"),
    f"{ROLLOUT}.engine_kwargs.vllm.enable_batch_sharded_sampling": (
        False, "the detection reads whole rows",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What a training run needs to know of pruning.

    Attributes:
        mode: off, shadow (decide and record only) or on.
        preset: whose defaults stand where the configuration gives none.
        pruning: everything that the rule depends on; its mode is ``mode``.
        head: everything that the training of the head depends on.
        outcome_metric: number of the reward function that says whether a rollout is right; None
            for "acc" where it returns that, else the reward itself.
        outcome_threshold: a rollout is right above it.
        sentinel: token id that ends pruned rollouts; None to find one.
        rollouts: folder that every step's rollouts are written to; None for none.
    """

    mode: Mode
    preset: Preset
    pruning: PruningConfig
    head: HeadConfig
    outcome_metric: str | None = None
    outcome_threshold: float = 0.0
    sentinel: int | None = None
    rollouts: str | None = None

    @classmethod
    def from_config(cls, config: Any) -> Settings:
        """Read and check the group ``arrol``, and unless its mode is off verl's own settings.

        Args:
            config: verl's whole configuration (a DictConfig) with the group in it.

        Raises:
            ArrolError: a value is not allowed, or one of verl's settings is nothing that pruning
                can work with; the sentence names the key as it is set.
        """
        values = _flat(select(config, "arrol"))
        mode = as_member("arrol.mode", Mode, _word(values.get("mode", Mode.ON)))
        preset = as_member("arrol.preset", Preset, values.get("preset", Preset.BALANCED))
        pruning = _pruning(mode, preset, values)
        metric, threshold = values.get("outcome.metric"), values.get("outcome.threshold", 0.0)
        if metric is not None and (not isinstance(metric, str) or not metric):
            raise ArrolError(f"arrol.outcome.metric is {metric!r}; allowed is a name or null.")
        check_range("arrol.outcome.threshold", threshold)
        sentinel = values.get("sentinel")
        if sentinel is not None:
            check_integer("arrol.sentinel", sentinel, 0)
        folder = values.get("rollouts")
        if folder is not None and (not isinstance(folder, str) or not folder):
            raise ArrolError(f"arrol.rollouts is {folder!r}; allowed is a folder or null.")
        if mode is not Mode.OFF:
            _check_verl(config, pruning)
        return cls(mode, preset, pruning, _head(values), metric, float(threshold), sentinel, folder)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that a misspelt ``name`` means most likely, or None."""
    known = list(names)
    by_end = {other.rpartition(".")[2]: other for other in known}
    found = get_close_matches(name, known, 1, cutoff=0.75)
    if found:
        return found[0]
    found = get_close_matches(name.rpartition(".")[2], by_end, 1, cutoff=0.75)
    return by_end[found[0]] if found else None


def unknown(name: str, names: Iterable[str]) -> ArrolError:
    """The error for a key that is none."""
    near = nearest(name, names)
    return ArrolError(
        f"{name} is no setting; the nearest is {near}."
        if near
        else f"{name} is no setting; allowed is what --print-config prints."
    )


def _flat(group: Any) -> dict[str, Any]:
    """The group's values by dotted key, without those that are null."""
    if not _is_mapping(group):
        raise ArrolError(
            f"arrol is {group!r}; allowed is the group that python -m arrol.adapters.verl_run "
            "--print-config arrol prints."
        )
    values = dict(_leaves(group))
    for name in values:
        if name not in KEYS:
            raise unknown(f"arrol.{name}", [f"arrol.{key}" for key in KEYS])
    return {name: value for name, value in values.items() if value is not None}


def _leaves(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    sections = {key.partition(".")[0] for key in KEYS if "." in key}
    for name in group:
        value = select(group, str(name), f"arrol.{prefix}{name}")
        if _is_mapping(value) and not prefix:
            yield from _leaves(value, f"{name}.")
        elif name in sections and not prefix:
            if value is not None:
                raise ArrolError(f"arrol.{name} is {value!r}; allowed is a group of keys.")
        else:
            yield f"{prefix}{name}", value


def _pruning(mode: Mode, preset: Preset, values: Mapping[str, Any]) -> PruningConfig:
    given = _chosen(values, PRUNING_KEYS)
    survivors = given.get("min_survivors", 0)
    if preset is not Preset.BALANCED and survivors not in (0, None) and _is_integer(survivors):
        raise ArrolError(
            f"arrol.min_survivors is {survivors} with preset {preset}; allowed is 0 or null, as "
            "its independent draws can't promise a number of survivors (preset balanced can)."
        )
    return _named(PRUNING_KEYS, lambda: PruningConfig.preset(preset, mode=mode, **given))


def _head(values: Mapping[str, Any]) -> HeadConfig:
    return _named(HEAD_KEYS, lambda: HeadConfig(**_chosen(values, HEAD_KEYS)))


def _chosen(values: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {field: values[key] for key, field in keys.items() if key in values}


def _named(keys: Mapping[str, str], build: Callable[[], Value]) -> Value:
    """Build a value; an error names the key as it is set, not the field."""
    try:
        return build()
    except ArrolError as error:
        field, space, rest = str(error).partition(" ")
        paths = {field: f"arrol.{key}" for key, field in keys.items()}
        raise ArrolError(f"{paths.get(field, field)}{space}{rest}") from None


def _check_verl(config: Any, pruning: PruningConfig) -> None:
    for key, (needed, why) in _NEEDED.items():
        value = select(config, key)
        if value != needed and not (value is None and needed is False):
            shown = "not set" if value is None else repr(value)
            raise ArrolError(
                f"{key} is {shown}; allowed where rollouts are pruned is {_shown(needed)}, "
                f"as {why}."
            )
    processors = f"{ROLLOUT}.engine_kwargs.vllm.logits_processors"
    given = select(config, processors)
    if given is not None and (isinstance(given, str) or not isinstance(given, Sequence)):
        raise ArrolError(f"{processors} is {given!r}; allowed is a list of classes' names.")
    mtp = f"{ROLLOUT}.mtp"
    if select(config, f"{mtp}.enable") and select(config, f"{mtp}.enable_rollout"):
        raise ArrolError(
            "actor_rollout_ref.model.mtp.enable_rollout is true; allowed where rollouts are pruned "
            "is false, as a draft runs past the detection."
        )
    size = select(config, f"{ROLLOUT}.n")
    check_integer(f"{ROLLOUT}.n", size, 2)
    if pruning.min_survivors >= size:
        raise ArrolError(
            f"arrol.min_survivors is {pruning.min_survivors}; allowed is less than {ROLLOUT}.n, "
            f"which is {size}: nothing would ever be pruned."
        )
    gpus = 1
    for key in ("trainer.n_gpus_per_node", "trainer.nnodes"):
        count = select(config, key)
        check_integer(key, count, 1)
        gpus *= count
    for key in ("trainer.save_freq", "trainer.test_freq"):
        check_integer(key, select(config, key), -1)
    parallel = select(config, f"{ROLLOUT}.tensor_model_parallel_size")
    check_integer(f"{ROLLOUT}.tensor_model_parallel_size", parallel, 1)
    if gpus % parallel:
        raise ArrolError(
            f"{ROLLOUT}.tensor_model_parallel_size is {parallel}; allowed is what divides "
            f"trainer.nnodes × trainer.n_gpus_per_node, which is {gpus}."
        )
    prompts = select(config, "data.train_batch_size")
    check_integer("data.train_batch_size", prompts, 1)
    mini = "actor_rollout_ref.actor.ppo_mini_batch_size"
    check_integer(mini, select(config, mini), 1, prompts)
    length = select(config, f"{ROLLOUT}.response_length")
    check_integer("data.max_response_length", length, 1)
    if pruning.detect_length >= length:
        raise ArrolError(
            f"arrol.detect_length is {pruning.detect_length}; allowed is less than "
            f"data.max_response_length, which is {length}: nothing would ever be pruned."
        )


def _shown(value: object) -> str:
    """A value as it is written on the command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def select(config: Any, key: str, shown: str = "") -> Any:
    """A value, its interpolations resolved; None where it is missing."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.select(config, key)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ArrolError(f"{shown or key} can't be read: {reason}.") from None


def _is_mapping(value: Any) -> bool:
    from omegaconf import DictConfig

    return isinstance(value, (DictConfig, Mapping))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _word(value: object) -> object:
    """YAML reads on and off as booleans."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value
