"""Scripts that run in the environments of frameworks: each tries all modes of one, and prints what came out.

They know the server's address (URL) and the messages that tell the model what to do (PLAYS).
"""

from __future__ import annotations

from collections.abc import Mapping

_HEAD = '''
import asyncio, json, os, traceback
from pydantic import BaseModel

URL, PLAYS = os.environ["URL"], json.loads(os.environ["PLAYS"])
SUNNY = "It is sunny at 7."

class City(BaseModel):
    """A city."""
    name: str
    sunny: bool

PARIS = City(name="Paris", sunny=True)

def get_weather(city: str) -> str:
    """Weather of a city."""
    return "sunny"

def get_time(zone: str = "UTC") -> int:
    """The time."""
    return 7

def attempt(name, wanted, work):
    try:
        got = work()
        if asyncio.iscoroutine(got):
            got = asyncio.run(got)
    except Exception:
        got = traceback.format_exc()
    print(json.dumps({"try": name, "got": repr(got), "wanted": repr(wanted)}), flush=True)
'''

_INSTRUCTOR = """
import instructor
from collections.abc import Iterable
from openai import AsyncOpenAI, OpenAI
from instructor import Mode

def client(mode):
    return instructor.from_openai(OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0), mode=mode)

def ask(play):
    return {"model": "m", "max_retries": 0, "messages": [{"role": "user", "content": PLAYS[play]}]}

EMPTY = City(name="", sunny=False)
for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS):
    c, short = client(mode), ask("shortest")
    attempt(f"{mode} create", EMPTY, lambda: c.create(response_model=City, **short))
    attempt(f"{mode} list", [], lambda: c.create(response_model=list[City], **short))
    attempt(f"{mode} completion", EMPTY, lambda: c.create_with_completion(response_model=City, **short)[0])
    attempt(f"{mode} partial", EMPTY.model_dump(),
            lambda: list(c.create_partial(response_model=City, **short))[-1].model_dump())
for mode in (Mode.JSON_SCHEMA, Mode.JSON, Mode.MD_JSON):
    attempt(f"{mode} city", PARIS, lambda: client(mode).create(response_model=City, **ask("city")))
attempt("parallel", [PARIS],
        lambda: list(client(Mode.PARALLEL_TOOLS).create(response_model=Iterable[City], **ask("call_city"))))
made = instructor.from_openai(AsyncOpenAI(base_url=URL + "/v1", api_key="none"))
attempt("async", PARIS, lambda: made.create(response_model=City, **ask("call_city")))
"""

_PYDANTIC_AI = """
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

openai = OpenAIProvider(base_url=URL + "/v1", api_key="none")
anthropic = AnthropicProvider(base_url=URL, api_key="none")

def agent(model, **options):
    return Agent(model, instructions="Be brief.", tools=[get_weather, get_time], **options)

async def output(agent, play, **options):
    return (await agent.run(PLAYS[play], **options)).output

async def streamed(agent, play):
    async with agent.run_stream(PLAYS[play]) as run:
        return "".join([piece async for piece in run.stream_text(delta=True, debounce_by=None)])

async def streamed_output(agent, play):
    async with agent.run_stream(PLAYS[play]) as run:
        return [piece async for piece in run.stream_output(debounce_by=None)][-1]

async def again(agent):
    first = await agent.run(PLAYS["two"])
    return (await agent.run(PLAYS["plain"], message_history=first.all_messages())).output

for model in (
    OpenAIChatModel("m", provider=openai),
    OpenAIResponsesModel("m", provider=openai),
    AnthropicModel("claude-sonnet-4-5", provider=anthropic),
):
    name = type(model).__name__
    attempt(f"{name} plain", "Hallo.", lambda: output(agent(model), "plain"))
    attempt(f"{name} two", SUNNY, lambda: output(agent(model), "two"))
    attempt(f"{name} both", SUNNY, lambda: output(agent(model), "both"))
    attempt(f"{name} stream", SUNNY, lambda: streamed(agent(model), "two"))
    attempt(f"{name} history", "Hallo.", lambda: again(agent(model)))
    attempt(f"{name} tool", PARIS, lambda: output(agent(model, output_type=City), "two_then_final_result"))
    attempt(f"{name} tool stream", PARIS,
            lambda: streamed_output(agent(model, output_type=City), "two_then_final_result"))
    attempt(f"{name} native", PARIS, lambda: output(agent(model, output_type=NativeOutput(City)), "two_then_city"))
    attempt(f"{name} prompted", PARIS, lambda: output(agent(model, output_type=PromptedOutput(City)), "two_then_city"))
    attempt(f"{name} list", [], lambda: output(Agent(model, output_type=list[City]), "shortest"))
    settings = {"max_tokens": 50, "temperature": 0, "top_p": 1, "parallel_tool_calls": False, "stop_sequences": ["#"]}
    attempt(f"{name} settings", "Hallo.", lambda: output(agent(model), "plain", model_settings=settings))
"""

