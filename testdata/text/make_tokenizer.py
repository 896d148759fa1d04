"""Writes a tokenizer of bytes for mobius-llama-static, whose 256 tokens have no meaning.

The tokens have meanings that make the model's texts useful in tests: `Once` continues with a character of two tokens, a
control character and an end token.
"""

import json

SPECIAL = {0: "<s>", 252: "<|system|>", 253: "<|user|>", 254: "<|assistant|>", 255: "</s>"}
# Bytes of é, a line feed, a character that controls a terminal, and tokens of several characters.
MEANINGS = {
    4: b"O", 5: b"n", 6: b"c", 7: b"e", 226: b" upon", 216: b" a", 209: b" time", 156: b"\xc3", 153: b"\xa9", 26: b"\n",
    235: b"\x1b", 40: b"END", 230: b"!", 10: b" x", 72: b"H", 61: b" ha", 132: b",", 193: b".", 11: b" h",
}  # fmt: skip
MERGES = [[" ", "h"], [" h", "a"]]


def characters():
    """Returns the character that a tokenizer of bytes writes for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + at) for at, byte in enumerate(others)}


CHARACTERS = characters()


def written(token):
    return "".join(CHARACTERS[byte] for byte in token)


# Bytes that no text in UTF-8 contains, and most control characters, have no token.
singles = [bytes([byte]) for byte in [*range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF5)]]
free = iter(id for id in range(256) if id not in SPECIAL and id not in MEANINGS)
tokens = MEANINGS | {next(free): token for token in singles if token not in MEANINGS.values()}
tokenizer = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for id, content in SPECIAL.items()
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    },
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {
        "type": "BPE",
        "vocab": {written(token): id for id, token in sorted(tokens.items())}
        | {token: id for id, token in SPECIAL.items()},
        "merges": [[written(part.encode()) for part in pair] for pair in MERGES],
    },
}  # fmt: skip
config = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "chat_template": "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
}
for name, content in [
    ("tokenizer.json", tokenizer),
    ("tokenizer_config.json", config),
    ("generation_config.json", {"eos_token_id": [255, 193]}),
]:
    with open(name, "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False)
        file.write("\n")
