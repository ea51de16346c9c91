"""The Chrome trace: a worked example, the format's rules, and sampling."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from arrol.sim.cost import StepTime
from arrol.sim.engine import EngineLimits, SimulatedRequest, Slice, simulate
from arrol.sim.settings import SimSettings
from arrol.sim.trace import assign_slots, chrome_trace, write_trace

SECOND = StepTime(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)  # every step takes a second


def request(key, prompt=4, length=5):
    return SimulatedRequest(key, key, 0, 1, prompt_tokens=prompt, length=length)


def traced(requests, limits, engines=1, **sampling):
    slices: list[Slice] = []
    run = simulate(requests, limits, SECOND, engines=engines, trace=slices)
    return run, chrome_trace(run, slices, **sampling)["traceEvents"]


def events_of(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_a_preempted_rollout_has_two_slices():
    """Two prompts of 4 in 12 KV tokens (the worked example of test_engine.py): B runs for three
    seconds, waits for two, and ends at second 7."""
    _, events = traced([request(1), request(2)], EngineLimits(kv_tokens=12))
    slices = {(e["args"]["group"], e["ts"], e["dur"], e["name"]) for e in events_of(events, "X")}
    assert slices == {
        ("1", 0.0, 5e6, "kept"),
        ("2", 0.0, 3e6, "preempted"),
        ("2", 5e6, 2e6, "kept"),
    }
    stored = {
        e["ts"] / 1e6: e["args"]["tokens"] for e in events_of(events, "C") if e["name"] != "running"
    }
    # Both prompts until the first decode step; at 3 both store 6, and B goes; at 5 A is done and
    # B's 4 + 3 come back, which the next decode step finds; then it ends.
    assert stored == {0: 8, 1: 8, 3: 6, 5: 7, 6: 7, 7: 0}


def test_counters_show_what_runs():
    _, events = traced([request(1, length=3), request(2, length=6)], EngineLimits(kv_tokens=100))
    counters = [e for e in events_of(events, "C") if e["name"] == "running"]
    # 0: both prefill; 1: both decode; 3: the first has its 3 tokens; 6: the second its 6.
    running = {e["ts"]: e["args"]["sequences"] for e in counters}
    assert running == {0.0: 2, 1e6: 2, 3e6: 1, 6e6: 0}


stays = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9)).map(
        lambda pair: Slice(0, float(pair[0]), float(sum(pair)), "stop", request(1), 1)
    ),
    max_size=30,
)


@settings(deadline=None)
@given(stays)
def test_slots_hold_one_stay_at_a_time_and_are_as_few_as_can_be(stays):
    slots = assign_slots(stays)
    for i, one in enumerate(stays):
        for j, other in enumerate(stays[:i]):
            apart = one.end <= other.start or other.end <= one.start
            assert slots[i] != slots[j] or apart
    crowd = [sum(s.start <= second < s.end for s in stays) for second in range(30)]
    assert len(set(slots)) == max(crowd, default=0)
    assert set(slots) == set(range(1, len(set(slots)) + 1))


def test_the_format_has_what_viewers_need():
    requests = [request(key, length=1 + key % 7) for key in range(60)]
    limits = EngineLimits(max_num_seqs=4, kv_tokens=30)
    run, events = traced(requests, limits, engines=3)
    assert json.loads(json.dumps(events, allow_nan=False)) == events
    assert {e["pid"] for e in events} == {1, 2, 3}
    for event in events:
        wanted = {"M": {"args"}, "C": {"ts", "args"}, "X": {"ts", "dur", "tid", "args"}}
        assert wanted[event["ph"]] | {"name", "ph", "pid"} <= set(event)
    names = {(e["pid"], e["tid"]) for e in events_of(events, "M") if e["name"] == "thread_name"}
    slices = events_of(events, "X")
    assert names == {(e["pid"], e["tid"]) for e in slices}
    assert len(slices) == len(requests) + run.preemptions
    assert max(e["tid"] for e in slices) <= limits.max_num_seqs


def test_too_many_stays_are_sampled_by_whole_slots():
    requests = [request(key, length=1 + key % 5) for key in range(400)]
    limits = EngineLimits(max_num_seqs=16, kv_tokens=1000)
    full = events_of(traced(requests, limits)[1], "X")
    sampled = events_of(traced(requests, limits, max_slices=100)[1], "X")
    assert 0 < len(sampled) <= 100 < len(full) == 400
    by_slot = defaultdict(list)
    for event in full:
        by_slot[event["tid"]].append(event)
    drawn = Counter(event["tid"] for event in sampled)
    assert all(drawn[slot] == len(by_slot[slot]) for slot in drawn)


def test_too_many_points_are_sampled_from_the_first_to_the_last():
    requests = [request(key, length=1 + key % 5) for key in range(400)]
    run, events = traced(requests, EngineLimits(max_num_seqs=16, kv_tokens=1000), max_points=20)
    points = [e for e in events_of(events, "C") if e["name"] == "running"]
    assert len(run.timelines[0].seconds_M) > 40
    assert len(points) <= 21
    assert points[0]["ts"] == 0.0
    assert points[-1]["ts"] == run.seconds * 1e6
    assert points[-1]["args"] == {"sequences": 0}


def test_a_step_of_a_setting_is_written(tmp_path):
    small = SimSettings(prompts=4, group_size=4, detect_length=64, mean_length=200, max_length=400)
    write_trace(tmp_path / "step.json", small)
    trace = json.loads((tmp_path / "step.json").read_text())
    names = Counter(e["name"] for e in trace["traceEvents"] if e["ph"] == "X")
    assert names["kept"] + names["pruned"] == 16
    assert names["pruned"] > 0
