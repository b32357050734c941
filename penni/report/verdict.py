"""The verdict in words: what was gained, what it cost, and what limits it."""

from __future__ import annotations

from penni.report.findings import Findings
from penni.report.measurements import Measurements
from penni.report.words import milliseconds

# From this share on, one layer is worth naming.
_MUCH = 0.1


def verdict(run: Findings, measured: Measurements) -> list[str]:
    """A few sentences, each from the run's own figures."""
    first, last = run.first, run.last
    sentences = []
    if not run.finished:
        sentences.append(
            f"This run is not finished: its last step was “{last['event']}”, and what follows describes that state."
        )
        if run.epochs:
            newest = run.epochs[-1]
            left = f", {newest['density']:.2%} of the coefficients not zero" if "density" in newest else ""
            sentences.append(
                f"It stands in epoch {newest['epoch']} of “{newest['phase']}”, with a test accuracy of "
                f"{newest['test_accuracy']:.2%}{left}."
            )
    sentences.append(
        f"The network has {last['params']:,} of {first['params']:,} parameters "
        f"({_change(last['params'], first['params'])}) and does {last['macs'] / 1e6:,.2f} of "
        f"{first['macs'] / 1e6:,.2f} million multiply-accumulates ({_change(last['macs'], first['macs'])})."
    )
    points = 100 * (last["test_accuracy"] - first["test_accuracy"])
    so_far = "" if run.finished else " so far"
    cost = f"no accuracy was lost{so_far}" if points >= 0 else f"that cost {-points:.2f} points of accuracy{so_far}"
    sentences.append(f"Test accuracy went from {first['test_accuracy']:.2%} to {last['test_accuracy']:.2%}: {cost}.")
    sentences += [
        f"The target {met['target']} was set; the network ended {abs(met['difference']):.2%} "
        f"{'above' if met['difference'] > 0 else 'below'} it."
        for met in last.get("targets", ())
    ]
    sentences += _speed(run, measured)
    sentences += _limits(run, measured)
    return sentences


def _speed(run: Findings, measured: Measurements) -> list[str]:
    times = measured.milliseconds
    ours, dense = times.get("engine compressed"), times.get("engine base")
    if ours is None:
        return []
    text = f"One image takes {milliseconds(ours)} in penni's engine on one thread"
    parts = []
    if dense is not None:
        parts.append(f"{_times(dense / ours)} the dense network there")
    if "torch base" in times:
        parts.append(f"{_times(times['torch base'] / ours)} the dense network in PyTorch")
    text += " (" + ", ".join(parts) + ")." if parts else "."
    ratio = run.first["macs"] / max(1, run.last["macs"])
    if dense is not None and dense / ours < 0.6 * ratio:
        text += (
            f" That is less than the {ratio:.1f} times fewer multiply-accumulates promise: what remains is memory "
            "traffic, element-wise work and the cost of irregular zeros."
        )
    return [text]


def _limits(run: Findings, measured: Measurements) -> list[str]:
    newest = [(row, row.after or row.before) for row in run.layers]
    macs = sum(entry.macs for _, entry in newest if entry)
    sentences = []
    heaviest = max((pair for pair in newest if pair[1]), key=lambda pair: pair[1].macs if pair[1] else 0)
    if heaviest[1] and macs and heaviest[1].macs / macs >= _MUCH:
        sentences.append(
            f"The most expensive layer left is {heaviest[0].name}, with {heaviest[1].macs / macs:.0%} of the "
            "multiply-accumulates."
        )
    alone = sum(entry.macs for row, entry in newest if entry and not row.decomposed)
    if macs and alone / macs > 0.15:
        sentences.append(
            f"Layers that were not decomposed do {alone / macs:.0%} of what is left: they limit any further gain."
        )
    decomposed = [entry for row, entry in newest if entry and row.decomposed]
    first_stage = sum(entry.macs - entry.nonzero * entry.positions for entry in decomposed)
    if macs and first_stage / macs > 0.4:
        sentences.append(
            f"{first_stage / macs:.0%} of the multiply-accumulates left are convolutions with the bases, which zeros "
            "in A remove only where whole input channels go unread: fewer bases would help more than further pruning."
        )
    if "retrained" in run.events and "pruned" in run.events:
        drop = run.events["retrained"]["test_accuracy"] - run.events["pruned"]["test_accuracy"]
        if drop > 0.05:
            sentences.append(
                f"Pruning itself took {100 * drop:.1f} points away, which the fine-tune had to rebuild: a stronger "
                "penalty, or pruning gradually while retraining, would make it less of a shock."
            )
    times = measured.layer_microseconds.get("compressed")
    if times:
        name, longest = max(times.items(), key=lambda entry: entry[1])
        if longest / sum(times.values()) < _MUCH:
            return [*sentences, f"In the engine the time is spread over {len(times)} steps; none of them dominates."]
        sentences.append(
            f"In the engine the longest step is {name or 'outside any layer'}, with "
            f"{longest / sum(times.values()):.0%} of the time."
        )
    return sentences


def _change(new: float, old: float) -> str:
    return f"{new / old - 1:+.1%}".replace("-", "−")


def _times(ratio: float) -> str:
    return (
        f"{ratio:.1f} times as fast as"
        if ratio >= 1.05
        else f"{1 / ratio:.1f} times as slow as"
        if ratio < 0.95
        else "as fast as"
    )
