"""fedbench: federated-learning experiments whose comparisons can be trusted."""

__version__ = "0.1.0"
