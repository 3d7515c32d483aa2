#!/usr/bin/env python3
"""Renders conversations with Python's Jinja2 the way transformers does, as goldens for crates/chat.

Usage: tools/template_goldens.py > crates/chat/tests/fixtures/template_goldens.json   (needs: pip install jinja2)

The file is a list of cases: the template's name (the 35B's or the small checkpoint's), or the source of
a snippet; what goes in; and what comes out: "text", or "raised" with the reason a template gave to raise_exception.
"""

import itertools
import json
import pathlib
import sys

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEMPLATES = {
    "qwen3_6": ROOT / "models/qwen3.6-35b-a3b/chat_template.jinja",
    "tiny": ROOT / "models/tiny/chat_template.jinja",
}


class Raised(Exception):
    pass


def environment():
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def tool(name, properties, **extra):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}: «é» <b> & 'x'", "parameters": parameters, **extra}}


def call(name, arguments):
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **extra):
    return {"role": "assistant", "content": content, **extra}


TOOLS = [
    tool("weather", {"zone": {"type": "string"}, "at": {"type": "number", "default": 1.0, "minimum": 1e-05}}),
    tool("b", {}, strict=True, limits=[None, False, 3, -0.5, 1e22, 123456789.25, "a\u2028\t\"\\/\x7f\x01"]),
]
ARGUMENTS = {
    "flag": True, "nothing": None, "whole": 5, "real": 5.0, "small": 1e-7, "text": " two\nlines é \"q\" ",
    "list": [1, "a", {"k": [], "e": {}}], "nested": {"z": 1, "a": {"b": [True, None, 1.5e300]}},
}
CONVERSATIONS = {
    "hello": [user("hello")],
    "system": [{"role": "system", "content": "  be concise  "}, user("hello")],
    "parts": [user([{"type": "text", "text": " a "}, {"type": "text", "text": "b\n"}])],
    "call": [user("hi"), assistant(None, tool_calls=[call("f", {"flag": True, "nested": {"x": [1, 2]}})])],
    "calls": [
        {"role": "system", "content": "Sys\n\ntem"}, user("first"), assistant("old", reasoning_content="past\n"), user("hi"),
        assistant("Let me look.", reasoning_content="\nhm\n", tool_calls=[call("f", ARGUMENTS), call("g", {})]),
        {"role": "tool", "tool_call_id": "c1", "content": " one "}, {"role": "tool", "content": "two"},
        assistant("", tool_calls=[call("g", {"a": "b"})]), {"role": "tool", "content": ""}, assistant("done"),
    ],
    "inline reasoning": [user("q"), assistant("<think>\nwhy\n</think>\n\nanswer"), user("r"), assistant("<think>\n\n</think>\n\nx")],
    "tool response as user": [user("q"), assistant("a"), user("<tool_response>\nx\n</tool_response>")],
    "unicode": [user("日本語 🙂 ❤️ \u202e <|im_end|> {{ messages }} {% raw %}")],
    "empty": [user("")],
    "no content": [user("q"), {"role": "assistant", "tool_calls": [call("f", {})]}],
    "late system": [user("q"), assistant("a"), {"role": "system", "content": "now"}, user("r")],
    "unknown role": [user("q"), {"role": "critic", "content": "x"}],
    "number as content": [user(17)],
    "image": [user([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "what?"}])],
    "no query": [assistant("a")],
    "unknown part": [user([{"type": "smell"}])],
}
KWARGS = [{}, {"enable_thinking": False}, {"enable_thinking": True, "preserve_thinking": True}]

