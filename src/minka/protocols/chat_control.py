"""What a client may do to an answer that is being written: end its reasoning."""

from __future__ import annotations

from collections.abc import Sequence

from minka.errors import RequestError
from minka.protocols.body import JsonObject
from minka.protocols.schema import FLAG, TEXT, Field, record, word
from minka.types import Job, SlotView

END_REASONING = "reasoning_end"
NOT_ACTIVE = "no active completion for this id"
NOT_ENABLED = "reasoning control not enabled for this completion"
NOT_INSIDE = "the completion is not inside its reasoning"

CONTROL_FIELDS = (
    Field("id", TEXT, "the id of the answer, as its chunks have it", required=True),
    Field("action", word(END_REASONING), "end the reasoning now", required=True),
)
CONTROL = record(success=FLAG, message=TEXT)


def decode_control(body: JsonObject) -> str:
    """The id of the answer whose reasoning is to end."""
    id, action = body.get("id"), body.get("action")
    if not isinstance(id, str) or not id:
        raise RequestError("missing completion id", param="id")
    if action != END_REASONING:
        raise RequestError(f'unknown control action: use "{END_REASONING}"', param="action")
    return id


def jobs_of(id: str, slots: Sequence[SlotView]) -> list[Job]:
    """The jobs of an answer that slots are working on."""
    jobs = [slot.job for slot in slots if slot.busy and slot.job is not None]
    return [job for job in jobs if job.id.rpartition(":")[0] == id or job.id == id]


def refusal(jobs: Sequence[Job]) -> str:
    """Why none of these answers can be told to end its reasoning, empty if some can."""
    if not jobs:
        return NOT_ACTIVE
    watched = any(job.constraint is not None and job.constraint.thinking is not None for job in jobs)
    return "" if watched else NOT_ENABLED


def control_object(*, success: bool, message: str = "") -> dict[str, object]:
    """The answer."""
    return {"success": success, **({"message": message} if message else {})}
