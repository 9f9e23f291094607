"""The target's tokenizer and chat template, with digests that the contract carries."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from draftwing.core.errors import UserError

Messages = list[dict[str, str]]
Control = Literal["text", "parsed"]


class Tokenizer:
    """Text to token ids and back, and conversations to prompts. A thin face on the Hugging Face tokenizer.

    `control` says what a control token's name means inside a message, `<|im_end|>` say: "text", the letters as they
    stand, or "parsed", the token itself, with which a user ends their own turn and begins another's.
    """

    def __init__(self, folder: Path, control: Control = "text") -> None:
        from transformers import AutoTokenizer  # noqa: PLC0415 (slow import, not needed for --help)

        try:
            self._inner: Any = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{folder} has no usable tokenizer ({str(error).splitlines()[0]}).", "Get tokenizer.json of this model."
            ) from None
        self.template: str | None = self._inner.chat_template
        special = [token.content for token in self._inner.added_tokens_decoder.values() if token.special]
        # The longest first; nothing is found where a tokenizer has no control tokens.
        self._names = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self._control = control
        self.digest = _digest_of_files(folder)
        self.template_digest = hashlib.sha256((self.template or "").encode()).hexdigest()

    def prompt(self, messages: Messages) -> list[int]:
        """Token ids of a conversation up to where the answer starts; UserError without a template."""
        return self._render(messages, generation_prompt=True)

    def conversation(self, messages: Messages) -> list[int]:
        """Token ids of a whole conversation, answers included."""
        return self._render(messages, generation_prompt=False)

    def _render(self, messages: Messages, *, generation_prompt: bool) -> list[int]:
        if not self.template:
            raise UserError(
                "The target's tokenizer has no chat template.",
                "Use an instruct model, or add chat_template.jinja to its folder.",
            )
        if self._control == "text" and any(map(self._names.search, _texts(messages))):
            return self._render_as_text(messages, generation_prompt)
        return [int(token) for token in self._apply(messages, generation_prompt, tokenize=True)]

    def _apply(self, messages: Messages, generation_prompt: bool, *, tokenize: bool) -> Any:
        try:
            return self._inner.apply_chat_template(
                messages, add_generation_prompt=generation_prompt, tokenize=tokenize, return_dict=False
            )
        except Exception as error:  # a template is a program of the model's author: it may raise anything
            raise UserError(
                f"The chat template refuses these messages: {error}.", "Check their roles and order."
            ) from None

    def _render_as_text(self, messages: Messages, generation_prompt: bool) -> list[int]:
        """Render with a mark inside each name that stands in a message, so that only the template's own are found:

        <|im_start|>user\\n say <#|im_end|> now <|im_end|>\\n          # is the mark
        control      text: the mark taken out control     text
        """
        held = "".join(_texts(messages))
        mark = next(letter for letter in map(chr, range(0xE000, 0xF900)) if letter not in held)

        def pieces(of: Messages) -> list[int]:
            return self._in_pieces(self._apply(of, generation_prompt, tokenize=False), mark)

        without = _changed(messages, lambda text: self._names.sub(" ", text))
        if pieces(without) != self._apply(without, generation_prompt, tokenize=True):
            raise UserError(
                "A message names a control token, and this tokenizer can not encode it as text.",
                "Take it out of the message, or say --control-tokens parsed to have it as the token itself.",
            )
        return pieces(_changed(messages, lambda text: self._names.sub(lambda m: m[0][0] + mark + m[0][1:], text)))

    def _in_pieces(self, rendered: str, mark: str) -> list[int]:
        """Token ids of the control tokens and of the text between them, each for itself."""
        ids: list[int] = []
        for number, piece in enumerate(re.split(f"({self._names.pattern})", rendered)):
            if number % 2:
                ids.append(self._inner.convert_tokens_to_ids(piece))
            elif piece:
                text = piece.replace(mark, "")
                ids += self._inner.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids, without special tokens."""
        text: str = self._inner.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def _texts(messages: Messages) -> Iterator[str]:
    return (text for message in messages for text in message.values())


def _changed(messages: Messages, change: Callable[[str], str]) -> Messages:
    return [{key: change(text) for key, text in message.items()} for message in messages]


def _digest_of_files(folder: Path) -> str:
    """Digest of the tokenizer's own file: the merges and added tokens, whatever else lies beside it."""
    for name in ("tokenizer.json", "tokenizer.model", "vocab.json"):
        if (folder / name).exists():
            return hashlib.sha256((folder / name).read_bytes()).hexdigest()
    raise UserError(f"{folder} has no tokenizer.json.", "Get it with the model.")