SNIPPETS = [
    "{{ v | tojson }}", "{{ v | tojson(indent=2) }}", "{{ v | tojson(indent=0) }}", "{{ v | tojson(separators=(',', ':')) }}",
    "{{ v | tojson(sort_keys=true) }}", "{{ v | tojson(ensure_ascii=true) }}", "{{ v | tojson(indent='\t', sort_keys=true) }}",
    "{{ v | tojson(indent=1, separators=(';', '=')) }}",
    "{% for k in v %}{% if loop.index > 2 %}{% break %}{% endif %}{{ k }}{% if loop.first %}{% continue %}{% endif %}!{% endfor %}",
    "{{ missing }}|{{ v.missing }}|{{ none.x is defined }}|{% for x in missing %}{% endfor %}{{ missing is defined }}",
    "{{ v.text.strip().upper() }}{{ 'a-b'.split('-')[-1] }}{{ 'aXbX'.rstrip('X') }}{{ v.get('none', 3) }}{{ v.get('q', 3) }}",
    "{% for k, x in v.items() %}{{ k }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for k, x in v | items %}{{ k }}={{ x is mapping }}{{ x is sequence }}{{ x is iterable }}{{ x is string }}{{ x is number }}"
    "{{ x is integer }}{{ x is float }}{{ x is boolean }}{{ x is none }};{% endfor %}",
    "{{ v.true }}|{{ v.none }}|{{ v.list }}|{{ v.one }}|{{ v.small }}|{{ v.small | string }}|{{ 7 // 2 }}|{{ 7 / 2 }}|{{ -7 % 3 }}",
    "  {% if true %}  \nx\n  {% endif %}\n  y\n",
    "{% set ns = namespace(n=0) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
    "{{ 'x' ~ 1 ~ true ~ none }}{{ [1, 2] + [3] }}{{ ('a' * 3) }}{{ 'b' in 'abc' }}{{ 'k' in {'k': 1} }}{{ [1,2,3][::-1] }}{{ [1,2,3][1:] }}",
    "{{ 'abc'[1:] }}{{ 'abc'[-1] }}{{ v.list | length }}{{ v.list | first }}{{ v.list | join('-') }}{{ '  x ' | trim }}{{ v.text | replace('é', 'e') }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | map(attribute='content') | join('|') }}",
    "{% macro m(a, b='d') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}{% set x %}in{% endset %}{{ x }}",
    "{{ messages[0]['content'] }}{{ messages[-1].role }}{{ 'yes' if messages[5] is defined else 'no' }}{{ missing | default('d') }}",
    "{{ raise_exception('say ' ~ messages[0].role) }}",
    "{% macro m() %}{{ raise_exception('inside') }}{% endmacro %}{% for x in [1] %}{{ m() }}{% endfor %}",
]
VALUE = {"true": True, "none": None, "list": [1, 2.5, "x", []], "one": 1.0, "small": 1e-05, "text": " é\n", "z": {"b": 1e16, "a": -0.0, "e": {}}}


def render(env, source, context):
    try:
        return {"text": env.from_string(source).render(**context)}
    except Raised as raised:
        return {"raised": str(raised)}
    except (jinja2.TemplateError, TypeError):
        return {"failed": True}


def main():
    env = environment()
    cases = []
    for name, path in TEMPLATES.items():
        source = path.read_text()
        for (title, messages), kwargs, tools in itertools.product(CONVERSATIONS.items(), KWARGS, (None, TOOLS)):
            if tools and title not in ("hello", "system", "calls"):
                continue
            if kwargs and title not in ("hello", "calls", "inline reasoning"):
                continue
            for prompted in (True, False):
                context = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompted, **kwargs}
                case = {"template": name, "conversation": title, "tools": bool(tools), "add_generation_prompt": prompted, "kwargs": kwargs}
                cases.append({**case, **render(env, source, context)})
    messages = [user("hi"), assistant("yo")]
    for source in SNIPPETS:
        cases.append({"source": source, **render(env, source, {"messages": messages, "v": VALUE, "tools": None, "add_generation_prompt": False})})
    out = {"conversations": CONVERSATIONS, "tools": TOOLS, "messages": messages, "v": VALUE, "cases": cases}
    json.dump(out, sys.stdout, ensure_ascii=False, indent=1)
    sys.stdout.write("\n")


main()
