"""The two pages: a browser may run what they have and nothing else, and their scripts understand what they read.

The scripts run in node on a document that only remembers what was put into it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64encode
from hashlib import sha256

import pytest

from minka.protocols.openapi import openapi_object
from tests.server.site import Site

NODE = shutil.which("node")

STUB = """
const nodes = {};
const made = (name) => ({
  name, children: [], listeners: {}, attributes: {}, textContent: "",
  setAttribute(key, value) { this.attributes[key] = value; if (key === "id") nodes[value] = this; },
  append(...parts) { this.children.push(...parts.filter((part) => part !== "")); },
  replaceChildren(...parts) { this.children = parts; },
  addEventListener(kind, call) { this.listeners[kind] = call; },
  scrollIntoView() {}, focus() {},
});
globalThis.document = { createElement: made, getElementById: (id) => nodes[id] ??= made("?") };
globalThis.location = new URL("http://test/prefix/docs");
Object.defineProperty(globalThis, "navigator", { value: {} });
globalThis.sessionStorage = { getItem: () => null };
const inside = (node) => node.children?.length ? node.children.map(text).join("") : node.textContent;
const text = (node) => typeof node === "string" ? node : inside(node);
const all = (node, name) => typeof node === "string" ? [] :
  [...(node.name === name ? [node] : []), ...node.children.flatMap((one) => all(one, name))];
"""


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    with Site() as site:
        return {path: site.get(path).text for path in ("/", "/docs")}


def script(page: str) -> str:
    (found,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    return str(found)


def run(code: str) -> object:
    if NODE is None:
        pytest.skip("node is not installed")
    done = subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_browser_may_run_what_the_page_has_and_reach_nobody_else(path: str) -> None:
    with Site() as site:
        answer = site.get(path)
    policy = answer.headers["content-security-policy"]
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        assert f"{tag}-src 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert not re.search(r"https?://(?!127\.0\.0\.1)", answer.text)
    assert " style=" not in answer.text
    assert not re.search(r"\son\w+=", answer.text)


def test_docs_show_every_route_to_the_end(pages: dict[str, str]) -> None:
    document = openapi_object()
    told = run(
        f"""{STUB}
        globalThis.fetch = async () => ({{ json: async () => ({json.dumps(document)}) }});
        {script(pages["/docs"])}
        setTimeout(() => {{
          const routes = nodes.routes, about = nodes.about.textContent;
          const commands = all(routes, "pre").map(text).filter((one) => one.startsWith("curl"));
          console.log(JSON.stringify({{ about, ids: all(routes, "details").map((one) => one.attributes.id), commands,
            last: !!nodes.Error }}));
        }}, 0);"""
    )
    assert isinstance(told, dict)
    paths = document["paths"]
    assert isinstance(paths, dict)
    described = {
        operation["operationId"]
        for item in paths.values()
        for operation in item.values()
        if "x-alias-of" not in operation
    }
    info = document["info"]
    assert isinstance(info, dict)
    assert told["about"] == info["description"]
    assert told["last"]
    assert set(told["ids"]) == described
    assert told["ids"][0] == "post_v1_chat_completions"
    assert len(told["commands"]) == len(described)
    assert all(command.startswith("curl http://test/prefix/") for command in told["commands"])
    assert not [command for command in told["commands"] if "undefined" in command or "{name}" in command]
    for command in told["commands"]:
        for body in re.findall("-d '(.*)'$", command):
            json.loads(body.replace("'\\''", "'"))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain <b> & text\n1. a", [["", "plain <b> & text\n1. a"]]),
        ("a **bold** `x < y` b", [["", "a "], ["strong", "bold"], ["", " "], ["code", "x < y"], ["", " b"]]),
        ("see:\n```python\nprint(1)\n```\ndone", [["", "see:\n"], ["pre", "print(1)"], ["", "done"]]),
        ("```\nstill open **x**", [["", ""], ["pre", "still open **x**"]]),
        ("2 ** 3 ** 2 and `", [["", "2 ** 3 ** 2 and `"]]),
    ],
)
def test_what_a_model_writes_is_text_but_for_code_and_bold(
    pages: dict[str, str], said: str, shown: list[list[str]]
) -> None:
    """`2 ** 3 ** 2` must not lose its stars."""
    told = run(
        f"""{STUB}
        globalThis.fetch = async () => {{ throw new Error("no server"); }};
        globalThis.setTimeout = () => 0;
        {script(pages["/"])}
        console.log(JSON.stringify(formatted({json.dumps(said)}).map((part) =>
          typeof part === "string" ? ["", part] : [part.name, text(part)])));"""
    )
    assert told == shown
