"""Chats, tools and chat templates after the published formats of well-known models."""

CHATS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi\n"}, {"role": "assistant", "content": " Yes? "}, {"role": "user", "content": "2 < 3 & \"é\" 'x' 你好"}],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "system", "content": "Only this."}],
    [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nLet me see."}, {"role": "user", "content": "And?"}],
    [{"role": "user", "content": "Weather?"},
     {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "abcdef123", "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2, "exact": 1.5, "now": True}}}]},
     {"role": "tool", "name": "weather", "tool_call_id": "abcdef123", "content": "{\"t\": 21}"}, {"role": "user", "content": "Thanks"}],
]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Its name"}, "days": {"type": "integer"}}, "required": ["city"]}}}]

TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
        "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
        "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "mistral": "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{% else %}{{ raise_exception('Unknown role') }}{% endif %}{% endfor %}",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
    "phi3": "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
        "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
        "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "blocks": """
{%- set ns = namespace(found=false, count=0) -%}
{% for message in messages %}
    {% if message.role == 'system' %}
        {%- set ns.found = true %}
    {% endif %}
    {% set ns.count = ns.count + 1 %}
[{{ loop.index }}/{{ loop.length }}] {{ message.role|upper }}: {{ message.content.strip().split('\n')[0].replace('e', 'E') }}
    {% if message.tool_calls is defined and message.tool_calls %}
        {% for call in message.tool_calls %}
<call>{{ call.function.name }} {{ call.function.arguments | tojson }} {{ call.function.arguments }} {{ call | tojson(indent=2) }}</call>
        {% endfor %}
    {% endif %}
{% endfor %}
{{ ns.found }} {{ ns.count }} {{ messages[-1].role }} {{ messages[::-1][0].role }} {{ messages | map(attribute='role') | join(',') }}
{% if tools is not none %}{% for tool in tools %}{{ tool.function.parameters.properties | length }}{% for key, value in tool.function.parameters.properties.items() %} {{ key }}={{ value.type }}{% endfor %}{% endfor %}{% endif %}
{{ strftime_now('%d %B %Y') }} {{ messages[0].get('name', 'nobody') }} {{ 'x' in messages[0] }} {{ messages[0].content.startswith('H') }}
""",
}
