"""Controller and head along a run, what they leave on disk, and how a run goes on from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")

from arrol.adapters.verl.arrival import Arrivals
from arrol.adapters.verl.checkpoints import MARKER, mend_marker
from arrol.adapters.verl.loop import PruningLoop
from arrol.adapters.verl.requests import entry_of, group_of, marked
from arrol.adapters.verl.rollouts import Row, group_key, rollout_key
from arrol.adapters.verl.settings import Settings
from arrol.adapters.vllm.pruner import Record, pack
from arrol.adapters.vllm.request import PruningArgs
from arrol.config import Preset, PruningConfig
from arrol.errors import ArrolError
from arrol.head_config import HeadConfig
from arrol.records import Mode, Request
from arrol.rollout_left_out import LeftOut
from arrol.rollout_log import read_rollouts

HIDDEN, GROUP, PROMPTS, DETECT = 8, 4, 6, 5


def settings(**changes: Any) -> Settings:
    pruning = PruningConfig(detect_length=DETECT, cold_start_steps=1)
    head = HeadConfig(learning_rate=0.02, epochs=8)
    return Settings(Mode.ON, Preset.BALANCED, pruning, head, **changes)


def started(**changes: Any) -> PruningLoop:
    loop = PruningLoop(settings(**changes))
    loop.start(HIDDEN)
    return loop


def step(loop: PruningLoop, number: int) -> dict[str, float]:
    """One step; its metrics."""
    metrics: dict[str, float] = {}
    for found in phases(loop, number):
        metrics |= found
    return metrics


def phases(loop: PruningLoop, number: int) -> Iterator[dict[str, float]]:
    """A step, phase by phase, with an engine of our own: it scores by the head that it is sent."""
    rng = np.random.default_rng(number)
    loop.begin()
    yield {}
    assert loop.plan is not None
    assert loop.head is not None
    uids = [f"p{number}-{place}" for place in range(PROMPTS)]
    loop.submitted(uids, GROUP)
    yield {}
    decider = loop.plan.decider(0, loop.head.head.version)
    rows, records = [], []
    for uid in uids:
        for session in range(GROUP):
            right = float(rng.random() < 0.5)
            hidden_H = rng.normal(right, 0.5, HIDDEN).astype(np.float16)
            score = float(loop.head.head.scores(_tensor(hidden_H))[0])
            request = Request(rollout_key(uid, session), group_key(uid), session, GROUP)
            record = Record(decider.decide_one(request, score), hidden_H)
            pruned = record.detection.pruned
            records.append(record)
            rows.append(Row(
                f"{uid}_{session}_0", uid, session, DETECT if pruned else 9, pruned,
                "pruned" if pruned else "stop", None if pruned else right, right,
            ))  # fmt: skip
    counts = {"tokens": 0, "decided": len(records), "pruned": sum(r.pruned for r in rows)}
    loop.take([(pack(records), counts)])
    yield {}
    yield loop.observe(number, rows, [], 0)
    yield loop.train_head()


def _tensor(hidden_H: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(hidden_H.astype(np.float32))[None]


@pytest.mark.parametrize("done", range(6))
def test_a_run_killed_after_any_phase_goes_on_as_if_it_had_not_been(
    tmp_path: Path, done: int
) -> None:
    loop = started(rollouts=str(tmp_path / "whole"))
    whole = {number: step(loop, number) for number in range(1, 7)}
    killed = started(rollouts=str(tmp_path / "killed"))
    for number in range(1, 4):
        step(killed, number)
    killed.save(tmp_path, 3, prompts=18)
    step(killed, 4)
    list(islice(phases(killed, 5), done))
    resumed = started(rollouts=str(tmp_path / "killed"))
    assert resumed.load(tmp_path, 3) == 18
    for number in range(4, 7):
        np.testing.assert_equal(step(resumed, number), whole[number])
    assert resumed.controller.state_dict() == loop.controller.state_dict()
    for number in range(1, 7):
        texts = [(tmp_path / run / f"{number}.jsonl").read_text() for run in ("whole", "killed")]
        assert texts[0] == texts[1]


def test_pruning_starts_after_the_cold_start_and_the_head_learns() -> None:
    loop = started()
    metrics = [step(loop, number) for number in range(1, 9)]
    assert metrics[0]["arrol/pruned"] == 0
    assert metrics[-1]["arrol/pruned"] == pytest.approx(PROMPTS * GROUP / 2, abs=3)
    # Right and wrong lie 1 apart in 8 directions with σ = .5: d' = √8 / .5, an AUC of 1.
    assert metrics[-1]["arrol/head/auc_weighted"] > 0.95


def test_a_session_without_a_row_has_failed() -> None:
    loop = started()
    loop.begin()
    loop.submitted(["p0"], GROUP)
    metrics = loop.observe(1, [Row("p0_0_0", "p0", 0, 3, False, "stop", 1.0, 1.0)], [], 0)
    assert metrics["arrol/rollouts"] == GROUP
    assert metrics["arrol/failed"] == GROUP - 1 == metrics["arrol/missing"]


def test_a_kill_while_saving_leaves_the_old_state_or_none(tmp_path: Path) -> None:
    loop = started()
    step(loop, 1)
    loop.save(tmp_path, 1, prompts=6)
    before = {p.name: p.read_bytes() for p in (tmp_path / "arrol").iterdir()}
    # What a kill in the middle of the next save leaves.
    unfinished = tmp_path / ".arrol.unfinished"
    unfinished.mkdir()
    (unfinished / "controller.json").write_text("{")
    assert started().load(tmp_path, 1) == 6
    loop.save(tmp_path, 1, prompts=6)
    assert {p.name: p.read_bytes() for p in (tmp_path / "arrol").iterdir()} == before
    assert not unfinished.exists()


@pytest.mark.parametrize("damage", ["missing", "other step", "no number"])
def test_a_damaged_checkpoint_is_refused_in_one_sentence(tmp_path: Path, damage: str) -> None:
    if damage != "missing":
        started().save(tmp_path, 2, prompts=0)
    if damage == "no number":
        (tmp_path / "arrol" / "run.json").write_text('{"step": 3, "prompts": "x"}')
    with pytest.raises(ArrolError, match=r"can't be read .* allowed is a checkpoint"):
        started().load(tmp_path, 3)


def test_rollouts_on_disk_are_what_replay_reads(tmp_path: Path) -> None:
    loop = started(rollouts=str(tmp_path))
    for number in range(1, 4):
        step(loop, number)
    log = read_rollouts([tmp_path / f"{number}.jsonl" for number in range(1, 4)])
    pruned = sum(json.loads(line).get("finish_reason") == "pruned"
                 for number in range(1, 4)
                 for line in (tmp_path / f"{number}.jsonl").read_text().splitlines())  # fmt: skip
    assert pruned > 0
    assert log.left_out == {LeftOut.PRUNED: pruned}
    assert len(log) == 3 * PROMPTS * GROUP - pruned
    assert not log.problems.first


def test_an_empty_marker_is_mended(tmp_path: Path) -> None:
    marker = tmp_path / MARKER
    mend_marker(tmp_path)  # nothing there yet
    assert not marker.exists()
    for number in (2, 10, 12):
        folder = tmp_path / f"global_step_{number}"
        (folder / "arrol").mkdir(parents=True)
        if number != 12:  # the last was not finished
            (folder / "data.pt").write_bytes(b"")
    marker.write_text("2")
    mend_marker(tmp_path)
    assert marker.read_text() == "2"  # verl's own word stands
    marker.write_text("")
    mend_marker(tmp_path)
    assert marker.read_text() == "10"


def test_an_empty_marker_without_checkpoints_goes(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text("")
    mend_marker(tmp_path)
    assert not (tmp_path / MARKER).exists()


def test_a_mark_travels_with_the_sampling_parameters() -> None:
    sampling = {"temperature": 1.0, "extra_args": {"other": 1}}
    changed = marked(sampling, "p7", 3, 8, seed=None)
    assert sampling == {"temperature": 1.0, "extra_args": {"other": 1}}
    assert "seed" not in changed
    entry = entry_of(changed)
    assert entry is not None
    args = PruningArgs(**{**entry, "keys": tuple(entry["keys"])}, detect_length=5, sentinel=9)
    assert args.child(0) == Request(rollout_key("p7", 3), group_key("p7"), 3, 8)
    assert group_of(changed) == group_of(marked({}, "p7", 5, 8, seed=None))
    assert group_of(changed) != group_of(marked({}, "p8", 3, 8, seed=None))
    assert group_of(sampling) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 15)), unique=True, min_size=2))
def test_seeds_differ_between_rollouts_and_follow_from_the_run(
    names: list[tuple[int, int]],
) -> None:
    seeds = [marked({}, f"p{uid}", session, 16, seed=1)["seed"] for uid, session in names]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [marked({}, f"p{uid}", session, 16, seed=1)["seed"] for uid, session in names]
    assert all(0 <= seed < 2**63 for seed in seeds)


class Engine:
    """What :class:`Arrivals` sees of vLLM's engine; it notes what it is told."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    async def add_request(self, name: Any) -> None:
        await asyncio.sleep(0)
        self.notes.append(name)

    async def pause_generation(self, **options: Any) -> None:
        self.notes.append("pause")

    async def resume_generation(self) -> None:
        self.notes.append("resume")


