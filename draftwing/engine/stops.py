"""Where an answer ends, token by token, and its text on the way. The same object serves plain and speculative decoding,
so both end at the same place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Finish = Literal["stop", "length"]


class Stops:
    """Takes committed tokens one at a time and says when the answer is over.

    The end is the first of: an end-of-text token (not part of the text), a stop string (cut off the text with
    all that follows), `max_new_tokens` tokens.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        eos_ids: tuple[int, ...],
        stop_strings: tuple[str, ...],
        max_new_tokens: int,
    ) -> None:
        self._decode, self._eos_ids, self._strings, self._max = decode, eos_ids, stop_strings, max_new_tokens
        self._longest = max(map(len, stop_strings), default=0)
        self._tokens: list[int] = []
        # Text is final up to `_read`; tokens from `_prefix` on are decoded together, because a character can
        # take several tokens and a word's first space depends on what stands before it.
        self._prefix = self._read = 0
        self.text = ""
        self.finish: Finish | None = None

    def push(self, token: int) -> str:
        """Take one token; returns the text that it completes, with a stop string and what follows it cut off."""
        if self.finish:
            raise ValueError("the answer has ended")
        before = len(self.text)
        self._tokens.append(token)
        if token in self._eos_ids:
            self.finish = "stop"
        else:
            self._extend_text(final=len(self._tokens) == self._max)
            self._cut_at_stop_string(before)
            if not self.finish and len(self._tokens) == self._max:
                self.finish = "length"
        return self.text[before:]

    def end(self) -> None:
        """The context is full: the answer ends as it is."""
        self.finish = self.finish or "length"

    def _extend_text(self, *, final: bool) -> None:
        old = self._decode(self._tokens[self._prefix : self._read])
        new = self._decode(self._tokens[self._prefix :])
        if len(new) > len(old) and (final or not new.endswith("\ufffd")):
            self.text += new[len(old) :]
            self._prefix, self._read = self._read, len(self._tokens)

    def _cut_at_stop_string(self, before: int) -> None:
        start = max(0, before - self._longest + 1)
        places = [place for string in self._strings if (place := self.text.find(string, start)) >= 0]
        if places:
            self.text = self.text[: min(places)]
            self.finish = "stop"
