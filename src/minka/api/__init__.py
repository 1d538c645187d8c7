"""Minka as a library: a model in this process, with the server's engine, prefix cache and continuous batching.

`from minka import LLM, AsyncLLM, SamplingParams` is the way in. Knows no HTTP; what a request may ask for is what the
server's own routes take.
"""

from minka.api.async_llm import AsyncLLM
from minka.api.llm import LLM
from minka.api.outputs import CompletionOutput, EmbeddingOutput, RequestOutput
from minka.api.params import SamplingParams

__all__ = ["LLM", "AsyncLLM", "CompletionOutput", "EmbeddingOutput", "RequestOutput", "SamplingParams"]
