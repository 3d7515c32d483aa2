#!/usr/bin/env python3
"""The time to the first token of a long prompt that a running server has seen before, beside that of a one-token prompt.

    lily serve --model DIR &
    bench/cached_first_token.py --tokens 32768

Prints medians in milliseconds, and the tokens that the server says it had cached: at first those that it found on disk, if it was
started again with --cache-dir. Needs nothing but Python.
"""
import argparse
import http.client
import json
import random
import statistics
import time
import urllib.parse


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--vocabulary", type=int, default=200000, help="prompts are ids below this")
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def first_token(url, prompt):
    """Milliseconds from the request to its first token, and its cached tokens."""
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=3600)
    body = {"model": "lily", "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    text = json.dumps(body)
    connection.connect()
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", text, {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {response.read().decode()}")
    first, cached = None, 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        first = first or time.perf_counter()
        usage = json.loads(line[6:]).get("usage")
        cached = usage["prompt_tokens_details"]["cached_tokens"] if usage else cached
    connection.close()
    return (first - start) * 1000, cached


def main():
    args = arguments()
    drawn = random.Random(1)
    prompt = [drawn.randrange(args.vocabulary) for _ in range(args.tokens)]
    first, found = first_token(args.url, prompt)
    warm, single = [], []
    for _ in range(args.repeats):
        milliseconds, cached = first_token(args.url, prompt)
        warm.append(milliseconds)
        single.append(first_token(args.url, [drawn.randrange(args.vocabulary)])[0])
    print(f"{args.tokens} tokens: {first:.0f} ms at first, {found} of them cached; again {statistics.median(warm):.1f} ms, {cached} of them cached; "
          f"one token {statistics.median(single):.1f} ms")


if __name__ == "__main__":
    main()
