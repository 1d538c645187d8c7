"""When a run ends: stop string, end token, token limit, context limit, time limit. Pure: it reads a run."""

from __future__ import annotations

from minka.engine.slot import Run
from minka.native.protocol import Backend
from minka.types import FinishReason


def ending(run: Run, token: int, backend: Backend, now: float, *, shifts: bool = False) -> FinishReason | None:
    """Why the run ends with this token, None if it goes on. `shifts`: a full context is shifted and ends nothing.

    An end token, or the end of a grammar, counts before a limit that is reached at the same time: the text is whole.
    """
    if run.text.stopped:
        return FinishReason.WORD
    if run.matcher is not None and run.matcher.closed and run.matcher.finished:
        return FinishReason.LIMIT
    if backend.vocab.is_eog(token) or (run.matcher is not None and run.matcher.finished):
        return FinishReason.EOS
    run.timed_out = run.is_late(now)
    limited = (
        run.text.outdented
        or 0 <= run.job.n_predict <= run.n_generated
        or (not shifts and len(run.context) >= backend.n_ctx_seq)
        or run.timed_out
        or _out_of_time(run, now)
    )
    return FinishReason.LIMIT if limited else None


def _out_of_time(run: Run, now: float) -> bool:
    """`t_max_predict_ms` lets a line end: it counts only once there is a new line in the text."""
    limit = run.job.t_max_predict_ms
    return limit > 0 and run.has_new_line and (now - run.first_token) * 1e3 > limit
