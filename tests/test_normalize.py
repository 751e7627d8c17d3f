"""Every known format becomes the same conversation; everything else gets its reason."""

import json
import pickle
from typing import Any

import pytest

from sft_exp.conversation import BadRow, Conversation, UnknownColumns
from sft_exp.normalize import normalize

ASK, SAY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
SYSTEM = {"role": "system", "content": "s"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def norm(value: Any, role_map: dict[str, str] | None = None, columns: dict[str, str] | None = None) -> Conversation:
    return normalize(value, role_map=role_map or {}, columns=columns or {})


def turns(*roles: str) -> list[dict[str, Any]]:
    return [{"from": role, "value": f"{at}"} for at, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("value", "name", "messages"),
    [
        ({"messages": [ASK, SAY], "prompt": "stray", "text": "stray"}, "messages", [ASK, SAY]),
        ({"messages": json.dumps([ASK, SAY])}, "messages", [ASK, SAY]),
        ({"conversations": [ASK, SAY]}, "messages", [ASK, SAY]),
        ({"conversation": [ASK, SAY], "system": "s"}, "messages", [SYSTEM, ASK, SAY]),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, "sharegpt", [ASK, SAY]),
        ({"instruction": "q", "input": "", "output": "a", "system": "s"}, "alpaca", [SYSTEM, ASK, SAY]),
        ({"instruction": "", "input": "q", "output": "a"}, "alpaca", [ASK, SAY]),
        ({"prompt": "q", "completion": "a"}, "prompt_completion", [ASK, SAY]),
        ({"question": "q", "answer": "a", "id": 3}, "question_answer", [ASK, SAY]),
        ({"query": "q", "response": "a", "history": [["q", "a"]]}, "query_response", [ASK, SAY, ASK, SAY]),
        ({"query": "q", "response": "a", "history": []}, "query_response", [ASK, SAY]),
        ({"text": "a"}, "text", [SAY]),
        ({"messages": None, "instruction": "", "output": "", "text": "a"}, "text", [SAY]),
    ],
)
def test_formats(value: dict[str, Any], name: str, messages: list[dict[str, Any]]) -> None:
    conversation = norm(value)
    assert conversation.format == name and conversation.messages == messages and conversation.repairs == []


def test_alpaca_joins_instruction_and_input() -> None:
    assert norm({"instruction": "i", "input": "x", "output": "o"}).messages[0]["content"] == "i\n\nx"


def test_roles() -> None:
    names = ["human", "GPT", "prompter", "bot", "user", "model", "human", "chatgpt", "observation", "assistant"]
    roles = [message["role"] for message in norm({"conversations": turns(*names)}).messages]
    assert roles == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    mapped = norm({"conversations": turns("moderator", "human", "gpt")}, {"moderator": "system"})
    assert mapped.messages[0]["role"] == "system"
    with pytest.raises(BadRow, match=r"'moderator'.*dataset\.role_map\.moderator=user"):
        norm({"conversations": turns("moderator", "human", "gpt")})


def test_columns() -> None:
    names = {"title": "prompt", "body": "completion"}
    assert norm({"title": "q", "body": "a"}, columns=names).messages == [ASK, SAY]
    keys = {"dialog": "messages", "speaker": "role", "said": "content"}
    said = [{"speaker": "user", "said": "q"}, {"speaker": "assistant", "said": "a"}]
    assert norm({"dialog": said}, columns=keys).messages == [ASK, SAY]
    with pytest.raises(UnknownColumns, match="title, body"):
        norm({"title": "q", "body": "a"})


