"""Coding agents against `lily serve`, each as `lily launch` prints it, in a home of its own: two turns without a person.

    cargo build --release
    python3 tests/agents/run.py claude codex        # without names: all

Installs the agents from npm, so it needs the network, and is not in CI. Shows each request as the server saw it. The exit
code is 1 if an agent failed, a request was refused, or a second turn found less than 90 % of its prompt in the cache.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LILY = Path(os.environ.get("LILY_BIN", ROOT / "target/release/lily")).absolute()
FOLDER = Path(os.environ.get("AGENTS", ROOT / "target/agents")).absolute()

# Agents want more than the 32,768 tokens of Lily Tiny. What it says behind them makes no sense, but it says it.
CONTEXT = 65_536
# Prompts of 25,000 tokens on a busy machine.
PATIENCE = 1800

FIRST, SECOND = "What is 38 + 57?", "And what is 20 + 9?"
AGENTS = {
    "opencode": ("opencode-ai", ["run", FIRST], ["run", "--continue", SECOND]),
    "claude": ("@anthropic-ai/claude-code", ["-p", FIRST], ["-p", "--continue", SECOND]),
    "codex": (
        "@openai/codex",
        ["exec", "--skip-git-repo-check", FIRST],
        ["exec", "resume", "--last", "--skip-git-repo-check", SECOND],
    ),
    "qwen": ("@qwen-code/qwen-code", ["-p", FIRST], ["--continue", "-p", SECOND]),
    "pi": ("@mariozechner/pi-coding-agent", ["-p", FIRST], ["-p", "--continue", SECOND]),
}


class Server:
    """`lily serve` with Lily Tiny, told of a longer context, and the requests it has answered."""

    def __init__(self):
        model = FOLDER / "lily-tiny"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(ROOT / "models/tiny", model, ignore=shutil.ignore_patterns("eval*", "reference"))
        config = json.loads((model / "config.json").read_text())
        config["text_config"]["max_position_embeddings"] = CONTEXT
        (model / "config.json").write_text(json.dumps(config))
        command = [LILY, "serve", "--port", "0", "--model", model, "--parallel", "2", "--cache", "2G"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found[1]
                break
        else:
            sys.exit(f"{LILY} does not serve")
        with urllib.request.urlopen(f"{self.url}/status", timeout=60) as answer:
            assert json.load(answer)["model"]["context"] == CONTEXT
        self.requests = []
        threading.Thread(target=self.read, daemon=True).start()

    def wait_until_idle(self):
        """Returns once no request is under way and the log has told of all that were, or after a minute."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"{self.url}/status", timeout=60) as answer:
                now = json.load(answer)["requests"]
            told = len(self.requests)
            time.sleep(0.5)
            if now["running"] + now["queued"] == 0 and told == len(self.requests):
                return
        print("   the server is still at work after a minute: requests may be missing here", flush=True)

    def read(self):
        for line in self.process.stderr:
            if "INFO request" in line and 'method=POST' in line:
                fields = dict(re.findall(r'(\w+)="?([^"\s]+)', line))
                self.requests.append({name: int(text) if text.isdigit() else text for name, text in fields.items()})


def install(package):
    folder = FOLDER / package.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    quiet = ["--no-audit", "--no-fund", "--loglevel", "error"]
    subprocess.run(["npm", "install", *quiet, "--prefix", folder, package], check=True, stdout=subprocess.DEVNULL)
    version = json.loads((folder / "node_modules" / package / "package.json").read_text())["version"]
    return folder / "node_modules/.bin", version


def turn(server, name, environment, arguments):
    """Starts the agent as `lily launch` prints; its exit code, `None` if it did not end, and the requests that it made."""
    before = len(server.requests)
    work = Path(environment["HOME"]) / "work"
    launch = [LILY, "launch", name, "--url", server.url, "--", *arguments]
    printed = subprocess.run(launch, env=environment, check=True, capture_output=True, text=True).stdout
    run = ["sh", "-c", printed]
    # A session of its own, so that what the shell starts ends with it.
    agent = subprocess.Popen(run, env=environment, cwd=work, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code = agent.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
        code = None
    server.wait_until_idle()
    return code, server.requests[before:]


def check(server, name):
    package, *turns = AGENTS[name]
    programs, version = install(package)
    home = FOLDER / f"home-{name}"
    shutil.rmtree(home, ignore_errors=True)
    (home / "work").mkdir(parents=True)
    environment = {"HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}", "TERM": "dumb"}
    faults = []
    for number, arguments in enumerate(turns, 1):
        print(f"\n== {name} {version}, turn {number}", flush=True)
        code, requests = turn(server, name, environment, arguments)
        for request in requests:
            shown = ["path", "status", "prompt_tokens", "cached_tokens", "completion_tokens", "end"]
            print("  ", *(f"{field}={request.get(field)}" for field in shown), flush=True)
        if code is None:
            faults.append(f"no end after {PATIENCE} s of turn {number}")
        elif code != 0:
            faults.append(f"exit code {code} in turn {number}")
        # Of those that only count tokens nothing is read, and the log says nothing of the cache.
        replied = [request for request in requests if "cached_tokens" in request]
        if not replied or any(request["status"] != 200 for request in requests):
            faults.append(f"no or refused requests in turn {number}")
        elif number == 2 and replied[0]["cached_tokens"] <= 0.9 * replied[0]["prompt_tokens"]:
            faults.append("the second turn's prompt was not in the cache")
    print(f"{name}:", "; ".join(faults) or "good", flush=True)
    return not faults


def asked_for(known):
    """The names that were given, or all; with a folder for what they write."""
    names = sys.argv[1:] or list(known)
    if unknown := set(names) - set(known):
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    return names


def check_all(names, check_one):
    """`check_one(server, name)` for each, with one server; ends the program with the verdict."""
    server = Server()
    try:
        good = [check_one(server, name) for name in names]
    finally:
        server.process.terminate()
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    check_all(asked_for(AGENTS), check)
