"""Programs from npm against a scripted model, headless: coding agents for one whole turn, and the JavaScript clients.

Run with `pytest -m agents`. The packages are installed once into the directory that MINKA_NPM names, or else into a
temporary one. Nothing but the loopback interface is used once they are there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.clients.page import ADDRESS, CITY, WEATHER, example, requirements
from tests.clients.programs import Play, output_of
from tests.clients.scripted import Part, Told, call_of, told
from tests.server.site import Live

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]

VERSIONS: Mapping[str, str] = {
    "@anthropic-ai/claude-code": "2.1.332",
    "@openai/codex": "0.171.0",
    "opencode-ai": "1.18.33",
    "@anthropic-ai/sdk": "1.14.0",
    "openai": "7.59.0",
    "ai": "6.0.326",
    "@ai-sdk/openai-compatible": "2.0.92",
    "@ai-sdk/openai": "3.0.141",
    "@ai-sdk/anthropic": "3.0.140",
    "zod": "4.6.7",
}
AI_SDK = ("ai", "@ai-sdk/openai-compatible", "@ai-sdk/openai", "@ai-sdk/anthropic", "zod")
SECONDS = 240
WORD = "quinoa-42"

Install = Callable[[str], Path]


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Installs a package, and returns the directory that holds `node_modules`."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    given = os.environ.get("MINKA_NPM")
    home = Path(given) if given else tmp_path_factory.mktemp("npm")
    home.mkdir(parents=True, exist_ok=True)

    def wanted(name: str) -> Path:
        manifest = home / "node_modules" / name / "package.json"
        if not manifest.exists() or json.loads(manifest.read_text())["version"] != VERSIONS[name]:
            command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(home), f"{name}@{VERSIONS[name]}"]
            made = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if made.returncode:
                pytest.skip(f"npm cannot install {name}: {made.stderr.strip()[-300:]}")
        return home

    return wanted


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a file that holds the word."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "secret.txt").write_text(f"The word is {WORD}.\n")
    return directory


def run(command: list[str], project: Path, env: Mapping[str, str]) -> str:
    """What a program prints that runs in a project."""
    home = project.parent / "home"
    home.mkdir(exist_ok=True)
    return output_of(command, project, {"HOME": str(home), "CI": "1", **env}, SECONDS)


# -- coding agents -----------------------------------------------------------------------------------------------------


def test_claude_code_reads_a_file(install: Install, play: Play, project: Path) -> None:
    live = play(Part("Read", {"file_path": str(project / "secret.txt")}, WORD))
    binary = install("@anthropic-ai/claude-code") / "node_modules/.bin/claude"
    env = {
        "ANTHROPIC_BASE_URL": live.url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": "minka",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    told = json.loads(run([str(binary), "-p", "Which word is in secret.txt?", "--output-format", "json"], project, env))
    assert told["result"] == f"The word is {WORD}."
    assert told["is_error"] is False
    assert told["num_turns"] == 2
    assert told["usage"]["cache_read_input_tokens"] > 0


def test_codex_reads_a_file(install: Install, play: Play, project: Path) -> None:
    live = play(Part("exec_command", {"cmd": "cat secret.txt"}, WORD))
    binary = install("@openai/codex") / "node_modules/.bin/codex"
    config = project.parent / "home" / ".codex"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(
        f'model = "minka"\nmodel_provider = "minka"\n\n[model_providers.minka]\nname = "minka"\n'
        f'base_url = "{live.url}/v1"\nwire_api = "responses"\n'
    )
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    lines = run([str(binary), "exec", *flags, "Which word is in secret.txt?"], project, {}).splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    said = [event["item"]["text"] for event in events if event.get("item", {}).get("type") == "agent_message"]
    assert said == [f"The word is {WORD}."]
    usage = next(event["usage"] for event in events if event["type"] == "turn.completed")
    assert usage["cached_input_tokens"] > 0


def test_opencode_reads_a_file(install: Install, play: Play, project: Path) -> None:
    live = play(Part("read", {"filePath": str(project / "secret.txt")}, WORD))
    binary = install("opencode-ai") / "node_modules/.bin/opencode"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "minka",
        "options": {"baseURL": f"{live.url}/v1", "apiKey": "none"},
        "models": {"minka": {"name": "minka"}},
    }
    settings = {"autoupdate": False, "share": "disabled", "provider": {"minka": provider}}
    env = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    told = run([str(binary), "run", "-m", "minka/minka", "Which word is in secret.txt?"], project, env)
    assert f"The word is {WORD}." in told


# -- JavaScript clients ------------------------------------------------------------------------------------------------

ANTHROPIC_JS = """
import Anthropic from "@anthropic-ai/sdk";
const client = new Anthropic({ baseURL: process.env.URL, apiKey: "none", maxRetries: 0 });
const tools = [{ name: "look_up", input_schema: { type: "object", properties: {} } }];
const messages = [{ role: "user", content: "Which colour?" }];
const stream = client.messages.stream({ model: "m", max_tokens: 500, tools, messages });
let pieces = "";
stream.on("inputJson", (piece) => { pieces += piece; });
const first = await stream.finalMessage();
const call = first.content.find((block) => block.type === "tool_use");
messages.push({ role: "assistant", content: first.content });
messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "It is teal." }] });
const second = await client.messages.create({ model: "m", max_tokens: 500, tools, messages });
const counted = await client.messages.countTokens({ model: "m", tools, messages });
let refused = null;
try { await client.messages.create({ model: "m", max_tokens: -1, messages }); }
catch (error) { refused = [error.status, error.error.error.type]; }
console.log(JSON.stringify({ pieces, input: call.input, stop: first.stop_reason, text: second.content[0].text,
  counted: counted.input_tokens, usage: second.usage, refused }));
