"""The lines that llama-perplexity prints about tasks, number for number. Knows no terminal."""

from __future__ import annotations

from minka.tools.scoring_tasks import Accuracy, Benchmark, TaskScore, deviation, wilson

TASK_HEADERS = {
    Benchmark.HELLASWAG: "task\tacc_norm\t95% confidence interval",
    Benchmark.MULTIPLE_CHOICE: "task\tacc_norm",
}
MIN_WINOGRANDE = 100
"""Tasks below which Winogrande has no final score."""


def task_line(kind: Benchmark, task: TaskScore) -> str:
    """One task, with the accuracy so far in per cent."""
    number, percent = task.index + 1, 100 * task.accuracy
    match kind:
        case Benchmark.HELLASWAG:
            low, high = wilson(task.accuracy, number)
            return f"{number}\t{percent:.8f}%\t[{100 * low:.4f}%, {100 * high:.4f}%]"
        case Benchmark.WINOGRANDE:
            first, second = task.scores
            answer = min(task.right) + 1
            return f"{number}\t{percent:.4f}\t{first:10.6f}  {second:10.6f}  {task.chosen + 1}  {answer}"
        case Benchmark.MULTIPLE_CHOICE:
            return f"{number}\t{percent:.8f}"


def task_summary(kind: Benchmark, result: Accuracy) -> list[str]:
    """The last lines; none for a kind that has none, or for too few tasks."""
    n = len(result.tasks)
    score = f"{100 * result.value:.4f} +/- {100 * result.error:.4f}"
    if kind is Benchmark.WINOGRANDE and n >= MIN_WINOGRANDE:
        return [f"Final Winogrande score({n} tasks): {score}"]
    if kind is Benchmark.MULTIPLE_CHOICE and n:
        chance = f"{100 * result.chance:.4f} +/- {100 * deviation(result.chance, n):.4f}"
        return [f"Final result: {score}", f"Random chance: {chance}"]
    return []
