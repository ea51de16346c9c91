"""One run of ``arrol generate``: prompts in, a file of rollouts and a :class:`Run` out."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrol.adapters.vllm.interrupts import deaf_children, ended_by_signals
from arrol.adapters.vllm.options import RolloutBar, engine_values
from arrol.adapters.vllm.prompts import (
    LEARNED_FILE,
    Prompt,
    first_line,
    learned_before,
    save_learned,
    token_ids,
)
from arrol.adapters.vllm.rollout_file import RolloutFile
from arrol.adapters.vllm.support import engine_arguments, vllm_version
from arrol.answers import Verifier
from arrol.config import PruningConfig
from arrol.controller import PruningController
from arrol.errors import ArrolError
from arrol.files import writable_file
from arrol.plan import PruningPlan
from arrol.records import Mode, Rollout
from arrol.rollout_rows import short_text

if TYPE_CHECKING:
    from arrol.adapters.vllm.first_head import FirstHead
    from arrol.adapters.vllm.llm import PruningLLM
    from arrol.head import QualityHead

CONTROLLER_FILE = "controller.json"  #: beside the head's own files
HEAD_FILES = ("head.safetensors", "head.json", CONTROLLER_FILE, LEARNED_FILE)
GRADE_SECONDS = 5.0  #: time limit of one answer: the engine waits meanwhile


@dataclass(frozen=True)
class RunSettings:
    """What a user sets.

    Attributes:
        model: folder or hub name.
        group_size: G, rollouts of each prompt.
        config: the pruning rule. ``cold_start_steps`` is 0: a run is one step.
        max_tokens, temperature, top_p, seed: of the sampling.
        chat: texts are a user's messages; None where the model has a chat template.
        engine: engine arguments for vLLM, KEY=VALUE.
        head: folder of a head and its controller's state.
        save_head: folder for those that are made of this run.
        out: file of rollouts; one that is there is replaced.
    """

    model: str
    out: Path
    config: PruningConfig
    group_size: int = 16
    max_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    chat: bool | None = None
    engine: tuple[str, ...] = ()
    head: Path | None = None
    save_head: Path | None = None


@dataclass(frozen=True)
class Run:
    """What a run gave.

    Attributes:
        settings: as given.
        plan: the plan in force.
        rollouts: all, in the order of their ends, without their texts.
        outcomes: key → right or not, of those that could be graded.
        seconds: wall time of the generation alone.
        prompts: how many.
        answers: prompts with a gold answer.
        learned_before: prompts that the head has learned from.
        undecided: rollouts that the engine failed to decide.
        first_error: of a failed rollout.
        learned: the head that was made of it.
        not_learned: why none could be made.
    """

    settings: RunSettings
    plan: PruningPlan
    rollouts: list[Rollout]
    outcomes: dict[int, bool]
    seconds: float
    prompts: int
    answers: int
    learned_before: int = 0
    undecided: int = 0
    first_error: str = ""
    learned: FirstHead | None = None
    not_learned: str = ""


def check_settings(settings: RunSettings, prompts: Sequence[Prompt], overwrite: bool) -> None:
    """See that a run's settings fit each other, before anything is loaded.

    Raises:
        ArrolError: they don't.
    """
    config = settings.config
    if config.mode is Mode.ON and settings.head is None:
        raise ArrolError(
            "--mode is 'on' without --head, so nothing could be pruned; allowed is --head DIR, "
            "made by a run with --mode shadow --save-head DIR."
        )
    for flag, folder in (("--head", settings.head), ("--save-head", settings.save_head)):
        if config.mode is Mode.OFF and folder is not None:
            raise ArrolError(f"{flag} is {str(folder)!r} with --mode off; allowed is shadow or on.")
    if config.mode is not Mode.OFF and settings.max_tokens <= config.detect_length:
        raise ArrolError(
            f"--max-tokens is {settings.max_tokens}; allowed is more than --detect-length, "
            f"{config.detect_length}, where rollouts are decided (or --mode off)."
        )
    if settings.save_head is None:
        return
    _check_folder(settings.save_head, settings.out)
    if not any(prompt.answer is not None for prompt in prompts):
        raise ArrolError("--save-head needs answers to learn from, but no prompt has one.")
    if (settings.save_head / "head.safetensors").exists() and not overwrite:
        raise ArrolError(
            f"--save-head is {str(settings.save_head)!r}, where a head is already; allowed is "
            "another folder, or --overwrite."
        )


def _check_folder(folder: Path, out: Path) -> None:
    """See that a head can be saved there, before hours of generating."""
    if not str(folder) or str(folder) == ".":
        raise ArrolError(f"--save-head is {str(folder)!r}; allowed is a folder of its own.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
        files = [writable_file(folder / name) for name in HEAD_FILES]
    except ArrolError as error:
        raise ArrolError(f"--save-head: {error}") from None
    except OSError as error:
        raise ArrolError(
            f"--save-head is {short_text(str(folder))}; allowed is a folder that can be written to "
            f"({error.strerror})."
        ) from None
    if writable_file(out) in files:
        raise ArrolError(f"--out is {str(out)!r}, a file of --save-head; allowed is another.")


def trained_at(folder: Path) -> int:
    """The detection length at which a head's folder was made.

    Raises:
        ArrolError: it has no controller's state that says so.
    """
    path = folder / CONTROLLER_FILE
    try:
        length = json.loads(path.read_text(encoding="utf-8"))["config"]["detect_length"]
    except OSError as error:
        raise ArrolError(f"--head: {path} can't be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArrolError(f"--head: {path} is no controller's state.") from None
    if type(length) is not int or length < 1:
        raise ArrolError(f"--head: {path} is no controller's state.")
    return length


def run(settings: RunSettings, prompts: Sequence[Prompt]) -> Run:
    """Generate, grade, write; then learn a head, if that is wanted.

    Raises:
        ArrolError: vLLM is missing or can't start so, the head does not fit the model, a file
            can't be written, or no rollout could be generated.
        KeyboardInterrupt: the user stopped it; what had ended is in the file.
    """
    # vLLM's and its engine's own words go among the progress bar's otherwise.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    arguments = _engine_arguments(settings)
    head, controller = _head_and_controller(settings)
    known = 0 if settings.head is None else learned_before(settings.head, prompts)
    plan = controller.plan(0 if head is None else head.version)
    graded = any(prompt.answer is not None for prompt in prompts)
    verifying = Verifier(seconds=GRADE_SECONDS) if graded else nullcontext()
    with ended_by_signals(), verifying as verifier:
        backend = _backend(settings, arguments)
        try:
            _check_head(settings, head, backend)
            backend.load_head(head)
            backend.load_plan(plan)
            return _finished(_Job(settings, prompts, backend, verifier), plan, known)
        finally:
            backend.llm.llm_engine.engine_core.shutdown()


@dataclass
class _Job:
    """Requests, and what of them has ended."""

    settings: RunSettings
    prompts: Sequence[Prompt]
    backend: PruningLLM
    verifier: Verifier | None
    rollouts: list[Rollout] = field(default_factory=list)
    hidden: dict[int, Any] = field(default_factory=dict)
    first_error: str = ""

    def requests(self) -> tuple[list[Any], list[int]]:
        """The requests, and the length of each prompt [tokens]."""
        from vllm import SamplingParams

        from arrol.adapters.vllm.request import group_requests

        settings = self.settings
        ids = token_ids(self.backend.llm.get_tokenizer(), self.prompts, settings.chat)
        sampling = SamplingParams(
            temperature=settings.temperature, top_p=settings.top_p,
            max_tokens=settings.max_tokens, seed=settings.seed,
        )  # fmt: skip
        requests = group_requests(ids, settings.group_size, sampling, "generate")
        return requests, list(map(len, ids))

    def file(self, requests: Sequence[Any], lengths: Sequence[int]) -> RolloutFile:
        """The file for their rollouts."""
        groups = [request.group for request in requests[:: self.settings.group_size]]
        return RolloutFile(
            self.settings.out,
            dict(zip(groups, self.prompts, strict=True)),
            dict(zip(groups, lengths, strict=True)),
            None if self.verifier is None else self.verifier.verify_all,
        )

    def take(self, rollout: Any) -> None:
        """Keep of a rollout what is needed once it is written."""
        if rollout.hidden is not None:
            self.hidden[rollout.key] = rollout.hidden
        self.first_error = self.first_error or rollout.error
        self.rollouts.append(
            Rollout(rollout.key, rollout.group, rollout.index, rollout.tokens,
                    rollout.finish_reason, rollout.detection)
        )  # fmt: skip


def _finished(job: _Job, plan: PruningPlan, known: int) -> Run:
    """Generate everything, then learn."""
    settings = job.settings
    requests, lengths = job.requests()
    look = _Look(len(requests))
    stream = job.backend.stream(requests, look)  # refuses what it must before a file is opened
    start = time.monotonic()
    with job.file(requests, lengths) as file:
        look.file = file
        _write(job, stream, look, file)
    result = Run(
        settings, plan, job.rollouts, file.outcomes, time.monotonic() - start, len(job.prompts),
        sum(prompt.answer is not None for prompt in job.prompts),
        known,
        job.backend.batch.undecided,
        job.first_error,
    )  # fmt: skip
    if all(rollout.tokens == 0 for rollout in job.rollouts):
        raise ArrolError(f"no rollout could be generated; the first says: {job.first_error}.")
    if settings.save_head is None:
        return result
    from arrol.adapters.vllm.first_head import learn

    try:
        learned = learn(job.rollouts, file.outcomes, job.hidden, settings.config)
    except ArrolError as error:
        return dataclasses.replace(result, not_learned=str(error))
    learned.save(settings.save_head)
    save_learned(settings.save_head, job.prompts)
    if settings.head is None:
        file.add_scores(learned.scores)
    return dataclasses.replace(result, learned=learned)


class _Look:
    """What is done at every look at a run: the bar moves, and what has ended is written."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.bar = RolloutBar(total)
        self.file: RolloutFile | None = None

    def __call__(self, progress: Any) -> None:
        """Take note of a :class:`Progress`."""
        if self.file is not None:
            self.file.flush()
        self.bar.look(progress)


