"""Prompts from the files people have; what is no prompts file is refused with the place of the fault."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from draftwing.capture.prompts import HELDOUT_PER_MILLE, prompt_of, read_prompts
from draftwing.core.errors import UserError
from draftwing.core.settings import home


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _turns(*texts: str, first: str = "human") -> dict[str, Any]:
    names = (first, "gpt") if first != "gpt" else ("gpt", "human")
    return {"conversations": [{"from": names[place % 2], "value": text} for place, text in enumerate(texts)]}


def _file(tmp_path: Path, content: bytes | str) -> str:
    path = tmp_path / "prompts"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def _texts(source: str, **options: Any) -> list[str]:
    return [prompt.messages[-1]["content"] for prompt in read_prompts(source, **options)]


SHAREGPT = json.dumps([_turns("one", "x"), _turns("two é ünï", "y"), _turns("three", "z")], ensure_ascii=False).encode()
ACCENT = SHAREGPT.index("é".encode())


def test_jsonl_keeps_whole_conversations(tmp_path: Path) -> None:
    rows = [
        [{"role": "system", "content": "be brief"}, _user("one")],
        [_user("two"), {"role": "assistant", "content": "answer"}],
    ]
    lines = [json.dumps({"messages": row, "source": "x"}) for row in rows]
    source = _file(tmp_path, "\n" + "\n\n".join(lines) + "\n")
    assert [list(prompt.messages) for prompt in read_prompts(source, answered=True)] == rows
    asked = [rows[0], rows[1][:1]]
    assert [list(prompt.messages) for prompt in read_prompts(source)] == asked, "an answer at the end is asked for anew"


QUESTION, ANSWER = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
SHAPES: dict[str, Any] = {
    "openai": {"messages": [QUESTION, ANSWER]},
    "openai in parts": {"messages": [{**QUESTION, "content": [{"type": "text", "text": "Why?"}]}, ANSWER]},
    "sharegpt": _turns("Why?", "So."),
    "sharegpt with roles": {"conversations": [QUESTION, ANSWER]},
    "prompt": {"prompt": "Why?"},
    "prompt of messages": {"prompt": [QUESTION]},
    "text": {"text": "Why?", "source": "here"},
    "a string": "Why?",
    "the question twice": {"prompt": "Why?", "messages": [QUESTION, ANSWER]},
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("form", ["jsonl", "json"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_every_shape_are_the_same_prompt(tmp_path: Path, shape: str, form: Any, packed: bool) -> None:
    row = json.dumps(SHAPES[shape])
    content = (f"[{row}, {row}]" if form == "json" else f"{row}\n{row}\n").encode()
    source = _file(tmp_path, gzip.compress(content) if packed else content)
    told = "auto" if form == "json" or shape != "a string" else "jsonl"
    assert read_prompts(source, form=told) == read_prompts(source, form=form) == [prompt_of([QUESTION])]
    answers = "messages" in row or "conversations" in row
    whole = [QUESTION, ANSWER] if answers else [QUESTION]
    assert read_prompts(source, form=form, answered=True) == [prompt_of(whole)]


def test_several_parts_are_joined_as_vllm_joins_them(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert _texts(_file(tmp_path, json.dumps({"messages": [{"role": "user", "content": parts}]}))) == ["one\ntwo"]


def test_lines_that_look_like_json_are_read_as_lines_when_told(tmp_path: Path) -> None:
    source = _file(tmp_path, "[INST] write\n{a}\n")
    with pytest.raises(UserError, match="say --prompts-format lines"):
        read_prompts(source)
    assert _texts(source, form="lines") == ["[INST] write", "{a}"]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (SHAREGPT, ["one", "two é ünï", "three"]),
        (SHAREGPT[: ACCENT - 1], ["one"]),
        (SHAREGPT[: ACCENT + 1], ["one"]),
        (SHAREGPT[: ACCENT - 1] + b"\\", ["one"]),
        (SHAREGPT[:-1], ["one", "two é ünï", "three"]),
        (SHAREGPT[: SHAREGPT.index(b'{"conversations": [{"from": "human", "value": "three"')], ["one", "two é ünï"]),
        (json.dumps([_turns("said first", "asked", first="gpt")]), ["asked"]),
        (json.dumps([_turns("u", "x", first="user")]), ["u"]),
        (json.dumps([_turns(), _turns("  ", "x"), _turns("two", "x")]), ["two"]),
        ("  \n" + json.dumps([_turns("one")]), ["one"]),
    ],
    ids=[
        "whole",
        "cut-in-string",
        "cut-in-letter",
        "cut-in-escape",
        "cut-at-end",
        "cut-between",
        "gpt-first",
        "user",
        "empty",
        "space",
    ],
)
def test_sharegpt_yields_the_first_human_turn_of_what_is_whole(tmp_path: Path, content: Any, texts: list[str]) -> None:
    assert _texts(_file(tmp_path, content)) == texts


def test_lines_are_prompts(tmp_path: Path) -> None:
    assert _texts(_file(tmp_path, "one\n\n   two words  \r\nthree ✓")) == ["one", "two words", "three ✓"]


def test_the_known_sets_are_read_from_where_they_were_fetched() -> None:
    (home() / "data").mkdir(parents=True)
    (home() / "data" / "sharegpt.json").write_bytes(SHAREGPT[: ACCENT - 1])
    problem = json.dumps({"task_id": "HumanEval/0", "prompt": "def f(x):\n    ...\n\n"})
    with gzip.open(home() / "data" / "humaneval.jsonl.gz", "wt") as file:
        file.write(problem + "\n")
    assert _texts("sharegpt") == ["one"]
    assert _texts("humaneval") == ["Complete this Python function.\n\n```python\ndef f(x):\n    ...\n```"]


def test_duplicates_by_case_and_spacing_are_dropped_and_the_first_stays(tmp_path: Path) -> None:
    assert _texts(_file(tmp_path, "Tell me\nother\ntell   ME\nTell me \ntell me!")) == ["Tell me", "other", "tell me!"]


def test_an_id_is_of_roles_and_words_wherever_the_prompt_stands(tmp_path: Path) -> None:
    plain = prompt_of([_user("Hello  World")])
    assert plain.id == prompt_of([_user("hello world\n")]).id
    assert plain.messages == (_user("Hello  World"),), "the text itself is untouched"
    others = [[_user("hello worlds")], [{"role": "system", "content": "hello world"}], [_user("hello"), _user("world")]]
    assert len({plain.id, *(prompt_of(messages).id for messages in others)}) == 4
    assert len(plain.id) == 16
    row = json.dumps({"messages": [_user("hello world")]})
    assert read_prompts(_file(tmp_path, row))[0].id == read_prompts(_file(tmp_path, "x\nhello world"))[1].id == plain.id


def test_splits_are_disjoint_and_cover_all_whatever_the_order(tmp_path: Path) -> None:
    """3 % of 3000 is 90; outside 60..120 by chance once in 700 sets of texts, and this set is fixed."""
    lines = [f"prompt number {number}" for number in range(3000)]
    source = _file(tmp_path, "\n".join(lines))
    train, heldout = _texts(source, split="train"), _texts(source, split="heldout")
    assert sorted(train + heldout) == sorted(lines)
    assert train == [line for line in lines if line in set(train)], "in file order"
    assert 60 < len(heldout) < 120
    assert HELDOUT_PER_MILLE == 30
    assert sorted(_texts(_file(tmp_path, "\n".join(reversed(lines))), split="heldout")) == sorted(heldout)


def test_a_limit_counts_different_prompts_of_the_split(tmp_path: Path) -> None:
    source = _file(tmp_path, "a\nA\nb\nc\nd")
    assert _texts(source, limit=2) == ["a", "b"]
    assert _texts(source, limit=99) == ["a", "b", "c", "d"]
    lines = "\n".join(f"prompt number {number}" for number in range(300))
    some = read_prompts(_file(tmp_path, lines), split="heldout", limit=3)
    assert [prompt.heldout for prompt in some] == [True] * 3


GOOD = json.dumps({"messages": [_user("hi")]}) + "\n"
MIDDLE = SHAREGPT.replace(b', {"conv', b', garbage {"conv', 1)


BAD: dict[str, Any] = {
    "empty": ("", "holds no prompts. Give JSONL or"),
    "blank": (" \n\n", "holds no prompts"),
    "empty array": ("[]", "holds no prompts"),
    "not json": ("[INST] write", "is not JSON .*say --prompts-format lines"),
    "cut in the first item": (SHAREGPT[:20], "is not JSON"),
    "binary": (bytes(range(256)) * 8, "is not text in UTF-8"),
    "utf-16": ("hello".encode("utf-16"), "is not text in UTF-8"),
    "jsonl broken": (GOOD * 2 + '{"messages": [\n', "line 3 is not JSON"),
    "jsonl other key": (
        GOOD + '{"question": "x"}\n',
        "line 2: it has none of the keys messages, conversations, prompt",
    ),
    "jsonl no messages": ('{"messages": []}\n', "line 1: its `messages` must be a list that is not empty"),
    "jsonl null": (GOOD + '{"messages": null}', "line 2: its `messages` is NoneType, not a list"),
    "jsonl a list": (GOOD + "\n[1, 2]\n", "line 3: it is no JSON object"),
    "jsonl no role": ('{"messages": [{"content": "x"}]}', "line 1: .*a text `role`"),
    "jsonl parts": ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "type text without"),
    "jsonl image": (
        '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        "part of type 'image_url', and only text",
    ),
    "jsonl null content": ('{"messages": [{"role": "user", "content": null}]}', "a text `content`"),
    "jsonl two meanings": (
        '{"prompt": "one", "messages": [{"role": "user", "content": "two"}]}',
        "its `messages` and its `prompt` differ",
    ),
    "half a surrogate pair": ('{"text": "ab\\ud800c"}', r"character 2 \(U\+D800\) is half of a surrogate pair"),
    "a row of rows": ('{"text": ["a"]}', "its `text` is list, not text"),
    "nobody's turn": ('[{"conversations": [{"from": "moderator", "value": "x"}]}]', "whether 'moderator' asks or"),
    "deep": ('{"text": ' + "[" * 100_000, "line 1 is not JSON"),
    "packed and cut": (gzip.compress(GOOD.encode() * 9)[:-9], "can not be read"),
    "packed and broken": (gzip.compress(GOOD.encode() * 9)[:20] + b"x" * 9, "can not be read"),
    "latin-1": ("caf\xe9 au lait".encode("latin-1"), "is not text in UTF-8 .*at byte 3"),
    "jsonl pretty": ('{\n "messages": []\n}', "line 1 is not JSON"),
    "jsonl message a text": (GOOD + '{"messages": ["hi"]}', "line 2: each message must be an object"),
    "jsonl then binary": (GOOD.encode() + b"\xff\xfe\n", "(?i)utf-8"),
    "sharegpt other key": (json.dumps([_turns("a"), {"question": "x"}]), "item 1: it has none of the keys"),
    "sharegpt of numbers": ("[1]", "item 0: it is no JSON object"),
    "sharegpt turn a text": ('[{"conversations": ["hi"]}]', "item 0"),
    "sharegpt turn empty": ('[{"conversations": [{"from": "human"}]}]', "item 0"),
    "sharegpt wrong in the middle": (MIDDLE, "after 1 items"),
    "sharegpt bad letter": (SHAREGPT.replace("é".encode(), b"\xff"), "after 1 items"),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD.keys())
def test_a_file_without_prompts_is_refused_with_the_place(tmp_path: Path, content: Any, words: str) -> None:
    source = _file(tmp_path, content)
    with pytest.raises(UserError, match=words) as error:
        read_prompts(source)
    assert source in error.value.problem


def test_jsonl_with_a_byte_order_mark_is_jsonl(tmp_path: Path) -> None:
    assert _texts(_file(tmp_path, b"\xef\xbb\xbf" + GOOD.encode())) == ["hi"]


def test_a_missing_file_and_an_empty_split_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no prompts file nowhere\.jsonl\."):
        read_prompts("nowhere.jsonl")
    with pytest.raises(UserError, match="There is no prompts file"):
        read_prompts(str(tmp_path))
    train = next(text for text in ("a", "b", "c") if not prompt_of([_user(text)]).heldout)
    with pytest.raises(UserError, match="holds no prompts of the split heldout"):
        read_prompts(_file(tmp_path, train), split="heldout")


def test_an_empty_answer_is_kept_and_an_empty_question_is_not_asked(tmp_path: Path) -> None:
    rows = [[_user("one"), {"role": "assistant", "content": ""}], [_user(" ")]]
    source = _file(tmp_path, "\n".join(json.dumps({"messages": row}) for row in rows))
    assert [len(prompt.messages) for prompt in read_prompts(source, answered=True)] == [2, 1]
    assert [len(prompt.messages) for prompt in read_prompts(source)] == [1]
