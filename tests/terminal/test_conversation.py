from __future__ import annotations

import pytest

from minka.chat.messages import Message
from minka.errors import UsageError
from minka.terminal.conversation import Attachment, Conversation


def test_a_conversation_grows_turn_by_turn_behind_its_system_message() -> None:
    talk = Conversation("Be short.").asked("hi").answered("hello").asked("and?")
    assert talk.messages == (
        Message("system", "Be short."),
        Message("user", "hi"),
        Message("assistant", "hello"),
        Message("user", "and?"),
    )
    assert talk.is_unanswered
    assert not talk.answered("").is_unanswered


def test_asking_changes_nothing_in_the_conversation_that_was_asked() -> None:
    before = Conversation(attached=(Attachment("a.txt", "A"),))
    asked = before.asked("hi")
    assert before.turns == ()
    assert before.attached
    assert asked.attached == ()


def test_attached_files_go_in_front_of_the_next_message() -> None:
    talk = Conversation(attached=(Attachment("a.txt", "one"), Attachment("b.txt", "two\n"))).asked("compare")
    assert talk.turns[0].content == "--- File: a.txt ---\none\n--- File: b.txt ---\ntwo\ncompare"


def test_reopening_drops_the_answer_and_keeps_the_question() -> None:
    talk = Conversation("s").asked("hi").answered("hello")
    assert talk.reopened() == Conversation("s").asked("hi")
    assert talk.reopened().reopened() == talk.reopened()


@pytest.mark.parametrize("talk", [Conversation(), Conversation("s"), Conversation().answered("unasked")])
def test_nothing_to_reopen(talk: Conversation) -> None:
    with pytest.raises(UsageError, match="no message to answer again"):
        talk.reopened()


def test_clearing_keeps_the_system_message_only() -> None:
    talk = Conversation("s", attached=(Attachment("a", "b"),)).asked("hi")
    assert talk.cleared() == Conversation("s")


def test_of_takes_a_system_message_from_the_front_only() -> None:
    system, user = Message("system", "s"), Message("user", "u")
    assert Conversation.of([system, user]) == Conversation("s", (user,))
    assert Conversation.of([user, system]) == Conversation(None, (user, system))
    assert Conversation.of([]) == Conversation()
