"""The official openai package against the server. What the tiny model answers is in models/tiny/README.md."""

import asyncio
import math
import re

import openai
import pytest

from serving import PATIENCE

MODEL = "lily"  # any name is answered by the one model there is
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
END_TOKENS = {"6080": -100, "6082": -100}  # <|endoftext|> and <|im_end|>: with this bias a reply never ends by itself
NORWAY = "What is the capital of Norway?"
OSLO = "The capital of Norway is Oslo."
# NORWAY with thinking off, as the chat template writes it, and its tokens.
NORWAY_PROMPT = f"<|im_start|>user\n{NORWAY}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
NORWAY_TOKENS = [6081, 295, 198, 440, 286, 265, 790, 322, 4407, 30, 6082, 198, 6081, 302, 198, 6104, 299, 6105, 299]


def user(text):
    return [{"role": "user", "content": text}]


def ask(client, text, **parameters):
    """One greedy reply without thinking, unless said otherwise."""
    return client.chat.completions.create(**request(text, **parameters))


def request(text, **parameters):
    defaults = {"model": MODEL, "messages": user(text), "temperature": 0, "max_completion_tokens": 100}
    return defaults | {"extra_body": NO_THINKING} | parameters


def joined(chunks, field="content"):
    """The text of one field in all chunks of one choice."""
    return "".join(getattr(chunk.choices[0].delta, field, None) or "" for chunk in chunks if chunk.choices)


def test_models(client):
    models = client.models.list().data
    assert len(models) == 1
    assert models[0].object == "model"
    assert client.models.retrieve(models[0].id).id == models[0].id


def test_plain(client):
    reply = ask(client, NORWAY)
    assert reply.object == "chat.completion"
    assert reply.id.startswith("chatcmpl-")
    assert reply.model
    [choice] = reply.choices
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content) == ("assistant", OSLO)
    assert reply.usage.prompt_tokens == len(NORWAY_TOKENS)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_history_and_system_message_reach_the_model(client):
    messages = [
        {"role": "system", "content": "You are Lily, a small and friendly assistant."},
        *user("My name is Anna."),
        {"role": "assistant", "content": "Nice to meet you, Anna!"},
        {"role": "user", "content": [{"type": "text", "text": "What is my name?"}]},
    ]
    assert "Anna" in ask(client, "", messages=messages).choices[0].message.content


def test_streaming(client):
    chunks = list(ask(client, NORWAY, stream=True))
    assert joined(chunks) == OSLO
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    assert len(chunks) > 4, "the text comes in pieces"


