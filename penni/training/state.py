"""The state of a run on disk: one file that holds everything needed to go on, replaced whole after every epoch."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penni.checkpoint import writing
from penni.errors import PenniError

STATE = "state.safetensors"
METRICS = "metrics.jsonl"


@dataclass
class RunState:
    """Where a run stands: the phase, its next epoch, the records so far, the weights and the optimiser's momentum."""

    phase: str = ""
    epoch: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, model: nn.Module, optimiser: torch.optim.Optimizer | None) -> None:
        """Take the weights and the momentum of a moment between two epochs."""
        self.tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
        if optimiser is not None:
            names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
            for parameter, memory in optimiser.state.items():
                momentum = memory.get("momentum_buffer")
                if momentum is not None:
                    self.tensors[f"momentum.{names[parameter]}"] = momentum

    def restore(self, model: nn.Module, optimiser: torch.optim.Optimizer | None) -> None:
        """Put the kept weights and momentum back."""
        weights = {key[6:]: value for key, value in self.tensors.items() if key.startswith("model.")}
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise PenniError(
                f"the saved state does not fit the model: {str(error).splitlines()[-1].strip()}"
            ) from error
        if optimiser is not None:
            parameters = dict(model.named_parameters())
            for key, value in self.tensors.items():
                if key.startswith("momentum."):
                    optimiser.state[parameters[key[9:]]]["momentum_buffer"] = value.to(parameters[key[9:]].device)

    def write(self, folder: Path) -> None:
        """Replace the state in `folder`, whole or not at all; the metrics beside it follow."""
        from safetensors.torch import save_file

        about = {"phase": self.phase, "epoch": self.epoch, "records": self.records, "settings": self.settings}
        temporary = folder / f".{STATE}.tmp"
        with writing(folder / STATE):
            folder.mkdir(parents=True, exist_ok=True)
            tensors = {key: value.detach().cpu().contiguous() for key, value in self.tensors.items()}
            try:
                save_file(tensors, temporary, metadata={"run": json.dumps(about)})
                with temporary.open("rb") as stream:
                    os.fsync(stream.fileno())
                temporary.replace(folder / STATE)
            except Exception as error:
                temporary.unlink(missing_ok=True)
                if "space" in str(error).lower():  # safetensors words the system's error in its own class
                    raise PenniError(f"no disk space left to write '{folder / STATE}'; the last one is kept") from error
                raise
            self.write_metrics(folder)

    def write_metrics(self, folder: Path) -> None:
        """The records as JSON lines, for other programs."""
        temporary = folder / f".{METRICS}.tmp"
        temporary.write_text("".join(json.dumps(record) + "\n" for record in self.records))
        temporary.replace(folder / METRICS)


def read_state(folder: Path) -> RunState:
    """The state that a run left in `folder`."""
    from safetensors import SafetensorError, safe_open

    file = folder / STATE
    if not file.is_file():
        raise PenniError(f"there is no run to resume in '{folder}'")
    try:
        with safe_open(file, "pt") as content:
            about = json.loads(content.metadata()["run"])
            tensors = {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise PenniError(f"'{file}' is damaged and cannot be resumed: {error}") from error
    return RunState(tensors=tensors, **about)
