"""verl's worker extension and ours in one class: vLLM mixes only one into its workers."""

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from arrol.adapters.vllm.worker import PruningWorkerExtension


class PruningColocateWorkerExtension(vLLMColocateWorkerExtension, PruningWorkerExtension):
    """Weight sync as verl does it, and plans, heads and records as the vLLM adapter does them."""