@pytest.mark.parametrize(
    ("value", "reason", "detail"),
    [
        ([ASK, SAY], "wrong_type", "a list"),
        (None, "wrong_type", "null"),
        ({}, "wrong_type", "none"),
        ({"messages": [ASK, {"role": "assistant", "content": 42}]}, "wrong_type", "content of message 2 is '42' (int)"),
        ({"messages": [ASK, {"content": "a"}]}, "wrong_type", "role of message 2 is null"),
        ({"messages": [ASK, "a"]}, "wrong_type", "message 2 is 'a'"),
        ({"messages": {"a": 1}}, "wrong_type", "an object, not a list"),
        ({"messages": 7}, "wrong_type", "'7' (int)"),
        ({"messages": "[{"}, "invalid_json", "messages"),
        ({"messages": '[{"role":"user","content":"\\ud83d"},{"role":"gpt","content":"a"}]'}, "invalid_text", "half"),
        ({"messages": [{"role": "user", "content": None}, SAY]}, "empty_content", "message 1 is null"),
        ({"messages": [ASK, {"role": "assistant", "content": " \n"}]}, "empty_content", "message 2 is empty"),
        ({"messages": [ASK, {"role": "assistant", "content": []}]}, "empty_content", "message 2"),
        ({"messages": [ASK]}, "no_assistant_turn", "none of them"),
        ({"messages": []}, "no_assistant_turn", "0 messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, SAY]}, "wrong_type", "'image_url'"),
        ({"messages": [ASK, {"role": "assistant", "tool_calls": [{"function": {}}]}]}, "wrong_type", "function name"),
        ({"messages": [ASK, SAY], "tools": {"a": 1}}, "wrong_type", "tools"),
        ({"prompt": "q", "completion": None}, "empty_content", "completion is null"),
        ({"instruction": "", "input": "", "output": "a"}, "empty_content", "instruction"),
        ({"query": "q", "response": "a", "history": ["x"]}, "wrong_type", "history"),
        ({"text": ["a"]}, "wrong_type", "only text"),
        ({"text": "  "}, "empty_content", "text"),
    ],
)
def test_bad_rows(value: Any, reason: str, detail: str) -> None:
    with pytest.raises(BadRow) as caught:
        norm(value)
    assert caught.value.reason == reason and detail in caught.value.detail


def test_repairs() -> None:
    trailing = norm({"conversations": turns("human", "gpt", "human")})
    assert len(trailing.messages) == 2 and trailing.repairs == ["trailing_user_turn"]
    merged = norm({"conversations": turns("human", "human", "gpt", "gpt")})
    assert [message["content"] for message in merged.messages] == ["0\n\n1", "2\n\n3"]
    assert merged.repairs == ["merged_same_role"]


@pytest.mark.parametrize("column", ["conversations", "conversation", "dialog", "dialogue"])
def test_columns_of_conversations(column: str) -> None:
    found = norm({column: turns("human", "gpt")})
    assert (found.format, len(found.messages)) == ("sharegpt", 2)
    assert norm({column: [ASK, SAY]}).format == "messages"
    # A summary of a dialogue, say, is no conversation.
    assert norm({column: None, "question": "q", "answer": "a", "text": "t"}).format == "question_answer"


@pytest.mark.parametrize("role_key", ["from", "role", "speaker"])
@pytest.mark.parametrize("content_key", ["value", "content", "text"])
def test_keys_of_turns(role_key: str, content_key: str) -> None:
    spelled = [{role_key: "human", content_key: "q"}, {role_key: "gpt", content_key: "a"}]
    assert norm({"conversations": spelled}).messages == [ASK, SAY]
    others = {"role": None, "from": None, "speaker": None, "content": None, "value": None, "text": None}
    assert norm({"conversations": [{**others, **turn} for turn in spelled]}).messages == [ASK, SAY]


@pytest.mark.parametrize(
    ("spelling", "role"),
    [
        *((name, "system") for name in ("system", "developer")),
        *((name, "user") for name in ("user", "human", "prompter", " Human ", "USER")),
        *(
            (name, "assistant")
            for name in ("assistant", "gpt", "chatgpt", "bing", "bard", "bot", "chatbot", "model", "ai")
        ),
        *((name, "tool") for name in ("tool", "tool_response", "function", "function_response", "observation")),
        *((name, "tool") for name in ("ipython", "environment")),
    ],
)
def test_spellings_of_roles(spelling: str, role: str) -> None:
    first = norm({"conversations": [{"from": spelling, "value": "x"}, *turns("human", "gpt")]}).messages[0]
    assert first["role"] == role and first["content"].startswith("x")


@pytest.mark.parametrize("keys", [("human", "assistant"), ("input", "output")])
def test_turns_that_hold_question_and_answer(keys: tuple[str, str]) -> None:
    asked, answered = keys
    pair = {asked: "q", answered: "a"}
    found = norm({"conversation": [{"system": "s", **pair}, {"system": "", **pair}]})
    assert (found.format, found.messages) == ("sharegpt", [SYSTEM, ASK, SAY, ASK, SAY])
    with pytest.raises(BadRow, match="message 2 is empty"):
        norm({"conversation": [{asked: "q", answered: ""}]})


def test_content_parts() -> None:
    parts = [{"type": "text", "text": "One "}, {"text": "two"}]
    assert norm({"messages": [{"role": "user", "content": parts}, SAY]}).messages[0]["content"] == "One two"


def test_tool_calls() -> None:
    text_call = {"id": "c1", "function": {"name": "f", "arguments": '{"x": 1}'}}
    result = {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "f"}
    messages = [ASK, {"role": "assistant", "content": None, "tool_calls": [text_call]}, result, result, SAY]
    found = norm({"messages": messages, "tools": '[{"name": "f"}]'})
    assert found.messages[1] == {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": "c1"}]}
    assert found.messages[2:4] == [result, result] and found.tools == [{"name": "f"}] and not found.repairs


@pytest.mark.parametrize("name", ["function_call", "tool_call", "Tool_Call"])
def test_tool_calls_of_sharegpt(name: str) -> None:
    call = {"name": "f", "arguments": {"x": 1}}

    def calls(*values: Any) -> Any:
        made = [{"from": name, "value": value} for value in values]
        return norm({"conversations": [*turns("human"), *made, *turns("observation", "gpt")]}).messages[1]

    assert calls(json.dumps(call)) == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert calls(call)["tool_calls"] == calls([call])["tool_calls"] == [CALL]
    assert calls(json.dumps([call, call]))["tool_calls"] == [CALL, CALL]
    assert calls(json.dumps(call), json.dumps(call))["tool_calls"] == [CALL, CALL]  # calls in parallel
    for wrong, problem in [("f(1)", "not JSON"), ("3", "no function name"), (7, "no function name"), ("", "is empty")]:
        with pytest.raises(BadRow, match=problem):
            calls(wrong)


def test_function_call_of_openai() -> None:
    call = {"name": "f", "arguments": '{"x": 1}'}
    turns = [
        ASK,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "content": "1"},
        SAY,
    ]
    found = norm({"messages": turns})
    assert found.messages[1]["tool_calls"] == [CALL] and found.messages[2]["role"] == "tool"
    assert norm({"messages": [ASK, {**SAY, "function_call": None}]}).messages == [ASK, SAY]


def test_equal_conversations_have_equal_digests() -> None:
    first, second = norm({"messages": [ASK, SAY], "id": 1}), norm({"question": "q", "answer": "a"})
    assert first.digest == second.digest != norm({"text": "a"}).digest


def test_bad_rows_can_be_sent_between_processes() -> None:
    error = pickle.loads(pickle.dumps(BadRow("wrong_type", "x")))
    assert (error.reason, error.detail) == ("wrong_type", "x")
