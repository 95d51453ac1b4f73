"""fedbench: federated-learning experiments whose comparisons can be trusted.

The names below are the Python interface (docs/python.md). Each is imported when it is first used,
so that `import fedbench` takes no time; `__init__.pyi` says the same to type checkers and editors.
"""

from importlib import import_module

__version__ = "0.1.0"

_MODULES = {
    "fedbench.api": ("Run", "load_runs", "run"),
    "fedbench.core.errors": ("BadInput", "Interrupted", "MachineFault"),
    "fedbench.algorithms.modifier": ("Modifier", "Needs", "OnLastLayers", "last_layers"),
    "fedbench.algorithms.aggregate": ("Mean",),
    "fedbench.algorithms.server_optimizer": ("Add",),
    "fedbench.algorithms.local_phases": ("Joint", "Phase"),
    "fedbench.core.fields": ("choice", "count", "number"),
    "fedbench.algorithms.context": (
        "BindContext",
        "ClientResult",
        "Clients",
        "LocalRun",
        "Memory",
        "RoundPlan",
        "State",
        "StepPlan",
    ),
    "fedbench.core.flat_model": ("FlatModel", "Selection"),
    "fedbench.core.model": ("Model",),
    "fedbench.models.base": ("ModelSettings",),
    "fedbench.data.dataset": ("Dataset", "DatasetSettings", "assemble"),
    "fedbench.partitions.base": ("Draw", "Partition", "PartitionSettings", "Split"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedbench' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
