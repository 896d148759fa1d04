"""Writes templates.json: chat templates in the forms of several families, and the texts that transformers makes of chats.

Run it with transformers 5.24 and jinja2 3.1.6.
"""

import json

from transformers.utils.chat_template_utils import render_jinja_template

TEMPLATES = {
    "chatml": """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "llama 3": """\
{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "gemma": """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate user/assistant") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
""",
    "mistral": """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- else %}
        {{- " " + message["content"] + eos_token }}
    {%- endif %}
{%- endfor %}
{{- "\\n" ~ ns.index ~ " of " ~ user_messages | length }}
""",
    "qwen 3": """\
{%- set ns = namespace(multi_step=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- if tools is iterable and tools | length > 0 %}{{- "tools" }}{%- endif %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" and '</think>' in content and loop.index0 < ns.last_query_index %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "phi": """\
{% for message in messages %}
    {% if message['role'] == 'system' and message['content'] %}
{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}
    {% elif message['role'] == 'user' %}
{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}
    {% else %}
{% generation %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{%- endgeneration -%}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "words of Python": """\
{% macro show(value, name='value') %}{{ name }}={{ value }};{% endmacro %}
{{ show(none) }}{{ show(true) }}{{ show(1 == 2, name='no') }}{{ show(3) }}{{ show(1.5) }}{{ show(unknown) }}
{{ messages[0] | tojson }}
{{ {'a': [1, 2.5, none, true], 'b': {}, 'c': [], 'ä<': "it's"} | tojson(indent=2) }}
{{ {'z': 1, 'a': 'é'} | tojson(sort_keys=true) }}
{% for message in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ loop.index }}{{ message.role.upper() }}{{ message.content.strip()[:3] }}{% endfor %}
{{ 'a-b'.replace('-', '_') ~ 'x,y'.split(',')[1] ~ ' '.join(['p', 'q']) ~ messages[0].get('tool_calls', 'none') }}
""",
}


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


SYSTEM = {"role": "system", "content": "Be brief."}
CHATS = [
    [user("Hello")],
    [SYSTEM, user("  Why <b> & 'c'?\n")],
    [user("Hi"), assistant("<think>\nhm\n</think>\n\nYes é\n"), user("Who?")],
    [assistant("I begin")],
]


def text(template, chat):
    """Returns the text of a chat, or None if the template refuses it."""
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    try:
        texts, _ = render_jinja_template([chat], chat_template=template, add_generation_prompt=True, **tokens)
    except Exception:  # any error of the template
        return None
    return texts[0]


cases = [
    {"name": name, "template": template, "texts": [text(template, chat) for chat in CHATS]}
    for name, template in TEMPLATES.items()
]
with open("templates.json", "w", encoding="utf-8") as file:
    json.dump({"chats": CHATS, "cases": cases}, file, ensure_ascii=False, indent=1)
    file.write("\n")
