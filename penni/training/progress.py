"""Show how training goes: bars on a terminal, a line per epoch elsewhere, nothing for silent runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

Tick = Callable[..., None]

_SECONDS_BETWEEN_LINES = 60


class Progress(Protocol):
    """Where training tells how it goes."""

    def epoch(self, phase: str, epoch: int, epochs: int, steps: int) -> contextlib.AbstractContextManager[Tick]:
        """Around an epoch; the tick is called after every step with what to show."""
        ...

    def finished(self, record: dict[str, Any]) -> None:
        """An epoch's record is complete."""
        ...

    def say(self, text: str) -> None:
        """Something happened between epochs."""
        ...


class ConsoleProgress:
    """Progress for people."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)

    @contextlib.contextmanager
    def epoch(self, phase: str, epoch: int, epochs: int, steps: int) -> Iterator[Tick]:
        """A bar with loss, accuracy, sparsity and the time left; away from a terminal a line a minute."""
        if not self.console.is_terminal:
            yield self._lines(f"{phase} {epoch + 1}/{epochs}", steps)
            return
        columns = (
            TextColumn(f"{phase} {epoch + 1}/{epochs}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  accuracy {task.fields[accuracy]:.2%}{task.fields[kept]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Bars(*columns, console=self.console, transient=True) as bars:
            task = bars.add_task(phase, total=steps, loss=float("nan"), accuracy=0.0, kept="")

            def tick(*, loss: float, accuracy: float, kept: float | None) -> None:
                bars.update(task, advance=1, loss=loss, accuracy=accuracy, kept=_kept(kept))

            yield tick

    def _lines(self, title: str, steps: int) -> Tick:
        begun = said = time.monotonic()
        done = 0

        def tick(*, loss: float, accuracy: float, kept: float | None) -> None:
            nonlocal done, said
            done += 1
            now = time.monotonic()
            if now - said >= _SECONDS_BETWEEN_LINES and done < steps:
                said = now
                left = (now - begun) / done * (steps - done)
                self.say(
                    f"{title}  step {done} of {steps}  loss {loss:.3f}  accuracy {accuracy:.2%}{_kept(kept)}  "
                    f"{left:.0f} s left in this epoch"
                )

        return tick

    def finished(self, record: dict[str, Any]) -> None:
        """One line: what the epoch reached."""
        text = (
            f"{record['phase']} {record['epoch']:>3}  loss {record['loss']:.4f}  "
            f"train {record['train_accuracy']:.2%}  test {record['test_accuracy']:.2%}"
        )
        if "density" in record:
            text += f"  kept {record['density']:.1%}"
        if "trains" in record:
            text += f"  trains {record['trains']}"
        self.say(f"{text}  {record['seconds']:.0f} s")

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _kept(share: float | None) -> str:
    return "" if share is None else f"  kept {share:.1%}"


class _Silent:
    @contextlib.contextmanager
    def epoch(self, phase: str, epoch: int, epochs: int, steps: int) -> Iterator[Tick]:
        yield lambda **_shown: None

    def finished(self, record: dict[str, Any]) -> None:
        pass

    def say(self, text: str) -> None:
        pass


def silent() -> Progress:
    """Progress that shows nothing."""
    return _Silent()
