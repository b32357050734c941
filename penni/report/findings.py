"""What a run left behind, read from its folder: events, epochs, networks, and what each layer costs."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penni.basis import BasisConv2d, basis_layers, principal_kernels
from penni.checkpoint import STRUCTURE, WEIGHTS, load, read_structure
from penni.errors import PenniError
from penni.measure.count import LayerCount, count
from penni.models import example_input
from penni.recipes import Recipe, read

# The networks of a run, in the order in which they come about, and the folder of each.
STAGES = ("base", "decomposed", "retrained", "pruned", "finetuned", "checkpoint")
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class LayerRow:
    """One layer: in the network given, before shrinking, and after. None where a stage does not have it."""

    name: str
    kernel: str
    base: LayerCount
    before: LayerCount | None
    after: LayerCount | None
    decomposed: bool


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a layer's kernels as shares of the largest, and the error that d basis kernels leave."""

    name: str
    bases: int
    values: tuple[float, ...]
    errors: tuple[float, ...]


@dataclass
class Findings:
    """Everything the report shows that comes from the run itself."""

    folder: Path
    recipe: Recipe
    events: dict[str, dict[str, Any]]
    epochs: list[dict[str, Any]]
    networks: dict[str, nn.Module]
    notes: dict[str, Any]
    example: Tensor
    layers: list[LayerRow]
    spectra: list[Spectrum]
    bytes: dict[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the run went through to the shrunk network."""
        return "shrunk" in self.events

    @property
    def first(self) -> dict[str, Any]:
        """The network given."""
        return self.events["base"]

    @property
    def last(self) -> dict[str, Any]:
        """Where the run ended, or stands."""
        return list(self.events.values())[-1]

    @property
    def final(self) -> nn.Module:
        """The newest network."""
        return list(self.networks.values())[-1]


def read_run(folder: str | Path, model: nn.Module | None = None) -> Findings:
    """The findings of the run in `folder`; `model` is needed only if its checkpoints do not say how it is built."""
    folder = Path(folder)
    if not folder.is_dir():
        raise PenniError(f"there is no run folder '{folder}'")
    if not (folder / METRICS).is_file() or not (folder / "base" / STRUCTURE).is_file():
        raise PenniError(f"'{folder}' is not the folder of a compression run: it has no {METRICS} or no base network")
    events, epochs = _records(folder / METRICS)
    if "base" not in events or "decomposed" not in events:
        raise PenniError(f"the run in '{folder}' has not begun: there is nothing to report yet")
    networks = {
        stage: load(folder / stage, model=copy.deepcopy(model))
        for stage in STAGES
        if (folder / stage / STRUCTURE).is_file()
    }
    notes = read_structure(folder / "base").get("notes") or {}
    shape = notes.get("input")
    size = "x".join(map(str, shape)) if isinstance(shape, list) else None
    example = example_input(networks["base"], size)
    return Findings(
        folder=folder,
        recipe=read(folder / "recipe.toml"),
        events=events,
        epochs=epochs,
        networks=networks,
        notes=dict(notes),
        example=example,
        layers=_layers(networks, example),
        spectra=_spectra(networks),
        bytes={stage: (folder / stage / WEIGHTS).stat().st_size for stage in networks},
    )


def _records(file: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    events: dict[str, dict[str, Any]] = {}
    epochs = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise PenniError(f"'{file}' is damaged in line {number}: {error}") from error
        if "event" in record:
            events[record["event"]] = record
        elif "phase" in record:
            epochs.append(record)
    return events, epochs


def _layers(networks: Mapping[str, nn.Module], example: Tensor) -> list[LayerRow]:
    counted = {stage: {layer.name: layer for layer in count(m, example).layers} for stage, m in networks.items()}
    unshrunk = [stage for stage in networks if stage != "checkpoint"][-1]
    decomposed = basis_layers(networks["decomposed"]) if "decomposed" in networks else {}
    rows = []
    for name, base in counted["base"].items():
        rows.append(
            LayerRow(
                name=name,
                kernel=_kernel(networks["base"].get_submodule(name)),
                base=base,
                before=counted[unshrunk].get(name),
                after=counted["checkpoint"].get(name) if "checkpoint" in counted else None,
                decomposed=name in decomposed,
            )
        )
    return rows


def _kernel(layer: nn.Module) -> str:
    size = getattr(layer, "kernel_size", None)
    return "×".join(map(str, size)) if isinstance(size, tuple) else "linear"


@torch.no_grad()
def _spectra(networks: Mapping[str, nn.Module]) -> list[Spectrum]:
    found = []
    for name, layer in basis_layers(networks.get("decomposed", nn.Identity())).items():
        original = networks["base"].get_submodule(name)
        if layer.is_pointwise or not isinstance(original, nn.Conv2d | BasisConv2d):
            continue
        kernels = original.weight.detach().double().reshape(-1, layer.kernel_size[0] * layer.kernel_size[1])
        values = principal_kernels(kernels)[0]
        energy = values.square()
        left = (energy.sum() - energy.cumsum(0)).clamp_min(0) / energy.sum().clamp_min(1e-300)
        shares = (values / values[0].clamp_min(1e-300)).tolist()
        found.append(Spectrum(name, layer.bases, tuple(shares), tuple(left.sqrt().tolist())))
    return found
