"""The target's tokenizer and chat template, with digests that the contract carries."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from draftwing.core.errors import UserError


class Tokenizer:
    """Text to token ids and back, and conversations to prompts. A thin face on the Hugging Face tokenizer."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer  # noqa: PLC0415 (slow import, not needed for --help)

        try:
            self._inner: Any = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{folder} has no usable tokenizer ({str(error).splitlines()[0]}).", "Get tokenizer.json of this model."
            ) from None
        self.template: str | None = self._inner.chat_template
        self.digest = _digest_of_files(folder)
        self.template_digest = hashlib.sha256((self.template or "").encode()).hexdigest()

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation up to where the answer starts; UserError without a template."""
        return self._render(messages, generation_prompt=True)

    def conversation(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a whole conversation, answers included."""
        return self._render(messages, generation_prompt=False)

    def _render(self, messages: list[dict[str, str]], *, generation_prompt: bool) -> list[int]:
        if not self.template:
            raise UserError(
                "The target's tokenizer has no chat template.",
                "Use an instruct model, or add chat_template.jinja to its folder.",
            )
        try:
            ids = self._inner.apply_chat_template(
                messages, add_generation_prompt=generation_prompt, tokenize=True, return_dict=False
            )
        except Exception as error:  # a template is a program of the model's author: it may raise anything
            raise UserError(
                f"The chat template refuses these messages: {error}.", "Check their roles and order."
            ) from None
        return [int(token) for token in ids]

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids, without special tokens."""
        text: str = self._inner.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def _digest_of_files(folder: Path) -> str:
    """Digest of the tokenizer's own file: the merges and added tokens, whatever else lies beside it."""
    for name in ("tokenizer.json", "tokenizer.model", "vocab.json"):
        if (folder / name).exists():
            return hashlib.sha256((folder / name).read_bytes()).hexdigest()
    raise UserError(f"{folder} has no tokenizer.json.", "Get it with the model.")
