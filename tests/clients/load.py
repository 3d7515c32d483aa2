"""A load run against a running server: `python load.py http://127.0.0.1:8080 --pid PID`.

First every distinct request, of all four endpoints that generate, is sent alone, then many of them by concurrent
clients: as plain requests, as streams, as streams that the client leaves early, and as requests whose client goes after
a random time, whatever has come by then. With `--slow 8` eight clients more ask for streams first and hardly read
them until the others have gone. Every reply must be what the same request got alone (one that was left early,
the beginning of it). Prints what it did and the server's resident memory over time; fails if a reply is lost or
different. A prefix cache that still fills is growth, too: to look for drift give the server a small one, `--cache 64M`.
"""

import argparse
import asyncio
import json
import random
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from wire import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Reply, add, whole

GONE_AFTER = 0.5  # seconds at most until a client goes that does not wait for its reply
SLOW_PIECE, SLOW_PAUSE = 64, 0.5  # bytes that a slow client reads, and seconds until it reads again
STREAM_END = b"0\r\n\r\n"
PATIENCE = 180.0  # seconds for one request: 32 clients share a small machine


@dataclass
class Report:
    """What a load run did."""

    replies: int = 0
    streams: int = 0
    cut: int = 0
    gone: int = 0
    # Clients that hardly read, those of them that were at their reply's end all the same, and those for which the server had
    # something left when the others had gone.
    slow: int = 0
    slow_ended: int = 0
    slow_waiting: int = 0
    tokens: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    # Resident memory in KiB after each reply; empty without a process to look at.
    memory: list[int] = field(default_factory=list)

    def memory_growth(self) -> int:
        """KiB by which the peak of the second half of the run exceeds that of the first."""
        half = len(self.memory) // 2
        return max(self.memory[half:]) - max(self.memory[:half])

    def memory_drift(self) -> float:
        """By how much the last quarter's mean exceeds the third's, in percent."""
        quarter = len(self.memory) // 4
        third, last = self.memory[2 * quarter : 3 * quarter], self.memory[3 * quarter :]
        return 100 * (sum(last) / len(last) / (sum(third) / len(third)) - 1)

    def __str__(self) -> str:
        lines = [
            f"{self.replies} replies in {self.seconds:.1f} s, {self.streams} of them streams, {self.cut} left early; "
            f"{self.gone} requests whose client was gone first; "
            f"{self.tokens} tokens of whole replies, {self.tokens / self.seconds:.0f} a second; {len(self.wrong)} wrong"
        ]
        if self.slow:
            lines.append(
                f"{self.slow} clients beside them that hardly read; {self.slow_ended} of these had all before the end, "
                f"for {self.slow_waiting} the server had something left"
            )
        if self.memory:
            half = len(self.memory) // 2
            lines.append(
                f"resident memory in MiB: start {self.memory[0] / 1024:.1f}, peak of the first half "
                f"{max(self.memory[:half]) / 1024:.1f}, of the second {max(self.memory[half:]) / 1024:.1f}, "
                f"end {self.memory[-1] / 1024:.1f}, drift over the second half {self.memory_drift():+.2f} %"
            )
        return "\n".join(lines + self.wrong[:10])


