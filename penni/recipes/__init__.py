"""The settings of a run: what each phase does, read from TOML files or overridden by hand."""

from penni.recipes.load import names, override, read, with_target
from penni.recipes.settings import Decompose, Finetune, Optimiser, Prune, Recipe, Retrain

__all__ = [
    "Decompose",
    "Finetune",
    "Optimiser",
    "Prune",
    "Recipe",
    "Retrain",
    "names",
    "override",
    "read",
    "with_target",
]
