"""Reading outputs."""

from collections.abc import Iterator

from blockx_worker.plugins.rows import OutputCursor
from tests.plugins.helpers import Outputs


class Counted(Outputs):
    """Outputs that note where each reading starts."""

    def __init__(self, count: int) -> None:
        super().__init__(list(range(count)))
        self.starts: list[int] = []

    def lines(self, start: int = 0) -> Iterator[bytes]:
        self.starts.append(start)
        return super().lines(start)


def take(cursor: OutputCursor, start: int, count: int) -> list[tuple[int, bytes]]:
    return [found for found, _ in zip(cursor.lines(start), range(count), strict=False)]


def test_going_forwards_never_starts_anew_and_going_back_does() -> None:
    outputs = Counted(10)
    cursor = OutputCursor(outputs)
    assert take(cursor, 0, 2) == [(0, b"0"), (1, b"1")]
    assert next(cursor.lines(5)) == (5, b"5")
    assert next(cursor.lines(6)) == (6, b"6")
    assert outputs.starts == [0]
    assert list(cursor.lines(8)) == [(8, b"8"), (9, b"9")]
    assert list(cursor.lines(9)) == [(9, b"9")]
    assert list(cursor.lines(12)) == []
    assert outputs.starts == [0, 9]
