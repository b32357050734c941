"""The errors a user can mend: each says what is wrong and what to do, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PenniError(Exception):
    """Something the user gave cannot be worked with. The command line prints it and exits with code 2."""


class UnknownOperatorError(PenniError):
    """The graph holds an operator that this part of penni does not know, and so will not guess at."""


class DiffersError(PenniError):
    """A self-check failed: the rewritten network does not answer as the one given."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the closest known word, or all of them: to be appended to an error."""
    words = sorted(known)
    close = get_close_matches(name, words, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known are {', '.join(words)}"
