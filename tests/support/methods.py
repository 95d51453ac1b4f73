"""Words of the command line that choose every method: all files of conf/algo and conf/modifier,
and those of their variants that compute something else in a client's steps.
"""

from __future__ import annotations

from fedbench.algorithms.fedpgvc import READINGS
from fedbench.config.validate import config_folder

VARIANTS = (
    "algo=fedecgr algo.select=norm_topk",
    "algo=fedecgr algo.select=exact client.steps=6",
    "algo=fedecgr algo.select=centred",
    "algo=fedgen algo.early_stop=1",
    "algo=fedgsnr algo.variant=alg1",
    "algo=fedgsnr algo.variant=first",
    "algo=fedgsnr algo.samples=full",
    "algo=fedlc algo.variant=paper",
    "algo=fedncv algo.alpha_mode=difference",
    "algo=fednova algo.mu=0.1 client.momentum=0.5",
    *(f"algo=fedpgvc algo.rho={rho}" for rho in READINGS[1:]),
    *(
        f"algo=fedpmvr algo.variant={variant}"
        for variant in ("ema", "accum", "eq12", "eq12_plain", "alg1")
    ),
    "algo=fedbn algo.scoring=avg_bn",
    "algo=fedbn modifier=[prox]",
    "algo=moon algo.projection=false",
    "algo=scaffold algo.correction=outside client.momentum=0.5",
    "algo=fedrep modifier=[ecgr]",
)


def _files(group: str) -> list[str]:
    return sorted(file.stem for file in (config_folder() / group).glob("[!_]*.yaml"))


METHODS = (
    *(f"algo={name}" for name in _files("algo")),
    *(f"modifier=[{name}]" for name in _files("modifier")),
    *VARIANTS,
)
# Settings of clients and data that change what a step does, whatever the method.
STEPS = (
    "client.momentum=0.9",
    "client.momentum=0.9 client.nesterov=true client.weight_decay=0.01",
    "client.weight_decay=0.01",
    "client.optimizer=adam client.lr=0.001",
    "client.optimizer=adam client.lr=0.001 client.weight_decay=0.01",
    "client.lr_decay.factor=0.5",
    "client.optimizer=adam client.lr=0.001 client.lr_decay.factor=0.5",
    "data.augment=[crop,flip]",
    "diagnostics.gradient_norms=true diagnostics.drift=true",
    "client.batch_size=full",
    "client.steps=7",
)