def requests() -> list[tuple[str, dict]]:
    """Distinct requests of a few tokens each, with the paths they go to: greedy and seeded, with thinking and without,
    bound by a schema, and with functions that must be called."""

    def chat(text: str, think: bool = False, **parameters) -> tuple[str, dict]:
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_completion_tokens": 24}
        return CHAT, body | {"chat_template_kwargs": {"enable_thinking": think}} | parameters

    def message(text: str, think: bool) -> tuple[str, dict]:
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24}
        return MESSAGES, body | {"thinking": {"type": "adaptive" if think else "disabled"}}

    def response(text: str, think: bool) -> tuple[str, dict]:
        # Responses that are kept take memory until their store is full.
        body = {"input": text, "temperature": 0, "max_output_tokens": 24, "store": False}
        return RESPONSES, body | {"reasoning": {"effort": "medium" if think else "none"}}

    symbol = {"type": "object", "properties": {"symbol": {"type": "string", "enum": ["TWU", "ABC"]}}, "required": ["symbol"]}
    stock = {"name": "get_stock_price", "description": "Get the price of a stock.", "parameters": symbol}
    total = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"], "additionalProperties": False}
    of_total = {"type": "json_schema", "json_schema": {"name": "sum", "strict": True, "schema": total}}
    countries = ["Norway", "France", "Italy", "Spain", "Canada", "Australia", "Japan", "Egypt", "Austria", "Greece"]
    return [
        *(chat(f"What is the capital of {country}?") for country in countries),
        *(chat(f"What is {a} + {a * 3 % 50}?", think=a % 2 == 0) for a in range(11, 21)),
        *(message(f"What is {a} + {a * 3 % 50}?", think=a % 2 == 0) for a in range(21, 31)),
        *(response(f"What is {a} + {a * 3 % 50}?", think=a % 2 == 0) for a in range(31, 41)),
        *(
            chat(f"Repeat: lamp {word} river", seed=9, temperature=0.6)
            for word in ("bread", "stone", "paper", "honey", "cloud")
        ),
        *(
            chat("Tell me a story about Anna and a fox.", seed=seed, temperature=1.2, max_completion_tokens=16)
            for seed in range(10)
        ),
        *(
            chat(text, tools=[{"type": "function", "function": stock}], tool_choice="required", max_completion_tokens=64)
            for text in ("What is the stock price of TWU?", "Good morning!")
        ),
        (
            RESPONSES,
            response("What is the stock price of ABC?", think=False)[1]
            | {"tools": [{"type": "function"} | stock], "tool_choice": "required", "max_output_tokens": 64},
        ),
        *(chat(f"What is {a} + 20?", response_format=of_total) for a in (19, 38)),
        chat("Tell me a story about a fox.", n=2, seed=3, temperature=1.2),
        chat("The winter " * 150 + "Hello!"),
        chat("Count from 1 to 12.", stop=["7"]),
        chat("Who are you?", presence_penalty=0.5, logit_bias={"440": -5}),
        chat('Translate "water" into Spanish, French and German.'),
        (COMPLETIONS, {"prompt": "The year was 1735, and Pablo had just", "temperature": 0, "max_tokens": 16}),
    ]


async def plain(client: httpx.AsyncClient, path: str, body: dict) -> Reply:
    answer = await client.post(path, json=body)
    if answer.status_code != 200:
        raise RuntimeError(f"{answer.status_code}: {answer.text[:200]}")
    return whole(path, answer.json())


async def stream(client: httpx.AsyncClient, path: str, body: dict, leave_after: int | None = None) -> Reply:
    """A streamed reply; one that ends after `leave_after` events by closing the connection."""
    reply, events = Reply(), 0
    body = body | {"stream": True} | ({"stream_options": {"include_usage": True}} if path in (CHAT, COMPLETIONS) else {})
    async with client.stream("POST", path, json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {(await answer.aread())[:200]!r}")
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            if add(path, line.removeprefix("data: "), reply):
                break
            events += 1
            if events == leave_after:
                return Reply(reply.reasoning, reply.content, reply.second)
        else:
            raise RuntimeError("the stream ended before its end")
    if reply.completion_tokens is None:
        raise RuntimeError("a stream without usage")
    return reply


async def slow_reader(url: str, number: int, report: Report) -> None:
    """A client that asks for a stream and takes a few bytes of it, until it is cancelled. With what else is told of each
    token that is up to 340 KB, more than its connection holds."""
    body = {"prompt": "Once there was", "max_tokens": 400, "temperature": 1.2, "seed": number, "logprobs": 20}
    content = json.dumps(body | {"stream": True}).encode()
    address, loop = urlsplit(url), asyncio.get_running_loop()
    with socket.socket() as connection:
        # So small that what it does not read cannot wait on its side, and with segments so small that the server's side holds
        # little, too.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        connection.setblocking(False)
        await loop.sock_connect(connection, (address.hostname, address.port or 80))
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: {len(content)}\r\n\r\n"
        await loop.sock_sendall(connection, head.encode() + content)
        some = await loop.sock_recv(connection, SLOW_PIECE)
        if not some.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"instead of a stream: {some!r}")
        report.slow += 1
        # The end may come in two pieces.
        while (last := some[-len(STREAM_END) :]) != STREAM_END:
            await asyncio.sleep(SLOW_PAUSE)
            more = await loop.sock_recv(connection, SLOW_PIECE)
            if not more:
                raise RuntimeError("the stream ended before its end")
            some = last + more
        report.slow_ended += 1


