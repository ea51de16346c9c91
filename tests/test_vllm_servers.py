"""AsyncLLM, and vLLM's own HTTP server, under plans: decisions are those of ``LLM``."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm import SamplingParams
from vllm_engines import plan_of, random_arguments, random_engine, random_head, random_model
from vllm_settings import set_in_process

from arrol.adapters.vllm import (
    PruningAsyncLLM,
    PruningLLM,
    PruningServer,
    engine_arguments,
    group_requests,
)
from arrol.adapters.vllm.support import EXTENSION, PROCESSOR
from arrol.errors import ArrolError
from arrol.records import FinishReason, Mode
from arrol.survival import LineRule

PROMPTS = [f"Tell me about {i}." for i in range(4)]
GREEDY = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True}
KEEP_ALL = LineRule(base=1.0, slope=0.0, centre=0.0, low=1.0, high=1.0)
PRUNE_ALL = LineRule(base=0.0, slope=0.0, centre=0.0, low=0.0, high=0.0)


def decisions(rollouts):
    return {
        r.key: (r.finish_reason, r.token_ids, r.detection.survival, r.detection.keep)
        for r in rollouts
    }


@pytest.fixture(scope="module")
def reference():
    backend = PruningLLM(random_engine(max_num_seqs=7))
    backend.load_head(random_head())
    backend.load_plan(plan_of())
    found = decisions(backend.generate(group_requests(PROMPTS, 4, SamplingParams(**GREEDY))))
    reasons = {reason for reason, *_ in found.values()}
    assert reasons == {FinishReason.PRUNED, FinishReason.LENGTH}
    return found


def test_async_engine(reference):
    """Rollouts, a push between batches, a cancelled rollout, a refused prompt."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    set_in_process(False)
    arguments = AsyncEngineArgs(**engine_arguments(**random_arguments(max_num_seqs=7)))
    requests = group_requests(PROMPTS, 4, SamplingParams(**GREEDY))

    async def run():
        llm = AsyncLLM.from_engine_args(arguments)
        try:
            backend = PruningAsyncLLM(llm)
            await backend.load_head(random_head())
            await backend.load_plan(plan_of())
            assert decisions(await backend.generate(requests)) == reference
            hidden = (await backend.rollout(requests[0])).hidden
            assert hidden is not None
            await backend.load_plan(plan_of(version=2, mode=Mode.SHADOW, rule=PRUNE_ALL))
            shadow = await backend.generate(requests)
            assert {r.detection.version for r in shadow} == {2}
            assert all(r.tokens == 16 for r in shadow)
            await backend.load_plan(plan_of(version=3, rule=KEEP_ALL))
            endless = SamplingParams(max_tokens=230, ignore_eos=True)
            job = asyncio.create_task(backend.rollout(replace(requests[0], sampling=endless)))
            await asyncio.sleep(0.05)
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            long = replace(requests[1], prompt="x" * 300)
            assert (await backend.rollout(long)).finish_reason is FinishReason.FAILED
            await backend.load_plan(plan_of())
            assert decisions(await backend.generate(requests)) == reference
            status = await backend.status()
            assert (status["plan"], status["decided"]) == (1, len(requests))
        finally:
            llm.shutdown()

    asyncio.run(run())


@pytest.fixture(scope="module")
def server():
    """``vllm serve`` with two flags, in development mode."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        # What "vllm serve" runs; its own command line wants a distribution of the name vllm.
        sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(random_model()),
        "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "256", "--dtype", "float32",
        "--enforce-eager", "--max-num-seqs", "7", "--no-enable-chunked-prefill",
        "--kv-cache-memory-bytes", str(2**26), "--logits-processors", PROCESSOR,
        "--worker-extension-cls", EXTENSION,
    ]  # fmt: skip
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    process = subprocess.Popen(command, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.5)
        assert process.poll() is None, "vllm serve ended"
        yield url
    finally:
        process.terminate()
        process.wait(30)


def test_http_server(server, reference):
    backend = PruningServer(server, sentinel=319)
    backend.load_head(random_head())
    backend.load_plan(plan_of())
    requests = group_requests(PROMPTS, 4, GREEDY)
    rollouts = backend.generate(requests)
    assert decisions(rollouts) == reference
    found = [r.detection for r in rollouts]
    assert repr(plan_of().replay(found)) == repr(found)
    assert all(r.hidden.shape == (64,) for r in rollouts)
    assert all(319 not in r.token_ids for r in rollouts)
    backend.load_plan(plan_of(mode=Mode.OFF))
    off = backend.generate(requests)
    assert all(r.detection is None and r.tokens == 16 for r in off)


def test_http_server_refuses_what_can_not_be_pruned(server):
    backend = PruningServer(server, sentinel=319)
    backend.load_head(random_head())
    backend.load_plan(plan_of())
    long = {**GREEDY, "min_tokens": 12}
    rollouts = backend.generate(group_requests(PROMPTS[:1], 2, long))
    assert {r.finish_reason for r in rollouts} == {FinishReason.FAILED}
    assert all("min_tokens is 12; allowed" in r.error for r in rollouts)


def test_no_server_is_one_sentence():
    with pytest.raises(ArrolError, match=r"http://127.0.0.1:9/v1/models can't be reached"):
        PruningServer("http://127.0.0.1:9", sentinel=3)


def test_the_body_of_a_request_has_flat_extra_arguments():
    """``vllm_xargs`` takes no nested values."""
    backend = PruningServer.__new__(PruningServer)
    super(PruningServer, backend).__init__(0, 319, True)
    backend.model = "m"
    backend.plan = plan_of()
    (request,) = group_requests(PROMPTS[:1], 1, {"max_tokens": 4, "seed": 7})
    body = backend.body(request)
    assert all(isinstance(value, str) for value in body["vllm_xargs"].values())
    assert body["stop_token_ids"] == [319]
    assert body["seed"] not in (7, None)
    assert json.loads(body["vllm_xargs"]["arrol"])["keys"] == [request.key]
