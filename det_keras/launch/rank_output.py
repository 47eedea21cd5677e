"""The lines that the ranks of a job print, each marked with its rank."""

from __future__ import annotations

import os
import select

from det_keras.protocol.log_lines import Redraws, newest

_NEWLINE = b"\n"
# A longer line is split, so that a rank that prints no newline does not fill the memory.
_LONGEST_LINE_BYTES = 1 << 20
# What a line shows after it was drawn anew is shorter.
_LONGEST_DRAWN_BYTES = 1 << 13


class OutputStream:
    """A stream of this process that receives whole lines.

    When the stream has no reader any more, output is dropped: a closed terminal does not end a training.

    Args:
        descriptor: file descriptor of the stream.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_broken = False

    def write(self, data: bytes) -> None:
        """Write all of `data`, waiting for a slow reader."""
        rest = memoryview(data)
        while rest and not self._is_broken:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError:
                self._is_broken = True


class RankLines:
    """Passes on the lines of one rank's stream as ``[rank=R] line``.

    Bytes are unchanged; only a last line without a newline gets one, so that the next output starts on a new line. Of a
    line that is drawn anew, its last state is passed on, and its newest now and then before it ends.

    Args:
        rank: the rank that prints.
        output: the stream that receives the lines.
    """

    def __init__(self, rank: int, output: OutputStream) -> None:
        self._mark = b"[rank=%d] " % rank
        self._output = output
        self._rest = bytearray()
        self._redraws = Redraws()

    def feed(self, data: bytes) -> None:
        """Pass on the lines that `data` completes."""
        end = data.rfind(_NEWLINE)
        if end < 0:
            self._rest += data
            self._show_redrawn(is_new=False)
            if len(self._rest) > _LONGEST_LINE_BYTES:
                self.finish()
            return
        lines = (bytes(self._rest) + data[:end]).split(_NEWLINE)
        self._rest = bytearray(data[end + 1 :])
        self._output.write(b"".join(self._mark + newest(line) + _NEWLINE for line in lines))
        self._show_redrawn(is_new=True)

    def _show_redrawn(self, *, is_new: bool) -> None:
        shown = self._redraws.take(bytes(self._rest[-_LONGEST_DRAWN_BYTES:]), is_new=is_new)
        if shown is not None:
            self._output.write(self._mark + shown + _NEWLINE)

    def finish(self) -> None:
        """Pass on a last line that has no newline, if there is one."""
        if self._rest:
            self._output.write(self._mark + newest(bytes(self._rest)) + _NEWLINE)
            self._rest.clear()