def resident(pid: int) -> int:
    """Resident memory of a process in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


async def run(
    url: str, pid: int | None = None, clients: int = 32, total: int = 500, seed: int = 1, slow: int = 0
) -> Report:
    asked_for = requests()

    def connect() -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=url, timeout=PATIENCE)

    async with connect() as client:
        alone = {json.dumps(asked): await plain(client, *asked) for asked in asked_for}

    draw = random.Random(seed)
    plan = [
        (
            draw.choice(asked_for),
            draw.choices(("plain", "stream", "cut", "gone"), (45, 30, 15, 10))[0],
            draw.randint(1, 8),
            draw.uniform(0, GONE_AFTER),
        )
        for _ in range(total)
    ]
    report = Report()
    waiting = iter(plan)

    async def one_client() -> None:
        client = connect()
        for asked, kind, events, seconds in waiting:
            try:
                if kind == "gone":
                    try:
                        reply = await asyncio.wait_for(plain(client, *asked), seconds)
                    except TimeoutError:
                        report.gone += 1
                        await client.aclose()
                        client = connect()
                        continue
                elif kind == "plain":
                    reply = await plain(client, *asked)
                else:
                    reply = await stream(client, *asked, events if kind == "cut" else None)
            except (httpx.HTTPError, RuntimeError, ValueError, KeyError) as error:
                report.wrong.append(f"{kind} {asked}: {error!r}")
                continue
            expected = alone[json.dumps(asked)]
            if pid is not None:
                report.memory.append(resident(pid))
            report.replies += 1
            report.streams += kind in ("stream", "cut")
            left = reply.completion_tokens is None
            report.cut += left
            report.tokens += reply.completion_tokens or 0
            if not (reply.begins(expected) if left else reply == expected):
                report.wrong.append(f"{kind} {asked}: {reply} instead of {expected}")
            if left:  # the next request comes from a new client
                await client.aclose()
                client = connect()
        await client.aclose()

    readers = [asyncio.create_task(slow_reader(url, number, report)) for number in range(slow)]
    while report.slow < slow and not any(reader.done() for reader in readers):
        await asyncio.sleep(0.01)
    if slow:
        # What they asked for has been generated before the others come, and most of it waits for them.
        async with connect() as client, asyncio.timeout(PATIENCE):
            while (engine := (await client.get("/health")).json()["engine"])["running"] + engine["queued"] > 0:
                await asyncio.sleep(0.1)
    begun = time.monotonic()
    await asyncio.gather(*(one_client() for _ in range(clients)))
    report.seconds = time.monotonic() - begun
    if slow:
        async with connect() as client:
            under_way = (await client.get("/status")).json()["requests"]["under_way"]
        report.slow_waiting = sum(request["endpoint"] == COMPLETIONS for request in under_way)
    for reader in readers:
        reader.cancel()
    for ended in await asyncio.gather(*readers, return_exceptions=True):
        if isinstance(ended, Exception):
            report.wrong.append(f"a slow client: {ended!r}")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("url", help="where the server listens, without /v1")
    parser.add_argument("--pid", type=int, help="the server's process, to watch its memory")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help="which requests are drawn")
    parser.add_argument("--slow", type=int, default=0, help="clients beside these that hardly read")
    arguments = parser.parse_args()
    report = asyncio.run(
        run(arguments.url, arguments.pid, arguments.clients, arguments.requests, arguments.seed, arguments.slow)
    )
    print(report)
    if report.wrong or report.replies + report.gone != arguments.requests:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