def _write(job: _Job, stream: Any, look: _Look, file: RolloutFile) -> None:
    """Write rollouts as they end."""
    try:
        with look.bar.shown(), closing(stream):
            for rollout in stream:
                job.take(rollout)
                file.add(rollout)
    except KeyboardInterrupt:
        file.flush()
        text = f"{file.written:,} of {look.total:,} rollouts are in {file.path}"
        print(f"arrol generate: {text}.", file=sys.stderr)
        raise


def _engine_arguments(settings: RunSettings) -> dict[str, Any]:
    """vLLM's engine arguments, checked.

    Raises:
        ArrolError: vLLM is missing, or an argument is unknown or given by another flag.
    """
    vllm_version()
    try:
        from vllm.engine.arg_utils import EngineArgs
    except ImportError as error:
        raise ArrolError(
            f"vLLM can't be imported ({first_line(error)}); allowed is an installation that can."
        ) from None
    names = [entry.name for entry in dataclasses.fields(EngineArgs) if entry.name != "model"]
    values = {"use_tqdm_on_load": False, **engine_values(settings.engine, names)}
    arguments: dict[str, Any] = engine_arguments(**values)
    return arguments


def _backend(settings: RunSettings, arguments: dict[str, Any]) -> PruningLLM:
    from vllm import LLM

    from arrol.adapters.vllm.llm import PruningLLM

    try:
        with deaf_children():
            llm = LLM(model=settings.model, **arguments)
    except Exception as error:  # vLLM and what is under it raise whatever they like
        if isinstance(error, ArrolError):
            raise
        if "/" in settings.model and not Path(settings.model).exists():
            hub = "" if settings.model.count("/") > 1 else ", or a name that the hub knows"
            raise ArrolError(
                f"--model is {settings.model!r}, which is no folder; allowed is one{hub} "
                f"({first_line(error)})."
            ) from None
        raise ArrolError(
            f"vLLM can't start with model {settings.model!r} and these --engine arguments: "
            f"{first_line(error)} (if its own words above name memory, try --engine "
            "gpu_memory_utilization=0.3)."
        ) from None
    return PruningLLM(llm, keep_hidden=settings.save_head is not None)


def _head_and_controller(settings: RunSettings) -> tuple[QualityHead | None, PruningController]:
    controller = PruningController(settings.config)
    if settings.head is None:
        return None, controller
    from arrol.head import QualityHead

    try:
        head = QualityHead.load(settings.head)
        controller.load(settings.head / CONTROLLER_FILE)
    except ArrolError as error:
        raise ArrolError(f"--head: {error}") from None
    if settings.config.mode is Mode.ON and head.version == 0:
        raise ArrolError(
            f"--head is {str(settings.head)!r}, an untrained head; allowed is one of --save-head."
        )
    return head, controller


def _check_head(settings: RunSettings, head: QualityHead | None, backend: PruningLLM) -> None:
    size = backend.llm.llm_engine.vllm_config.model_config.get_hidden_size()
    if head is not None and head.hidden_size != size:
        raise ArrolError(
            f"--head is {str(settings.head)!r}, for a model of hidden size {head.hidden_size}; "
            f"allowed is {size}, that of {settings.model}."
        )