async def arrive(engine: Engine, arrivals: Arrivals, places: list[tuple[int, int]]) -> None:
    async def one(place: tuple[int, int]) -> None:
        await arrivals.turn(*place)
        await engine.add_request(place)

    await asyncio.gather(*(one(place) for place in places))


@given(st.permutations([(group, index) for group in range(3) for index in range(3)]))
def test_requests_enter_in_one_order_whatever_theirs(places: list[tuple[int, int]]) -> None:
    engine = Engine()

    async def run() -> None:
        arrivals = Arrivals(engine)
        arrivals.expect(len(places))
        await arrive(engine, arrivals, places)
        await arrive(engine, arrivals, [(9, 0)])  # one more than expected is not held

    asyncio.run(run())
    assert engine.notes == ["pause", *sorted(places), "resume", (9, 0)]


def test_requests_that_never_come_hold_the_others_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("arrol.adapters.verl.arrival.PATIENCE", 0.05)
    engine = Engine()

    async def run() -> None:
        arrivals = Arrivals(engine)
        arrivals.expect(3)
        await arrive(engine, arrivals, [(1, 1), (1, 0)])

    asyncio.run(run())
    assert engine.notes == ["pause", (1, 0), (1, 1), "resume"]


def test_the_note_of_a_run_is_json(tmp_path: Path) -> None:
    started().save(tmp_path, 4, prompts=32)
    text = (tmp_path / "arrol" / "run.json").read_text()
    assert json.loads(text) == {"step": 4, "prompts": 32}
