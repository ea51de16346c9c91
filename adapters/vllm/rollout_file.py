"""The file of rollouts that ``arrol generate`` writes: a JSON line each, as they end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from arrol.adapters.vllm.prompts import Prompt
from arrol.answers import Verdict
from arrol.errors import ArrolError
from arrol.files import writable_file, write_atomically

CHUNK = 64  #: rollouts that are graded and written at once, at most

Grade = Callable[[Sequence[str], Sequence[str]], list[Verdict]]


def check_out(path: Path, prompts: Path, overwrite: bool) -> None:
    """See that rollouts can be written to ``path``.

    Raises:
        ArrolError: it is there and not to be overwritten, is no file, or is the prompts' file.
    """
    target = writable_file(path)
    if target.exists() and prompts.exists() and target.samefile(prompts):
        raise ArrolError(f"--out is {str(path)!r}, the file of prompts; allowed is another file.")
    if target.exists() and not overwrite:
        raise ArrolError(
            f"--out is {str(path)!r}, which is there; allowed is a new file, or --overwrite."
        )


class RolloutFile:
    """Grades rollouts and writes them, some at a time; a context manager.

    Each line is whole and flushed: what was written stays, however the process ends. A rollout
    whose grading was interrupted is written without an outcome.

    Args:
        path: replaced if it is there.
        prompts: key of the group → its prompt.
        lengths: key of the group → tokens of its prompt.
        grade: verdicts on texts; None where no prompt has an answer.

    Attributes:
        outcomes: key → right or not, of those that could be graded.
        written: rollouts in the file.

    Raises:
        ArrolError: the file can't be written.
    """

    def __init__(
        self,
        path: Path,
        prompts: Mapping[int, Prompt],
        lengths: Mapping[int, int],
        grade: Grade | None,
    ) -> None:
        self.path = path
        self.outcomes: dict[int, bool] = {}
        self.written = 0
        self._prompts, self._lengths, self._grade = prompts, lengths, grade
        self._waiting: list[Any] = []
        self._file: IO[str] = self._try(self._open)

    def __enter__(self) -> RolloutFile:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.flush()
        finally:
            self._file.close()

    def add(self, rollout: Any) -> None:
        """Take in a :class:`TokenRollout`; it is written with the next :meth:`flush`."""
        self._waiting.append(rollout)
        if len(self._waiting) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Grade and write what waits.

        Raises:
            ArrolError: the file can't be written.
        """
        rollouts, self._waiting = self._waiting, []
        try:
            self._judge(rollouts)
        finally:
            lines = [json.dumps(self._row(r), ensure_ascii=False) + "\n" for r in rollouts]
            self._try(lambda: self._file.write("".join(lines)))
            self._try(self._file.flush)
            self.written += len(rollouts)

    def add_scores(self, scores: Mapping[int, float]) -> None:
        """Give rows without a score the one that was found afterwards, once the file is closed.

        It is replaced as a whole.
        """
        lines = []
        with self.path.open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                found = scores.get(row["detection"]["key"]) if "detection" in row else None
                if found is not None and "score" not in row:
                    line = json.dumps({**row, "score": found}, ensure_ascii=False) + "\n"
                lines.append(line)
        # A lone surrogate is legal in JSON, as an escape.
        write_atomically(self.path, "".join(lines).encode("utf-8", "backslashreplace"))

    def _judge(self, rollouts: Sequence[Any]) -> None:
        golds = {r.key: self._prompts[r.group].answer for r in rollouts if r.survived}
        asked = [r for r in rollouts if golds.get(r.key) is not None]
        if self._grade is None or not asked:
            return
        verdicts = self._grade([r.text for r in asked], [golds[r.key] or "" for r in asked])
        for rollout, verdict in zip(asked, verdicts, strict=True):
            if verdict is not Verdict.UNVERIFIABLE:
                self.outcomes[rollout.key] = verdict is Verdict.RIGHT

    def _row(self, rollout: Any) -> dict[str, Any]:
        """What is unknown is left out."""
        prompt = self._prompts[rollout.group]
        detection = rollout.detection
        outcome = self.outcomes.get(rollout.key)
        scored = detection is not None and not math.isnan(detection.score)
        values = {
            "group": prompt.group,
            "index": rollout.index,
            "step": 0,
            "prompt": prompt.content,
            "text": rollout.text,
            "tokens": rollout.tokens,
            "prompt_tokens": self._lengths.get(rollout.group),
            "finish_reason": rollout.finish_reason.value,
            "reward": None if outcome is None else float(outcome),
            "outcome": outcome,
            "answer": prompt.answer,
            "score": detection.score if scored else None,
            "detection": None if detection is None else detection.to_dict(),
            "error": rollout.error or None,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _open(self) -> IO[str]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path.open("w", encoding="utf-8", errors="backslashreplace")

    def _try(self, write: Callable[[], Any]) -> Any:
        try:
            return write()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ArrolError(f"{self.path} can't be written: {reason}.") from None