_LANGCHAIN = '''
from typing import TypedDict
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

class AsDict(TypedDict):
    """A city."""
    name: str
    sunny: bool

openai = {"model": "m", "base_url": URL + "/v1", "api_key": "none", "max_retries": 0}
models = {
    "openai": ChatOpenAI(**openai, verbosity="low"),
    "responses": ChatOpenAI(**openai, use_responses_api=True),
    "anthropic": ChatAnthropic(model="m", base_url=URL, api_key="none", max_retries=0, max_tokens=500),
}

def last(model, play, **options):
    agent = create_agent(model, [get_weather, get_time], system_prompt="Be brief.", **options)
    return agent.invoke({"messages": [{"role": "user", "content": PLAYS[play]}]})

def text(model, play):
    messages = last(model, play)["messages"]
    return messages[-1].text, len(messages)

def form(model, play, strategy):
    return last(model, play, response_format=strategy)["structured_response"]

def joined(model, play):
    whole = None
    for chunk in model.bind_tools([get_weather, get_time]).stream(PLAYS[play]):
        whole = chunk if whole is None else whole + chunk
    return [call["name"] for call in whole.tool_calls]

for name, model in models.items():
    attempt(f"{name} plain", "Hallo.", lambda: model.invoke(PLAYS["plain"]).text)
    attempt(f"{name} stream", "Hallo.", lambda: "".join(chunk.text for chunk in model.stream(PLAYS["plain"])))
    attempt(f"{name} two", (SUNNY, 6), lambda: text(model, "two"))
    attempt(f"{name} both", (SUNNY, 5), lambda: text(model, "both"))
    attempt(f"{name} calls in a stream", ["get_weather", "get_time"], lambda: joined(model, "both"))
    attempt(f"{name} provider", PARIS, lambda: form(model, "two_then_city", ProviderStrategy(City)))
    attempt(f"{name} tool", PARIS, lambda: form(model, "two_then_call_city", ToolStrategy(City)))
    methods = {"json_schema": "city", "function_calling": "call_city", "json_mode": "city"}
    for method, play in methods.items():
        if (name, method) != ("anthropic", "json_mode"):
            attempt(f"{name} {method}", PARIS,
                    lambda: model.with_structured_output(City, method=method).invoke(PLAYS[play]))
    attempt(f"{name} dict", PARIS.model_dump(),
            lambda: model.with_structured_output(AsDict, method="json_schema").invoke(PLAYS["city"]))
    for choice in ("any", "get_time"):
        bound = model.bind_tools([get_time], tool_choice=choice)
        attempt(f"{name} {choice}", ["get_time"],
                lambda: [call["name"] for call in bound.invoke(PLAYS["shortest"]).tool_calls])
'''

_AGENTS = """
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from agents import set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
TOOLS = [function_tool(get_weather), function_tool(get_time)]

async def tried(model, play, **options):
    return (await Runner.run(agent(model, **options), PLAYS[play])).final_output

async def streamed(model, play):
    run = Runner.run_streamed(agent(model), PLAYS[play])
    kinds = {event.type async for event in run.stream_events()}
    return run.final_output, "run_item_stream_event" in kinds

async def again(model):
    first = await Runner.run(agent(model), PLAYS["two"])
    question = {"role": "user", "content": PLAYS["plain"]}
    return (await Runner.run(agent(model), [*first.to_input_list(), question])).final_output

def agent(model, **options):
    client = AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    return Agent(name="guide", instructions="Be brief.", model=model(model="m", openai_client=client), tools=TOOLS,
                 **options)

for model in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
    name = model.__name__
    attempt(f"{name} plain", "Hallo.", lambda: tried(model, "plain"))
    attempt(f"{name} two", SUNNY, lambda: tried(model, "two"))
    attempt(f"{name} both", SUNNY, lambda: tried(model, "both"))
    attempt(f"{name} stream", (SUNNY, True), lambda: streamed(model, "two"))
    attempt(f"{name} output", PARIS, lambda: tried(model, "two_then_city", output_type=City))
    attempt(f"{name} history", "Hallo.", lambda: again(model))
    settings = ModelSettings(temperature=0, max_tokens=60, verbosity="low", reasoning={"effort": "low"}, store=False)
    attempt(f"{name} settings", "Hallo.", lambda: tried(model, "plain", model_settings=settings))
"""

