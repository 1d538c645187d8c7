"""The fold over one choice's events: its text, tokens and probabilities so far, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from minka.types import (
    Event,
    Finished,
    FinishReason,
    Job,
    Progress,
    PromptLogprobs,
    Started,
    Timings,
    Token,
    TokenLogprobs,
)


@dataclass(slots=True)
class Transcript:
    """What is known of one choice. `open_frames` is whether its stream has sent anything yet."""

    index: int
    job: Job
    open_frames: bool = False
    slot: int = -1
    pieces: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Those of the prompt's tokens, without the first one."""
    timings: Timings = field(default_factory=Timings)
    """The counts so far."""
    end: Finished | None = None

    def add(self, event: Event) -> None:
        """Take the choice's next event."""
        match event:
            case Started():
                self.slot = event.slot
                self.timings = Timings(cache_n=event.n_cached, prompt_n=event.n_prompt - event.n_cached)
            case Progress():
                self.slot = event.slot
            case PromptLogprobs():
                self.prompt_logprobs += event.entries
            case Token():
                self.tokens.append(event.token)
                self.pieces.append(event.text)
                self.timings = event.timings
                if event.logprobs is not None:
                    self.logprobs.append(event.logprobs)
            case Finished():
                self.pieces.append(event.text)
                self.slot, self.end, self.timings = event.slot, event, event.timings
            case _:
                pass  # Failed and Cancelled end the whole exchange, not the fold

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.pieces)

    @property
    def ended(self) -> Finished:
        """The end, which has to be there."""
        assert self.end is not None, "asked for the end of a choice that goes on"
        return self.end

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for the end."""
        return "length" if self.ended.reason is FinishReason.LIMIT else "stop"


class Transcripts:
    """The transcripts of all choices of a request, found by job id."""

    def __init__(self, jobs: tuple[Job, ...]) -> None:
        self.all = tuple(Transcript(index, job) for index, job in enumerate(jobs))
        self._by_id = {transcript.job.id: transcript for transcript in self.all}

    def add(self, event: Event) -> Transcript:
        """Take an event; returns the transcript that it belongs to."""
        transcript = self._by_id[event.id]
        transcript.add(event)
        return transcript

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        return all(transcript.end is not None for transcript in self.all)
