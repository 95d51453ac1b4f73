"""Every method and variant twice: as words of the command line and as pieces of the numpy
implementation.

Only full participation and full batches: cohorts and batches are drawn at random by fedbench.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from support.independent_methods import Method, Setting
from support.independent_pieces import Ecgr, Gsnr, Ncv, Pgvc, Pmvr


@dataclass
class Case:
    words: str
    method: Method | None  # None: pFedSim, which has a loop of its own
    setting: Setting = field(default_factory=Setting)
    is_fedavg: bool = False


UNIFORM = Setting(weights="uniform")
MOMENTUM = Setting(momentum=0.6, rate=0.2)
MOMENTUM_UNIFORM = Setting(momentum=0.6, rate=0.2, weights="uniform")
DECAY = Setting(momentum=0.5, weight_decay=0.05, rate=0.2)
LONG = Setting(steps=6)
SWINGING = Setting(
    steps=6, momentum=0.5
)  # so that a path turns, and selections of its steps differ
SWINGING_UNIFORM = Setting(steps=6, momentum=0.5, weights="uniform")
GENTLE = Setting(rate=0.05)
ALL = 3  # layers

BASELINES = {
    "fedavg": Case("algo=fedavg", Method(), is_fedavg=True),
    "fedavg momentum, decay": Case(
        "algo=fedavg",
        Method(),
        Setting(momentum=0.5, weight_decay=0.05, rate_factor=0.7),
        is_fedavg=True,
    ),
    "fedavgm heavy-ball": Case("algo=fedavgm algo.momentum=0.8", Method(server_momentum=0.8)),
    "fedavgm nesterov": Case(
        "algo=fedavgm algo.momentum=0.8 algo.variant=nesterov",
        Method(server_momentum=0.8, server_variant="nesterov"),
    ),
    "fedavgm ema": Case(
        "algo=fedavgm algo.momentum=0.8 algo.variant=ema",
        Method(server_momentum=0.8, server_variant="ema"),
        Setting(server_rate=0.9),
    ),
    "fedprox": Case("algo=fedprox algo.mu=1.0", Method(mu=1.0)),
    "fednova": Case(
        "algo=fednova", Method(nova=True), is_fedavg=True
    ),  # as all clients do the same number of steps
    "fednova gsnr prox": Case(
        "algo=fednova algo.mu=0.7 modifier=[gsnr] algo.modifiers.gsnr.steps=4",
        Method(nova=True, mu=0.7, gsnr=Gsnr()),
    ),
    "fednova gsnr momentum, prox": Case(
        "algo=fednova algo.mu=0.7 modifier=[gsnr] algo.modifiers.gsnr.steps=4",
        Method(nova=True, mu=0.7, gsnr=Gsnr()),
        MOMENTUM,
    ),
}

CONTROL_VARIATES = {
    "scaffold": Case("algo=scaffold", Method(variate_layers=ALL), UNIFORM),
    "scaffold rates, decay": Case(
        "algo=scaffold",
        Method(variate_layers=ALL),
        Setting(weights="uniform", weight_decay=0.05, rate_factor=0.6, server_rate=0.8),
    ),
    "scaffold momentum inside": Case(
        "algo=scaffold algo.correction=inside", Method(variate_layers=ALL), MOMENTUM_UNIFORM
    ),
    "scaffold momentum outside": Case(
        "algo=scaffold algo.correction=outside",
        Method(variate_layers=ALL, correction="outside"),
        MOMENTUM_UNIFORM,
    ),
    "fedpvr": Case("algo=fedpvr algo.layers=1", Method(variate_layers=1), UNIFORM),
    "fedavg pvr momentum": Case("algo=fedavg modifier=[pvr]", Method(variate_layers=2), MOMENTUM),
    "fedprox pvr": Case(
        "algo=fedprox algo.mu=1.0 modifier=[pvr]", Method(mu=1.0, variate_layers=2)
    ),
    "feddyn": Case("algo=feddyn algo.alpha=0.5", Method(dyn=0.5), UNIFORM),
}

LOSSES = {
    "moon": Case(
        "algo=moon algo.mu=2.0 algo.temperature=0.5 algo.projection=false",
        Method(contrast=2.0, temperature=0.5),
    ),
    "fedlc softmax": Case("algo=fedlc algo.tau=1.0 algo.variant=softmax", Method(margin=1.0)),
    "fedlc paper": Case(
        "algo=fedlc algo.tau=0.5 algo.variant=paper", Method(margin=0.5, without_truth=True), GENTLE
    ),
}

PERSONAL = {
    "fedper momentum, decay": Case("algo=fedper", Method(personal="per"), DECAY),
    "fedper ecgr": Case(
        "algo=fedper modifier=[ecgr] algo.modifiers.ecgr.beta=0.2",
        Method(personal="per", ecgr=Ecgr()),
        SWINGING,
    ),
    "fedrep momentum, decay": Case("algo=fedrep", Method(personal="rep"), DECAY),
    "pfedsim": Case("algo=pfedsim algo.warmup=0.5", None, Setting(rounds=5)),
}

PGVC = {
    f"fedpgvc {rho}": Case(f"algo=fedpgvc algo.rho={rho}", Method(pgvc=Pgvc(rho)))
    for rho in (
        *("norm", "eq15", "layer_norm", "layer_mean", "wdro", "add"),
        *("loss", "gradient_norm", "code"),
    )
} | {
    "fedpgvc 1 layer": Case(
        "algo=fedpgvc algo.sigma=0.5 algo.layers=1", Method(pgvc=Pgvc(sigma=0.5, layers=1))
    ),
    "fedprox pgvc": Case(
        "algo=fedprox algo.mu=1.0 modifier=[pgvc] algo.modifiers.pgvc.rho=eq15",
        Method(mu=1.0, pgvc=Pgvc("eq15")),
    ),
    "fednova pgvc gsnr": Case(
        "algo=fednova modifier=[pgvc,gsnr] algo.modifiers.gsnr.steps=4",
        Method(nova=True, pgvc=Pgvc(), gsnr=Gsnr()),
    ),
    "fedavg pgvc ecgr": Case(
        "algo=fedavg modifier=[pgvc,ecgr] algo.modifiers.pgvc.rho=wdro"
        " algo.modifiers.ecgr.beta=0.2",
        Method(pgvc=Pgvc("wdro"), ecgr=Ecgr()),
        LONG,
    ),
}

PMVR = {
    f"fedpmvr {variant}": Case(
        f"algo=fedpmvr algo.alpha=0.3 algo.variant={variant}", Method(pmvr=Pmvr(0.3, variant))
    )
    for variant in ("shrink", "ema", "accum", "eq12", "alg1")
} | {
    "fedpmvr 1 layer": Case(
        "algo=fedpmvr algo.alpha=0.6 algo.layers=1", Method(pmvr=Pmvr(0.6, layers=1)), MOMENTUM
    ),
    "scaffold pmvr": Case(
        "algo=scaffold modifier=[pmvr] algo.modifiers.pmvr.alpha=0.3",
        Method(variate_layers=ALL, pmvr=Pmvr(0.3)),
        UNIFORM,
    ),
    "fedavg ecgr pmvr": Case(
        "algo=fedavg modifier=[ecgr,pmvr] algo.modifiers.ecgr.beta=0.2"
        " algo.modifiers.pmvr.alpha=0.3",
        Method(ecgr=Ecgr(), pmvr=Pmvr(0.3)),
        SWINGING,
    ),
}

NCV = {
    "fedncv literal": Case(
        "algo=fedncv algo.variant=literal algo.alpha=0.3 algo.alpha_mode=none",
        Method(ncv=Ncv("literal", alpha=0.3)),
    ),
    "fedncv beta": Case(
        "algo=fedncv algo.variant=beta algo.beta=0.4 algo.normalise=true algo.alpha=0.0"
        " algo.alpha_mode=none",
        Method(ncv=Ncv("beta", beta=0.4)),
    ),
    "fedncv beta not normalised": Case(
        "algo=fedncv algo.variant=beta algo.beta=0.4 algo.normalise=false algo.alpha=0.0"
        " algo.alpha_mode=none",
        Method(ncv=Ncv("beta", beta=0.4, normalise=False)),
    ),
    "fedncv derivative": Case(
        "algo=fedncv algo.alpha=0.1 algo.alpha_mode=derivative algo.alpha_rate=0.05",
        Method(ncv=Ncv(alpha=0.1, alpha_mode="derivative", alpha_rate=0.05)),
    ),
    "fedncv difference": Case(
        "algo=fedncv algo.alpha=0.3 algo.alpha_mode=difference algo.alpha_rate=0.2",
        Method(ncv=Ncv(alpha=0.3, alpha_mode="difference", alpha_rate=0.2)),
    ),
    "fedncv clipped": Case(
        "algo=fedncv algo.alpha=0.0 algo.alpha_mode=derivative algo.alpha_rate=5.0"
        " algo.alpha_max=0.6",
        Method(ncv=Ncv(alpha_mode="derivative", alpha_rate=5.0, alpha_max=0.6)),
    ),
}

GSNR = {
    f"fedgsnr {rounding}": Case(
        f"algo=fedgsnr algo.steps=4 algo.rounding={rounding}", Method(gsnr=Gsnr(rounding=rounding))
    )
    for rounding in ("largest", "round", "floor")
} | {
    "fedgsnr alg1": Case(
        "algo=fedgsnr algo.steps=4 algo.variant=alg1", Method(gsnr=Gsnr(variant="alg1"))
    ),
    "scaffold gsnr without some": Case(
        "algo=scaffold modifier=[gsnr] algo.modifiers.gsnr.steps=2"
        " algo.modifiers.gsnr.variant=alg1",
        Method(variate_layers=ALL, gsnr=Gsnr(2, variant="alg1")),
        UNIFORM,
    ),
    "fedncv gsnr without some": Case(
        "algo=fedncv algo.variant=beta algo.beta=0.4 algo.normalise=true algo.alpha=0.3"
        " algo.alpha_mode=none modifier=[gsnr] algo.modifiers.gsnr.steps=1"
        " algo.modifiers.gsnr.variant=alg1",
        Method(ncv=Ncv("beta", beta=0.4, alpha=0.3), gsnr=Gsnr(1, variant="alg1")),
    ),
    "fedgsnr batch": Case(
        "algo=fedgsnr algo.steps=4 algo.samples=full algo.batch=2", Method(gsnr=Gsnr(batch=2))
    ),
    "fedgsnr momentum, decay": Case("algo=fedgsnr algo.steps=4", Method(gsnr=Gsnr()), DECAY),
    "scaffold gsnr samples": Case(
        "algo=scaffold server.weights=samples modifier=[gsnr] algo.modifiers.gsnr.steps=4",
        Method(variate_layers=ALL, gsnr=Gsnr()),
    ),
}

ECGR = {
    f"fedecgr {select}": Case(
        f"algo=fedecgr algo.beta=0.2 algo.select={select}",
        Method(ecgr=Ecgr(select=select)),
        SWINGING,
    )
    for select in ("greedy", "norm_topk", "exact", "centred")
} | {
    "fedprox ecgr": Case(
        "algo=fedprox algo.mu=1.0 modifier=[ecgr] algo.modifiers.ecgr.beta=0.2",
        Method(mu=1.0, ecgr=Ecgr()),
        SWINGING,
    ),
    "fednova ecgr gsnr": Case(
        "algo=fednova modifier=[ecgr,gsnr] algo.modifiers.ecgr.beta=0.5"
        " algo.modifiers.gsnr.steps=6",
        Method(nova=True, ecgr=Ecgr(0.5), gsnr=Gsnr(6)),
    ),
    "scaffold ecgr": Case(
        "algo=scaffold modifier=[ecgr] algo.modifiers.ecgr.beta=0.2",
        Method(variate_layers=ALL, ecgr=Ecgr()),
        SWINGING_UNIFORM,
    ),
    "fedavg pvr ecgr": Case(
        "algo=fedavg modifier=[pvr,ecgr] algo.modifiers.ecgr.beta=0.1"
        " algo.modifiers.ecgr.ratio=0.34",
        Method(variate_layers=2, ecgr=Ecgr(0.1, 0.34)),
        LONG,
    ),
}

CASES = BASELINES | CONTROL_VARIATES | LOSSES | PERSONAL | PGVC | PMVR | NCV | GSNR | ECGR
