"""Python frameworks and programs against `lily serve`: two questions each, streamed, with a tool where they have tools.

    cargo build --release
    python3 tests/agents/python.py llm aider        # without names: all

Installs them with pip, as the requirements beside this file say, so it needs the network, and is not in CI. The system
prompt is as long as an agent's (ARCHITECTURE.md). Shows each request as the server saw it. The exit code is 1 if a client
failed or told another price than the tool's, a request was refused or not streamed, or one after the first found less
than 90 % of its prompt in the cache.
"""

import asyncio
import inspect
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

from run import FOLDER, PATIENCE, ROOT, asked_for, check_all

QUESTIONS = ["What is the stock price of TWU?", "What is the stock price of ABC?"]
PRICES = ["371", "208"]


def get_stock_price(symbol: str) -> str:
    """Get the price of a stock."""
    price = {"TWU": 371, "ABC": 208}[symbol]
    return f'{{"price": {price}}}'


def instructions(name):
    """A system prompt of about 3,000 tokens, with a head of its own: no client finds another's in the cache."""
    return f"You work with {name} on this project.\n\n" + (ROOT / "ARCHITECTURE.md").read_text()


def langchain(name, url):
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    responses = name.endswith("responses")
    model = ChatOpenAI(model="lily", base_url=url, temperature=0, streaming=True, use_responses_api=responses)
    agent = create_agent(model, [get_stock_price], system_prompt=instructions(name))
    messages = []
    for question in QUESTIONS:
        asked = {"messages": [*messages, {"role": "user", "content": question}]}
        for mode, part in agent.stream(asked, stream_mode=["messages", "values"]):
            if mode == "values":
                messages = part["messages"]
            elif part[0].type == "AIMessageChunk":
                print(part[0].text, end="", flush=True)
        print()


async def openai_agents(name, url):
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
    from openai import AsyncOpenAI

    kind = OpenAIResponsesModel if name.endswith("responses") else OpenAIChatCompletionsModel
    agent = Agent(
        name="broker",
        instructions=instructions(name),
        model=kind(model="lily", openai_client=AsyncOpenAI(base_url=url)),
        model_settings=ModelSettings(temperature=0),
        tools=[function_tool(get_stock_price)],
    )
    items = []
    for question in QUESTIONS:
        result = Runner.run_streamed(agent, [*items, {"role": "user", "content": question}])
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                print(event.data.delta, end="", flush=True)
        print()
        items = result.to_input_list()


def loop(name, url, programs, home):
    """This file itself, by the interpreter that has the packages: one of the two functions above."""
    return [([programs / "python", __file__, "--loop", name, f"{url}/v1"], None)]


def llm(name, url, programs, home):
    """The program takes an address from a file only; the second question goes on with the first's conversation."""
    model = {"model_id": "lily", "model_name": "lily", "api_base": f"{url}/v1", "supports_tools": True}
    # JSON is YAML too.
    (home / "extra-openai-models.yaml").write_text(json.dumps([model]))
    ask = [programs / "llm", "--functions", inspect.getsource(get_stock_price), "--option", "temperature", "0"]
    first, second = QUESTIONS
    return [
        ([*ask, "--model", "lily", "--system", instructions(name), first], None),
        ([*ask, "--continue", second], None),
    ]


def aider(name, url, programs, home):
    """It has no tools; the long text is a file that it only reads. One process, as it takes no conversation up again."""
    (home / "instructions.md").write_text(instructions(name))
    # What needs a terminal or the network, or asks for a repository.
    without = ["--no-pretty", "--no-fancy-input", "--no-check-update", "--no-show-model-warnings", "--no-git"]
    ask = [programs / "aider", *without, "--analytics-disable", "--yes-always", "--chat-mode", "ask"]
    ask += ["--read", "instructions.md", "--model", "openai/lily", "--openai-api-base", f"{url}/v1"]
    # It would write these to the root of the repository around it.
    ask += ["--chat-history-file", home / "chat.md", "--input-history-file", home / "input"]
    return [(ask, "\n".join([*QUESTIONS, "/exit", ""]))]


