"""Python frameworks against a scripted model: the examples of docs/clients.md, and each framework in all of its modes.

Run with `pytest -m agents`. Each framework gets an environment of its own, in the directory that MINKA_CLIENTS names,
or else in a temporary one. The versions are those that the page names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.frameworks import SCRIPTS
from tests.clients.page import ADDRESS, CITY, WEATHER, example, requirements
from tests.clients.programs import Play, output_of
from tests.clients.scripted import Told, call_of, told

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]

SECONDS = 600

STEPS = (call_of("get_weather", city="Paris"), call_of("get_time", zone="CET"))
PLAYS = {
    "plain": told("Hallo."),
    "two": told(*STEPS, "It is sunny at 7."),
    "both": told("\n".join(STEPS), "It is sunny at 7."),
    "shortest": told("~"),
    "city": told(CITY),
    "two_then_city": told(*STEPS, CITY),
    "call_city": told(call_of("City", name="Paris", sunny=True)),
    "two_then_call_city": told(*STEPS, call_of("City", name="Paris", sunny=True)),
    "two_then_final_result": told(*STEPS, call_of("final_result", name="Paris", sunny=True)),
}
"""What the models are told to do, by the names that the scripts know."""

Python = Callable[[str], Path]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Makes an environment for a client, and returns its Python."""
    given = os.environ.get("MINKA_CLIENTS")
    home = Path(given) if given else tmp_path_factory.mktemp("clients")

    def environment(title: str) -> Path:
        wanted = requirements(title)
        place = home / re.sub(r"\W+", "-", title.lower())
        binary, stamp = place / "bin" / "python", place / "requirements.txt"
        if not stamp.exists() or stamp.read_text().split() != wanted:
            venv.create(place, with_pip=True, clear=True)
            command = [str(binary), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
            made = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if made.returncode:
                pytest.skip(f"pip cannot install {' '.join(wanted)}: {made.stderr.strip()[-300:]}")
            stamp.write_text("\n".join(wanted))
        return binary

    return environment


def run(command: list[str], home: Path, **env: str) -> str:
    """What a program prints that has a home of its own."""
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
    return output_of(command, home, {"HOME": str(home), "PYTHONWARNINGS": "ignore", **offline, **env}, SECONDS)


@pytest.mark.parametrize(
    ("title", "printed"),
    [
        ("OpenAI", "name='Paris' sunny=True"),
        ("Anthropic", "The word is sunny."),
        ("Instructor", "City(name='Paris', sunny=True)"),
        ("Pydantic AI", "The word is sunny."),
        ("LangChain", "The word is sunny."),
        ("OpenAI Agents SDK", "The word is sunny."),
        ("LlamaIndex", "The word is sunny."),
        ("LiteLLM", CITY),
    ],
)
def test_the_page_shows_what_works(python: Python, play: Play, tmp_path: Path, title: str, printed: str) -> None:
    code = example(title, "python").replace(ADDRESS, play(WEATHER).url)
    assert run([str(python(title)), "-c", code], tmp_path).strip() == printed


@pytest.mark.parametrize("title", sorted(SCRIPTS))
def test_a_framework_in_all_its_modes(python: Python, play: Play, tmp_path: Path, title: str) -> None:
    """Each script prints an object for each of its tries: what came out, and what should have."""
    env = {"URL": play(Told()).url, "PLAYS": json.dumps(PLAYS)}
    lines = run([str(python(title)), "-c", SCRIPTS[title]], tmp_path, **env).splitlines()
    tries = [json.loads(line) for line in lines if line.startswith('{"try"')]
    assert len(tries) > 5, lines
    assert {one["try"]: one["got"] for one in tries} == {one["try"]: one["wanted"] for one in tries}


def test_guidellm_measures(python: Python, play: Play, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text(f"{told('One.')}\n{told('Two.')}\n" * 3)
    command = example("GuideLLM", "sh").replace("\\\n", " ").replace(ADDRESS, play(Told()).url).split()
    binary = python("GuideLLM").parent / command[0]
    report = tmp_path / "report.json"
    run([str(binary), *command[1:], "--disable-progress", "--output", f"kind=json,path={report}"], tmp_path)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    assert len(benchmark["requests"]["successful"]) == 4
    assert benchmark["requests"]["errored"] == []