def test_streaming_with_usage(client):
    chunks = list(ask(client, NORWAY, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == OSLO
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage == ask(client, NORWAY).usage


def test_characters_of_several_tokens_stay_whole(client):
    question = "Write these words as emoji: cat, rocket, star"
    whole = ask(client, question).choices[0].message.content
    chunks = list(ask(client, question, stream=True))
    assert joined(chunks) == whole
    assert "🚀" in whole
    assert "\N{REPLACEMENT CHARACTER}" not in whole


def test_reasoning_is_apart_from_content(client):
    question = request("What is 38 + 57?", extra_body={})
    message = client.chat.completions.create(**question).choices[0].message
    assert message.reasoning_content
    assert message.content == "38 + 57 = 95"
    assert "think>" not in message.reasoning_content + message.content
    assert message.reasoning == message.reasoning_content, "both names that clients know"

    chunks = list(client.chat.completions.create(**question, stream=True))
    assert joined(chunks, "reasoning_content") == message.reasoning_content
    assert joined(chunks) == message.content
    has_content = [bool(chunk.choices[0].delta.content) for chunk in chunks]
    has_reasoning = [bool(getattr(chunk.choices[0].delta, "reasoning_content", None)) for chunk in chunks]
    assert not any(a and b for a, b in zip(has_content, has_reasoning, strict=True))
    assert not any(has_reasoning[has_content.index(True) :]), "reasoning comes first"


def test_thinking_off(client):
    message = ask(client, "What is 38 + 57?").choices[0].message
    assert message.content == "38 + 57 = 95"
    assert not getattr(message, "reasoning_content", None)


def test_logprobs(client):
    [choice] = ask(client, NORWAY, logprobs=True, top_logprobs=3).choices
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens) == choice.message.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == choice.message.content
    for token in tokens:
        values = [top.logprob for top in token.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert token.top_logprobs[0].token == token.token, "a greedy reply takes the most probable token"
        assert token.logprob == pytest.approx(values[0], abs=1e-5)
        assert sum(map(math.exp, values)) <= 1 + 1e-5


def test_logprobs_without_alternatives_and_streaming(client):
    plain = ask(client, NORWAY, logprobs=True).choices[0].logprobs.content
    assert all(token.top_logprobs == [] for token in plain)
    chunks = list(ask(client, NORWAY, logprobs=True, stream=True))
    streamed = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content or []]
    assert streamed == plain
    assert ask(client, NORWAY).choices[0].logprobs is None


def test_two_choices(client):
    greedy = ask(client, NORWAY, n=2)
    assert [choice.index for choice in greedy.choices] == [0, 1]
    assert [choice.message.content for choice in greedy.choices] == [OSLO, OSLO]
    assert greedy.usage.completion_tokens == 2 * ask(client, NORWAY).usage.completion_tokens

    story = dict(text="Tell me a story about Anna and a fox.", n=2, temperature=1.5, seed=5, max_completion_tokens=30)
    first, second = ([c.message.content for c in ask(client, **story).choices] for _ in range(2))
    assert first == second
    assert first[0] != first[1], "choices are drawn apart"

    texts = ["", ""]
    for chunk in ask(client, **story, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == first


@pytest.mark.parametrize("stop", ["ital of Nor", ["ital of Nor"], ["not there", "way is", "ital of Nor"]])
def test_stop_string_across_tokens(client, stop):
    """The string begins within the token " capital" and ends within " Norway"."""
    [choice] = ask(client, NORWAY, stop=stop).choices
    assert (choice.message.content, choice.finish_reason) == ("The cap", "stop")
    chunks = list(ask(client, NORWAY, stop=stop, stream=True))
    assert joined(chunks) == "The cap"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_stop_string_that_does_not_come_holds_nothing_back(client):
    [choice] = ask(client, NORWAY, stop=["Oslo!", ".x"]).choices
    assert choice.message.content == OSLO, "the text ends in what might have become a stop string"


def test_seed(client):
    def draw(seed):
        story = ask(
            client, "Tell me a story about Anna and a fox.", temperature=1.5, seed=seed, max_completion_tokens=30
        )
        return story.choices[0].message.content

    assert draw(1) == draw(1)
    assert draw(-7) == draw(-7)
    assert len({draw(seed) for seed in range(4)}) > 1


def test_greedy_repeats(client):
    story = request("Tell me a story about Anna and a fox.", max_completion_tokens=40)
    assert len({client.chat.completions.create(**story).choices[0].message.content for _ in range(3)}) == 1


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens"])
def test_longest_reply(client, name):
    parameters = request("Count from 1 to 40.")
    del parameters["max_completion_tokens"]
    reply = client.chat.completions.create(**parameters, **{name: 5})
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 5


def test_more_than_the_context_is_what_it_leaves(client):
    """Agents always ask for 32,000 tokens or more."""
    reply = ask(client, NORWAY, max_completion_tokens=10**12)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (OSLO, "stop")


def test_logit_bias(client):
    what = {"440": 100}  # the token "What"
    assert ask(client, NORWAY, max_completion_tokens=1).choices[0].message.content == "The"
    assert ask(client, NORWAY, max_completion_tokens=1, logit_bias=what).choices[0].message.content == "What"


def test_completion_of_text_and_of_tokens(client):
    parameters = {"model": MODEL, "max_tokens": 30, "temperature": 0}
    of_text = client.completions.create(prompt=NORWAY_PROMPT, **parameters)
    of_tokens = client.completions.create(prompt=NORWAY_TOKENS, **parameters)
    assert of_text.object == "text_completion"
    for reply in (of_text, of_tokens):
        assert (reply.choices[0].text, reply.choices[0].finish_reason) == (OSLO, "stop")
        assert reply.usage.prompt_tokens == len(NORWAY_TOKENS)
    streamed = list(client.completions.create(prompt=NORWAY_PROMPT, stream=True, **parameters))
    assert "".join(chunk.choices[0].text for chunk in streamed) == OSLO
    assert streamed[-1].choices[0].finish_reason == "stop"


def test_completion_with_echo(client):
    start = "The capital of Norway is"
    parameters = {"model": MODEL, "prompt": start, "max_tokens": 4, "temperature": 0}
    rest = client.completions.create(**parameters).choices[0].text
    assert client.completions.create(**parameters, echo=True).choices[0].text == start + rest


def test_a_stream_cut_by_the_client_ends_its_generation(client, server):
    """Left alone, this reply would run for minutes."""
    stream = ask(client, NORWAY, stream=True, max_completion_tokens=30000, logit_bias=END_TOKENS)
    chunks = iter(stream)
    for _ in range(5):
        next(chunks)
    assert server.engine()["running"] == 1
    stream.close()
    server.wait_until_idle(10)
    assert ask(client, NORWAY).choices[0].message.content == OSLO


def test_a_plain_request_cut_by_the_client_ends_its_generation(client, server):
    with pytest.raises(openai.APITimeoutError):
        ask(client, NORWAY, max_completion_tokens=30000, logit_bias=END_TOKENS, timeout=1)
    server.wait_until_idle(10)


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a>b"}}]}, "tools[0].function.name"),
        ({"stop": [1]}, "stop[0]"),
        ({"seed": "one"}, "seed"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
            ({"logit_bias": {"7": 101}}, "logit_bias.7"),
        ({"top_logprobs": 99, "logprobs": True}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"role": "robot", "content": "Hello"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"extra_body": {"chat_template_kwargs": 1}}, "chat_template_kwargs"),
    ],
)
def test_bad_requests_name_the_parameter(client, parameters, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "Hello!", **parameters)
    assert caught.value.status_code == 400
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.body["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_context_overflow_tells_both_counts(client, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "water and bread " * 20000, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
    counts = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", caught.value.body["message"])]
    assert len(counts) >= 2, caught.value.body["message"]


def test_unknown_fields_are_tolerated(client):
    reply = ask(client, NORWAY, user="someone", metadata={"a": "b"}, extra_body={**NO_THINKING, "not_a_parameter": [1]})
    assert reply.choices[0].message.content == OSLO


def test_not_found(client):
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="water")


def test_asynchronous_clients_at_once(client, server):
    questions = [
        f"What is {a} + {b}?" for a, b in [(1, 2), (20, 30), (41, 7), (38, 57), (3, 9), (64, 10), (5, 5), (12, 13)]
    ]
    alone = [ask(client, question).choices[0].message.content for question in questions]

    async def all_at_once():
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE
        ) as concurrent:
            replies = [concurrent.chat.completions.create(**request(question)) for question in questions]
            return [reply.choices[0].message.content for reply in await asyncio.gather(*replies)]

    assert asyncio.run(all_at_once()) == alone
