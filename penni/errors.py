"""The errors a user can mend: each says what is wrong and what to do, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class PenniError(Exception):
    """Something the user gave cannot be worked with. The command line prints it and exits with code 2."""


class UnknownOperatorError(PenniError):
    """The graph holds an operator that this part of penni does not know, and so will not guess at."""


class DiffersError(PenniError):
    """A self-check failed: the rewritten network does not answer as the one given."""


def nearest(name: str, known: Iterable[str], within: str = "") -> str:
    """A hint that names the closest known word, or all of them: to be appended to an error.

    Of words with dots the last parts are compared too: `gama` is near `retrain.gamma`. `within` is put before the
    word that is named.
    """
    words = sorted(known)

    def likeness(word: str) -> float:
        pairs = {(name, word), (name.rpartition(".")[2], word.rpartition(".")[2])}
        return max(SequenceMatcher(None, *pair).ratio() for pair in pairs)

    best = max(words, key=likeness, default="")
    return f"did you mean '{within}{best}'?" if best and likeness(best) >= 0.5 else f"known are {', '.join(words)}"


def in_frames(error: BaseException, kind: type[T]) -> Iterator[T]:
    """The local variables of a kind where `error` was raised, and in the callers of that place: the innermost first.

    What the system or another library raises often does not say what it was working on; this finds it.
    """
    frames: list[dict[str, Any]] = []
    place: TracebackType | None = error.__traceback__
    while place is not None:
        frames.append(place.tb_frame.f_locals)
        place = place.tb_next
    for variables in reversed(frames):
        yield from (value for value in variables.values() if isinstance(value, kind))
