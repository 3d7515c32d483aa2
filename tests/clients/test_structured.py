"""Structured output with the official packages: pydantic models in, instances of them out."""

import enum
import json
from typing import Annotated, Literal, Optional, Union

import anthropic
import openai
import pydantic
import pytest

from serving import PATIENCE

MODEL = "lily"
QUESTION = [{"role": "user", "content": "What is 38 + 57?"}]
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


class Unit(enum.Enum):
    KILOGRAM = "kg"
    METRE = "m"


class Part(pydantic.BaseModel):
    on: bool
    share: Annotated[int, pydantic.Field(ge=0, le=100)]


# Nothing in it can go on for long, so that the tiny model comes to an end.
class Reply(pydantic.BaseModel):
    answer: Annotated[int, pydantic.Field(ge=0, le=999)]
    unit: Unit
    note: Optional[Annotated[str, pydantic.Field(max_length=12)]]
    parts: Annotated[list[Part], pydantic.Field(max_length=3)]


def request(**parameters):
    defaults = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_completion_tokens": 800}
    return defaults | parameters


@pytest.mark.parametrize("body", [{}, NO_THINKING], ids=["thinking", "not thinking"])
def test_parse(client, body):
    completion = client.chat.completions.parse(**request(response_format=Reply, extra_body=body))
    [choice] = completion.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Reply), choice.message


@pytest.mark.parametrize("body", [{}, NO_THINKING], ids=["thinking", "not thinking"])
def test_streamed(client, body):
    whole = client.chat.completions.parse(**request(response_format=Reply, extra_body=body))
    with client.chat.completions.stream(**request(response_format=Reply, extra_body=body)) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done"} <= kinds
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed


def test_every_choice(client):
    completion = client.chat.completions.parse(
        **request(response_format=Reply, extra_body=NO_THINKING, n=4, temperature=1, seed=3)
    )
    assert [isinstance(choice.message.parsed, Reply) for choice in completion.choices] == [True] * 4


def test_a_reply_that_is_cut(client):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            **request(response_format=Reply, extra_body=NO_THINKING, max_completion_tokens=5)
        )


class Circle(pydantic.BaseModel):
    kind: Literal["circle"]
    radius: Annotated[int, pydantic.Field(ge=1, le=9)]


class Square(pydantic.BaseModel):
    kind: Literal["square"]
    side: Annotated[int, pydantic.Field(ge=1, le=9)]


class Drawing(pydantic.BaseModel):
    shape: Annotated[Union[Circle, Square], pydantic.Field(discriminator="kind")]
    twice: Optional["Drawing"] = None


def test_a_schema_as_pydantic_writes_it(client):
    """With `oneOf`, references and a model that holds itself, and not made strict by the package."""
    schema = Drawing.model_json_schema()
    response_format = {"type": "json_schema", "json_schema": {"name": "drawing", "schema": schema}}
    completion = client.chat.completions.create(
        **request(response_format=response_format, extra_body=NO_THINKING, temperature=1, seed=1, n=4)
    )
    ended = [choice for choice in completion.choices if choice.finish_reason == "stop"]
    assert ended
    for choice in ended:
        Drawing.model_validate_json(choice.message.content)


def test_json_object(client):
    completion = client.chat.completions.create(
        **request(response_format={"type": "json_object"}, extra_body=NO_THINKING, max_completion_tokens=300)
    )
    [choice] = completion.choices
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize(
    "words, allowed",
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ["yes", "no"]),
        ({"guided_regex": "(one|two)!"}, ["one!", "two!"]),
        ({"grammar": 'start: ("a" | "b") "c"'}, ["ac", "bc"]),
    ],
)
def test_the_words_of_other_servers(client, words, allowed):
    completion = client.chat.completions.create(**request(extra_body=NO_THINKING | words))
    assert completion.choices[0].message.content in allowed


@pytest.mark.parametrize("effort", ["medium", "none"])
def test_responses_parse(client, effort):
    parameters = {"model": MODEL, "input": "What is 38 + 57?", "temperature": 0, "max_output_tokens": 800}
    parameters |= {"reasoning": {"effort": effort}, "text_format": Reply}
    whole = client.responses.parse(**parameters)
    assert isinstance(whole.output_parsed, Reply), whole
    with client.responses.stream(**parameters) as stream:
        assert stream.get_final_response().output_parsed == whole.output_parsed


# Anthropic's package leaves bounds of numbers and texts out of the schema.
class Verdict(pydantic.BaseModel):
    unit: Unit
    sure: bool


@pytest.mark.parametrize("thinking", [{"type": "disabled"}, {"type": "adaptive"}])
def test_messages_parse(server, thinking):
    parameters = {"model": MODEL, "messages": QUESTION, "max_tokens": 800, "thinking": thinking}
    parameters |= {"output_format": Verdict, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=PATIENCE) as claude:
        whole = claude.messages.parse(**parameters)
        assert isinstance(whole.parsed_output, Verdict), whole
        with claude.messages.stream(**parameters) as stream:
            assert stream.get_final_message().parsed_output == whole.parsed_output


class SetLight(pydantic.BaseModel):
    """Set the light."""

    on: bool
    level: Annotated[int, pydantic.Field(ge=1, le=9)]
    color: Literal["red", "green"]


def test_a_forced_call_has_arguments_of_its_model(client):
    tool = openai.pydantic_function_tool(SetLight)
    completion = client.chat.completions.parse(
        **request(tools=[tool], tool_choice="required", parallel_tool_calls=False)
    )
    [choice] = completion.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, SetLight), call


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "object", "properties": {"a": {"type": "string", "not": {"const": "x"}}}}, ".properties.a"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, ""),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, ""),
    ],
)
def test_what_cannot_be_followed_is_refused(client, schema, part):
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**request(response_format=response_format))
    assert caught.value.param == f"response_format.json_schema.schema{part}"
