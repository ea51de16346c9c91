"""The toy task's reward, loaded by verl from this file: most characters have an even code."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """1.0 or 0.0, as reward and as outcome; a long answer loses a tenth of the reward only."""
    even = sum(ord(letter) % 2 == 0 for letter in solution_str)
    right = float(2 * even > len(solution_str))
    return {"score": right - 0.1 * (len(solution_str) > 20), "acc": right}
