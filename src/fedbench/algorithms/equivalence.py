"""Algorithms that are FedAvg by construction, so that a run of one is a run of FedAvg.

FedBN on a network without batch norm keeps nothing on the client; FedNova with equal numbers of
steps divides by what it multiplies with; a method of strength zero does nothing. The property tests
hold each of them to FedAvg's bits.
"""

from __future__ import annotations

from fedbench.algorithms.aggregate import Mean, Nova
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.fedpgvc import Eq16
from fedbench.algorithms.local_phases import Joint
from fedbench.algorithms.server_optimizer import Add, Momentum
from fedbench.config.schema import Scalars


def why_fedavg(unbound: Algorithm, bound: Algorithm, settings: Scalars) -> str:
    """Why an algorithm of another name is FedAvg with these settings; empty where it is not.

    What depends on a seed is not looked at: FedNova's clients have equal numbers of steps when
    `client.steps` says so, and not when sizes happen to be equal.
    """
    if bound.modifiers or bound.pooled or bound.projection or type(bound.local_train) is not Joint:
        return ""
    reasons = []
    if unbound.modifiers:
        names, verb = (
            " and ".join(unbound.modifiers),
            "does" if len(unbound.modifiers) == 1 else "do",
        )
        reasons.append(f"{names} {verb} nothing with these settings")
    if bound.local in ("statistics", "batchnorm") and not bound.keeps_part:
        reasons.append("the network has no batch norm")
    elif bound.local != "none":
        return ""
    if type(bound.aggregate) is Nova and _equal_steps(settings):
        reasons.append("all clients take the same number of steps")
    elif type(bound.aggregate) is not Mean:
        return ""
    if type(bound.server_opt) is Momentum and bound.server_opt.momentum == 0:
        reasons.append("the server's momentum is 0")
    elif type(bound.server_opt) is Eq16 and (
        not bound.server_opt.literal or settings.server.lr == 1
    ):
        reasons.append("the server adds the mean update")
    elif type(bound.server_opt) is not Add:
        return ""
    return ", ".join(reasons)


def _equal_steps(settings: Scalars) -> bool:
    return settings.client.steps is not None and settings.client.last_batch != "scaled"