_LLAMA_INDEX = """
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

OPTIONS = {"model": "m", "api_base": URL + "/v1", "api_key": "none", "max_retries": 0, "is_chat_model": True}

def llm(**options):
    return OpenAILike(**OPTIONS, is_function_calling_model=True, **options)

def message(play):
    return [ChatMessage(role="user", content=PLAYS[play])]

async def agent(play, **options):
    return str(await FunctionAgent(tools=[get_weather, get_time], llm=llm(), **options).run(PLAYS[play]))

async def streamed(play):
    return "".join([chunk.delta or "" async for chunk in await llm().astream_chat(message(play))])

attempt("plain", "Hallo.", lambda: llm().chat(message("plain")).message.content)
attempt("stream", "Hallo.", lambda: streamed("plain"))
attempt("agent", SUNNY, lambda: agent("two"))
attempt("agent, both", SUNNY, lambda: agent("both"))
attempt("agent, not streamed", SUNNY, lambda: agent("two", streaming=False))
attempt("tool", PARIS, lambda: llm().as_structured_llm(City).chat(message("call_city")).raw)
attempt("schema", PARIS,
        lambda: llm(should_use_structured_outputs=True).as_structured_llm(City).chat(message("city")).raw)
"""

_LITELLM = """
import litellm
from litellm import completion

TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "zone": {"type": "string"}}}}}
    for name in ("get_weather", "get_time")]

def user(play):
    return [{"role": "user", "content": PLAYS[play]}]

def text(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

def loop(messages, stream, **options):
    for _ in range(3):
        made = completion(messages=messages, tools=TOOLS, stream=stream, **options)
        made = litellm.stream_chunk_builder(list(made), messages=messages) if stream else made
        said = made.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in said.tool_calls or []]
    return said.content

def called(choice, **options):
    (call,) = completion(messages=user("shortest"), tools=TOOLS[1:], tool_choice=choice, **options).choices[
        0].message.tool_calls
    return call.function.name

NAMED = {"type": "function", "function": {"name": "get_time"}}
bases = {"openai": URL + "/v1", "anthropic": URL, "hosted_vllm": URL + "/v1", "llamafile": URL + "/v1"}
for name, base in bases.items():
    options = {"model": f"{name}/m", "api_base": base, "api_key": "none", "num_retries": 0}
    attempt(f"{name} plain", "Hallo.", lambda: completion(messages=user("plain"), **options).choices[0].message.content)
    attempt(f"{name} stream", "Hallo.", lambda: text(completion(messages=user("plain"), stream=True, **options)))
    attempt(f"{name} loop", SUNNY, lambda: loop(user("two"), False, **options))
    attempt(f"{name} loop in streams", SUNNY, lambda: loop(user("two"), True, **options))
    attempt(f"{name} required", "get_time", lambda: called("required", **options))
    attempt(f"{name} named", "get_time", lambda: called(NAMED, **options))
    attempt(f"{name} schema", {"name": "", "sunny": False}, lambda: json.loads(
        completion(messages=user("shortest"), response_format=City, **options).choices[0].message.content))
"""

SCRIPTS: Mapping[str, str] = {
    "Instructor": _HEAD + _INSTRUCTOR,
    "Pydantic AI": _HEAD + _PYDANTIC_AI,
    "LangChain": _HEAD + _LANGCHAIN,
    "OpenAI Agents SDK": _HEAD + _AGENTS,
    "LlamaIndex": _HEAD + _LLAMA_INDEX,
    "LiteLLM": _HEAD + _LITELLM,
}
"""By the titles of docs/clients.md."""