# By name: how it is started, from which requirements, and how many requests the two questions are.
CLIENTS = {
    "langchain-chat": (loop, "requirements.txt", 4),
    "langchain-responses": (loop, "requirements.txt", 4),
    "openai-agents-chat": (loop, "requirements.txt", 4),
    "openai-agents-responses": (loop, "requirements.txt", 4),
    "llm": (llm, "requirements.txt", 4),
    "aider": (aider, "requirements-aider.txt", 2),
}


def install(requirements):
    """The programs of a virtual environment that has them."""
    folder = FOLDER / Path(requirements).stem
    if not (folder / "bin/pip").exists():
        venv.create(folder, with_pip=True)
    wanted = Path(__file__).with_name(requirements)
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([folder / "bin/pip", "install", *quiet, "--requirement", wanted], check=True)
    print(requirements, *wanted.read_text().split(), flush=True)
    return folder / "bin"


def play(command, typed, environment):
    """The exit code, or `None` if it did not end; what it said, and how many of its replies were streams."""
    client = subprocess.Popen(
        command,
        env=environment,
        cwd=environment["HOME"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, log = client.communicate(typed, PATIENCE)
        code = client.returncode
    except subprocess.TimeoutExpired:
        os.killpg(client.pid, signal.SIGKILL)
        said, log = client.communicate()
        code = None
    if code != 0:
        print(log[-3000:], flush=True)
    return code, said, log.count("text/event-stream")


def check(server, name, programs):
    start, _, expected = CLIENTS[name]
    home = FOLDER / f"home-{name}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "TERM": "dumb",
        "OPENAI_API_KEY": "unused",
        # So that they tell of each reply's headers: aider, and llm.
        "OPENAI_LOG": "debug",
        "LLM_OPENAI_SHOW_RESPONSES": "1",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LLM_USER_PATH": str(home),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    print(f"\n== {name}", flush=True)
    before, answers, streams, faults = len(server.requests), "", 0, []
    for command, typed in start(name, server.url, programs, home):
        code, said, streamed = play(command, typed, environment)
        answers += said
        streams += streamed
        if code is None:
            faults.append(f"no end after {PATIENCE} s")
        elif code != 0:
            faults.append(f"exit code {code}")
    server.wait_until_idle()
    requests = server.requests[before:]
    for request in requests:
        shown = ["path", "status", "prompt_tokens", "cached_tokens", "completion_tokens", "end"]
        print("  ", *(f"{field}={request.get(field)}" for field in shown), flush=True)
    print(*(f"   {line}" for line in answers.splitlines()[-6:] if line.strip()), sep="\n", flush=True)
    if len(requests) != expected or any(request["status"] != 200 for request in requests):
        faults.append(f"not {expected} requests, all accepted")
    if any(request.get("end") != "stop" for request in requests):
        faults.append("a reply was cut")
    if any(request.get("cached_tokens", 0) <= 0.9 * request.get("prompt_tokens", 0) for request in requests[1:]):
        faults.append("a prompt after the first was not in the cache")
    if streams != expected:
        faults.append(f"{streams} streams, not {expected}")
    if start is not aider and any(price not in answers for price in PRICES):
        faults.append("the answers lack a price of the tool")
    print(f"{name}:", "; ".join(faults) or "good", flush=True)
    return not faults


def main():
    names = asked_for(CLIENTS)
    programs = {requirements: install(requirements) for requirements in sorted({CLIENTS[name][1] for name in names})}
    check_all(names, lambda server, name: check(server, name, programs[CLIENTS[name][1]]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--loop"]:
        name, url = sys.argv[2:]
        # The replies' headers too.
        logging.basicConfig(level=logging.DEBUG)
        if name.startswith("openai-agents"):
            asyncio.run(openai_agents(name, url))
        else:
            langchain(name, url)
    else:
        main()
