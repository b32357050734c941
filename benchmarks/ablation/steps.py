"""From the paper's method to ours, one change at a time: the recipe fields that each step sets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One change. `fields` are recipe fields; `steered` says whether pruning ends at the common target."""

    name: str
    title: str
    fields: tuple[str, ...]
    steered: bool = True


def steps(retrain: int, finetune: int) -> list[Step]:
    """All steps, for so many epochs of each phase."""
    return [
        Step(
            "paper",
            "the paper's, shortened",
            (
                f"retrain.epochs={retrain}",
                f"finetune.epochs={finetune}",
                "retrain.interval=1",
                "retrain.gamma=1e-4",
                "prune.threshold=1.0",
                "prune.scope=layer",
            ),
            steered=False,
        ),
        # From here on all end at the same MACs, so that their accuracies can be compared.
        Step("target", "pruned to the same MACs", ()),
        Step("gamma", "γ scaled to the schedule", ("retrain.gamma=0", "retrain.pull=0.1")),
        Step("unit-norm", "bases of unit norm", ("retrain.unit_norm=true",)),
        Step("gradual", "pruned bit by bit", ("retrain.gradual=true", "retrain.until=0.95")),
        Step(
            "together", "no L1, A and B together", ("retrain.interval=0", "retrain.regulariser=none", "retrain.pull=0")
        ),
        Step(
            "rates",
            "higher rate, cosine fine-tune",
            (
                "optimiser.nesterov=true",
                "retrain.learning_rate=0.03",
                "retrain.schedule=constant",
                "finetune.learning_rate=0.04",
                "finetune.schedule=cosine",
            ),
        ),
        Step("global", "ranked over all layers", ("prune.scope=global",)),
        Step("balanced", "ranked for MACs and parameters", ("prune.scope=balanced",)),
        Step("distilled", "taught by the base network", ("retrain.distillation=0.7", "finetune.distillation=0.7")),
        Step("four", "four basis kernels, not five", ("decompose.bases=4",)),
    ]


def fields_up_to(all_steps: list[Step], name: str) -> dict[str, str]:
    """Every field that is set at a step, later ones over earlier ones."""
    fields: dict[str, str] = {}
    for step in all_steps:
        fields.update(field.split("=", 1) for field in step.fields)  # type: ignore[arg-type]
        if step.name == name:
            return fields
    raise KeyError(name)
