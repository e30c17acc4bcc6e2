"""The streamed events of chats and completions, each read in one pass where the scanner can tell what it says."""

from __future__ import annotations

from typing import Any

from .params import told_handle
from .plans import (
    EVENT,
    EVENT_CHOICES,
    EVENT_COMPLETION_TOKENS,
    EVENT_CONTENT,
    EVENT_CONTENT_STOP,
    EVENT_DELTA,
    EVENT_ERROR,
    EVENT_FINISH_REASON,
    EVENT_HANDLE,
    EVENT_MESSAGE,
    EVENT_PROMPT_TOKENS,
    EVENT_REASONING,
    EVENT_REASONING_CONTENT,
    EVENT_TEXT,
    EVENT_TEXT_STOP,
    EVENT_TOOL_CALLS,
    EVENT_USAGE,
)
from .reply import DONE, Observer
from .scanner import scan
from .shapes import Usage
from .splice import FINISHED_BY_ERROR


class EventObserver(Observer):
    """See `Observer`, which reads what is not told here: tool calls, several choices, texts spelt otherwise."""

    __slots__ = ()

    def see(self, data: bytes, start: int, stop: int) -> bytes | None:
        """See `Observer`."""
        if stop - start == len(DONE) and data[start:stop] == DONE:
            self.spoke = self.ended = True
            return None
        found = scan(EVENT, data, start, stop)
        if found is None or found[EVENT_TOOL_CALLS] or found[EVENT_MESSAGE] is not None:
            return super().see(data, start, stop)
        cut = found[EVENT_HANDLE]
        if cut is not None:
            handle = told_handle(data, found, EVENT_HANDLE)
            if handle is None:
                return super().see(data, start, stop)
            self.held, self.handle = handle, handle.encode()
        self._take(found, data, start, stop)
        if cut is None:
            return None
        cut_stop: int = found[EVENT_HANDLE + 1]
        return b"".join((data[start:cut], b"null", data[cut_stop:stop]))

    def _take(self, found: list[Any], data: bytes, start: int, stop: int) -> None:
        """Take what an event says; keep what is around its text, where the next may be equal but for that."""
        if found[EVENT_ERROR] is not None:
            self.failed = True
        counted = found[EVENT_USAGE] is not None
        if counted:
            self.usage = Usage(found[EVENT_PROMPT_TOKENS] or 0, found[EVENT_COMPLETION_TOKENS] or 0)
        if not found[EVENT_CHOICES]:
            self.spoke = True
            return
        finish = found[EVENT_FINISH_REASON]
        if finish == FINISHED_BY_ERROR:
            self.failed = True
        streamed = found[EVENT_DELTA] is not None
        text_start = found[EVENT_CONTENT if streamed else EVENT_TEXT]
        if text_start is not None:
            text_stop: int = found[EVENT_CONTENT_STOP if streamed else EVENT_TEXT_STOP]
            if text_stop > text_start:
                self.spoke = True
                self.reply.say_escaped(data[text_start:text_stop])
                if not counted and found[EVENT_HANDLE] is None:
                    self.before, self.after = data[start:text_start], data[text_stop:stop]
                return
        if not streamed or finish is not None or found[EVENT_REASONING] or found[EVENT_REASONING_CONTENT]:
            self.spoke = True