"""

OPENAI_JS = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.env.URL + "/v1", apiKey: "none", maxRetries: 0 });
const tools = [{ type: "function", name: "look_up", strict: false, parameters: { type: "object", properties: {} } }];
const types = [];
const stream = client.responses.stream({ model: "m", input: "Which colour?", tools });
for await (const event of stream) types.push(event.type);
const first = await stream.finalResponse();
const call = first.output.find((item) => item.type === "function_call");
const output = { type: "function_call_output", call_id: call.call_id, output: "It is teal." };
const second = await client.responses.create({ model: "m", tools, input: [output], previous_response_id: first.id });
const items = [];
for await (const item of client.responses.inputItems.list(second.id)) items.push(item.type);
const chat = await client.chat.completions.create({ model: "m", tools: [{ type: "function", function: {
  name: "look_up", parameters: { type: "object", properties: {} } } }], messages: [{ role: "user", content: "Hi." }] });
console.log(JSON.stringify({ types: [types[0], types.at(-1)], args: call.arguments, text: second.output_text, items,
  chat: chat.choices[0].message.tool_calls[0].function.name }));
"""


AI_JS = """
import { generateText, generateObject, stepCountIs, streamObject, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";
const { loop, object } = JSON.parse(process.env.PLAYS);
const baseURL = process.env.URL + "/v1", apiKey = "none", maxRetries = 0, stopWhen = stepCountIs(5);
const openai = createOpenAI({ baseURL, apiKey });
const compatible = createOpenAICompatible({ name: "minka", baseURL, apiKey, supportsStructuredOutputs: true });
const schema = z.object({ name: z.string(), code: z.string().regex(/^[a-z]+$/).startsWith("p") });
const tools = {
  weather: tool({ inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `Sunny in ${city}.` }),
  time: tool({ inputSchema: z.object({ zone: z.string().optional() }), execute: async () => 7 }),
};
const found = {};
const models = { compatible: compatible("m"), chat: openai.chat("m"), responses: openai("m"),
  anthropic: createAnthropic({ baseURL, apiKey })("claude-sonnet-4-5") };
for (const [name, model] of Object.entries(models)) {
  const whole = await generateText({ model, tools, stopWhen, maxRetries, prompt: loop });
  const stream = streamText({ model, tools, stopWhen, maxRetries, prompt: loop });
  const forced = await generateText({ model, tools, maxRetries, prompt: "[play] ~",
    toolChoice: { type: "tool", toolName: "time" } });
  const made = await generateObject({ model, schema, maxRetries, prompt: object });
  const partial = streamObject({ model, schema, maxRetries, prompt: object });
  for await (const part of partial.partialObjectStream) part;
  found[name] = [whole.text, whole.steps.length, await stream.text, (await stream.steps).length,
    forced.toolCalls.map((call) => call.toolName), made.object, await partial.object];
}
console.log(JSON.stringify(found));
"""


def run_script(source: str, home: Path, live: Live, project: Path, **env: str) -> str:
    script = home / f"{project.parent.name}.mjs"  # beside node_modules, where imports are looked for
    script.write_text(source)
    try:
        return run(["node", str(script)], project, {"URL": live.url, **env})
    finally:
        script.unlink()


def test_the_anthropic_client_of_javascript(install: Install, play: Play, project: Path) -> None:
    live = play(Part("look_up", {}, "teal"))
    found = json.loads(run_script(ANTHROPIC_JS, install("@anthropic-ai/sdk"), live, project))
    assert json.loads(found["pieces"]) == found["input"] == {}
    assert found["stop"] == "tool_use"
    assert found["text"] == "The word is teal."
    usage = found["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == found["counted"]
    assert found["refused"] == [400, "invalid_request_error"]


def test_the_openai_client_of_javascript(install: Install, play: Play, project: Path) -> None:
    live = play(Part("look_up", {}, "teal"))
    found = json.loads(run_script(OPENAI_JS, install("openai"), live, project))
    assert found == {
        "types": ["response.created", "response.completed"],
        "args": "{}",
        "text": "The word is teal.",
        "items": ["function_call_output"],
        "chat": "look_up",
    }


def test_the_ai_sdk(install: Install, play: Play, project: Path) -> None:
    homes = [install(name) for name in AI_SDK]
    steps = call_of("weather", city="Paris"), call_of("time", zone="CET"), "It is sunny."
    made = {"name": "Paris", "code": "par"}
    plays = {"loop": told(*steps), "object": told(json.dumps(made))}
    found = json.loads(run_script(AI_JS, homes[0], play(Told()), project, PLAYS=json.dumps(plays)))
    expected = ["It is sunny.", 3, "It is sunny.", 3, ["time"], made, made]
    assert found == dict.fromkeys(("compatible", "chat", "responses", "anthropic"), expected)


def test_the_example_of_the_ai_sdk(install: Install, play: Play, project: Path) -> None:
    assert {f"{name}@{VERSIONS[name]}" for name in AI_SDK} == set(requirements("AI SDK"))
    homes = [install(name) for name in AI_SDK]
    live = play(WEATHER)
    code = example("AI SDK", "js").replace(ADDRESS, live.url)
    lines = run_script(code, homes[0], live, project).splitlines()
    assert lines == ["The word is sunny.", CITY.replace(" ", "")]
