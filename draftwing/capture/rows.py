"""One row of a prompts file as messages: the shapes that people's data sets have. Pure.

    {"messages": [{"role": ..., "content": ...}]}          OpenAI; content may be parts of type text
    {"conversations": [{"from": ..., "value": ...}]}       ShareGPT; role and content are read too
    {"prompt": "..."}  {"text": "..."}  "..."              what the user asks
    {"prompt": [{"role": ..., "content": ...}]}            messages under another name

What could be read in two ways is refused. Every ValueError here says what is wrong with the row.
"""

from __future__ import annotations

from typing import Any

Messages = list[dict[str, str]]

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}
ROLES |= {"bing": "assistant", "bard": "assistant", "system": "system"}
KEYS = ("messages", "conversations", "prompt", "text")


def conversation_of(row: Any) -> Messages:
    """The messages of a row, answers included; empty when nothing is asked. ValueError for what is none."""
    if isinstance(row, str):
        return _asked(row)
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    held = {key: _read(key, row[key]) for key in KEYS if key in row}
    if not held:
        raise ValueError(f"it has none of the keys {', '.join(KEYS)}")
    (key, messages), *others = held.items()
    for other, also in others:
        # Data sets repeat the question beside the conversation that begins with it.
        if also != messages[: len(also)] and _first_question(messages) != also:
            raise ValueError(f"its `{key}` and its `{other}` differ: keep the one that is meant")
    return messages


def question_of(messages: Messages, *, first: bool) -> Messages:
    """Messages up to the question that awaits an answer: the last one, or the `first` that a person asked."""
    asked = [place for place, message in enumerate(messages) if message["role"] != "assistant"]
    if first:
        return _first_question(messages)
    return messages[: asked[-1] + 1] if asked else []


def text_of(value: Any) -> str:
    """A content as text. Parts are joined with a line end, as vLLM does for templates that take text."""
    if isinstance(value, list):
        for part in value:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                raise ValueError(f"a content has a part of type {kind!r}, and only text can be read")
            if not isinstance(part.get("text"), str):
                raise ValueError("a content has a part of type text without a `text`")
        value = "\n".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise ValueError("each message needs a text `role` and a text `content`")
    return checked_text(value)


def checked_text(text: str) -> str:
    """The text itself; ValueError when it holds half of a surrogate pair, which no encoding can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start} (U+{ord(text[error.start]):04X}) is half of a surrogate pair"
        ) from None
    return text


def _read(key: str, value: Any) -> Messages:
    if isinstance(value, str) and key in {"prompt", "text"}:
        return _asked(value)
    if not isinstance(value, list) or key == "text":
        raise ValueError(f"its `{key}` is {type(value).__name__}, not {'text' if key == 'text' else 'a list'}")
    if not value and key != "conversations":
        raise ValueError(f"its `{key}` must be a list that is not empty")
    return [_message(message) for message in value]


def _message(message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise ValueError("each message must be an object")
    if "from" in message or "value" in message:
        speaker = message.get("from")
        if not isinstance(speaker, str) or not isinstance(message.get("value"), str):
            raise ValueError("each turn needs a text `from` and a text `value`")
        if speaker not in ROLES:
            raise ValueError(f"nobody knows whether {speaker!r} asks or answers; known are {', '.join(ROLES)}")
        return {"role": ROLES[speaker], "content": checked_text(message["value"])}
    if not isinstance(message.get("role"), str):
        raise ValueError("each message needs a text `role` and a text `content`")
    return {"role": checked_text(message["role"]), "content": text_of(message.get("content"))}


def _asked(text: str) -> Messages:
    return [{"role": "user", "content": checked_text(text)}] if text.strip() else []


def _first_question(messages: Messages) -> Messages:
    return next(([message] for message in messages if message["role"] == "user"), [])
