"""Every key of the configuration, with a value to change it to, and what that may do to a run's id
and numbers.

`CHANGES` are tried on a tiny run: the id must change, and so must the numbers. `CANNOT` must leave
the id and the numbers alone. `FINER` change the id although a tiny run ends with the same weights,
with the reason. `SOMETIMES` matter only together with other settings, which are given. Of `LARGE`
networks the id alone is looked at: training them takes too long here.
"""

TINY = (
    "data=mnist",
    "data.source=synthetic",
    "data.subset=60",
    "data.test_size=100",
    "partition.clients=3",
    "partition.alpha=0.3",
    "logger=none",
    "model=mlp",
    "model.hidden=[8,6]",
    "rounds=3",
    "client.epochs=1",
    "client.batch_size=8",
)

# Where a run's files go, how it is shown, how the work is shared out: the id must stay.
CANNOT = {
    "results": ("elsewhere", "where the files go"),
    "objective": ("final_accuracy", "which number a sweeper gets"),
    "force": (True, "whether a finished run is repeated"),
    "scale": ("paper", "a label; what a scale sets is seen in the other keys"),
    "checkpoint.every": (3, "a resumed run is bit-identical to one that never stopped"),
    "checkpoint.keep": (True, "whether a finished run can be extended"),
    "runtime.workers": (2, "reductions are in client order for any number of processes"),
    "runtime.timeout": (99, "how long a process waits for the others"),
    "runtime.graph": ("off", "a recorded step has the same kernels; the CPU records none"),
    "runtime.device": ("cpu", "auto is the CPU here; the device that is used is part of the id"),
    "runtime.deterministic": (False, "the CPU always is; of a GPU's runs it is part of the id"),
    "data.root": ("COPY_OF_ROOT", "the examples themselves are part of the id"),
    "data.download": (True, "the examples themselves are part of the id"),
    "algo.allow_adaptive": (
        True,
        "lets a refused run go ahead; client.optimizer is part of the id",
    ),
    "model.download": (True, "the weights that are used are part of the id"),
    "partition.incomplete": (
        True,
        "lets a refused run go ahead; the file's content is part of the id",
    ),
    "algo.memory": (0.001, "where ECGR's trace lies"),
    "algo.modifiers.ecgr.memory": (0.001, "where ECGR's trace lies"),
}

# The words under which they are tried, where the tiny run has no such key or does not read it.
TRIED_ON = {
    "data.root": "data.source=real data.root=ROOT",
    "data.download": "data.source=real data.root=ROOT",
    "algo.memory": "algo=fedecgr",
    "algo.modifiers.ecgr.memory": "modifier=[ecgr]",
    "model.download": "model=resnet18",
    "partition.incomplete": "partition=file partition.path=SPLIT",
}
ID_ALONE = ("model.download",)  # training that network takes too long here

# The id changes, although the weights of the tiny run stay.
FINER = {
    "eval.batch_size": (7, "sums of losses are rounded differently, in the last bits at most"),
    "eval.conformal": (True, "adds files, which a finished run under the same id would not have"),
    **{
        f"diagnostics.{name}": (True, "adds columns, as the one below")
        for name in ("drift", "seconds", "update_variance")
    },
    "diagnostics.gradient_norms": (
        True,
        "adds columns, which a finished run under the same id would not have",
    ),
    "stop.loss_factor": (None, "matters when a loss explodes"),
    "stop.patience": (9, "matters when that many evaluations bring no better accuracy"),
    "runtime.threads": (2, "kernels may add in another order"),
    "data.train_size": (
        59999,
        "of the stand-in only: numbers differ when data.subset does not fix the size",
    ),
    "data.mean": ([0.5], "a stand-in has its own; of real images they are the standardisation"),
    "data.std": ([0.5], "a stand-in has its own; of real images they are the standardisation"),
    "algo.name": ("another", "the name that stands in tables"),
    "partition.min_samples": (2, "matters when a draw has a smaller client"),
}

SCALARS = {
    "rounds": 2,
    "seed": 1,
    "cohort": 2,
    "client.epochs": 2,
    "client.steps": 5,
    "client.batch_size": 4,
    "client.last_batch": "drop",
    "client.lr": 0.05,
    "client.optimizer": "adam",
    "client.momentum": 0.5,
    "client.weight_decay": 0.1,
    "client.lr_decay.factor": 0.5,
    "server.lr": 0.5,
    "server.weights": "uniform",
    "eval.every": 2,
    "stop.accuracy": 0.01,
    "algo.weights": "uniform",
    "algo.local": "head",
    "algo.pooled": True,
    "data.source": "real",
    "data.subset": 50,
    "data.validation": 0.2,
    "data.augment": ["flip"],
    "data.shape": [26, 28, 1],
    "data.classes": 9,
    "data.test_size": 90,
    "model.hidden": [8, 7],
    "model.weights": "WEIGHTS",
    "model.projection": 5,
    "partition.clients": 4,
    "partition.alpha": 0.5,
    "partition.seed": 1,
    "partition.local_test": 0.2,
    "partition.cap": True,
    "partition.least_share": 0.9,
}

# By the words that choose them: short names of algorithms, fields of modifiers and of other groups.
CHOSEN = {
    "algo=centralized": {},
    "algo=fedavg": {},
    "algo=fedavgm": {"algo.momentum": 0.5, "algo.variant": "nesterov"},
    "algo=fedbn model=lenet model.batch_norm=true": {
        "algo.scoring": "mean_acc",
        "model.batch_norm": False,
        "model.padding": 0,
    },
    "algo=feddyn": {"algo.alpha": 0.1},
    "algo=fedecgr": {
        "algo.beta": 0.9,
        "algo.ratio": 0.9,
        "algo.select": "norm_topk",
        "algo.alignment": True,
    },
    "algo=fedgen client.epochs=2": {
        "algo.alpha": 1.0,
        "algo.beta": 1.0,
        "algo.decay": 0.5,
        "algo.generator_steps": 3,
        "algo.generator_lr": 0.1,
        "algo.generator_decay": 5.0,
        "algo.batch": 8,
        "algo.noise": 16,
        "algo.hidden": 32,
        "algo.early_stop": 1,
    },
    "algo=fedgsnr": {
        "algo.steps": 3,
        "algo.batch": 3,
        "algo.samples": "full",
        "algo.variant": "alg1",
        "algo.rounding": "floor",
        "algo.interpolation": 0.5,
    },
    "algo=fedlc": {"algo.tau": 0.1, "algo.variant": "paper"},
    "algo=fedncv": {
        "algo.variant": "literal",
        "algo.alpha": 0.5,
        "algo.alpha_mode": "none",
        "algo.alpha_rate": 0.5,
        "algo.alpha_max": 0.0,
    },
    "algo=fednova": {"algo.mu": 0.1, "algo.momentum": 0.5},
    "algo=fedper": {"algo.scoring": "mean_acc"},
    "algo=fedpgvc": {"algo.rho": "eq15", "algo.sigma": 2.0, "algo.layers": 1, "algo.skip": 1},
    "algo=fedpmvr": {"algo.alpha": 0.5, "algo.variant": "ema", "algo.layers": 1, "algo.skip": 1},
    "algo=fedprox": {"algo.mu": 0.5},
    "algo=fedpvr": {"algo.layers": 1},
    "algo=fedrep": {"algo.scoring": "mean_acc"},
    "algo=local": {"algo.scoring": "per_client"},
    "algo=moon": {"algo.mu": 5.0, "algo.temperature": 0.1, "algo.projection": False},
    "algo=pfedsim": {"algo.warmup": 1.0, "algo.scoring": "mean_acc"},
    "algo=scaffold": {"algo.modifiers.control_variate.layers": 1},
    "modifier=[control_variate]": {"layers": 1},
    "modifier=[ecgr]": {"beta": 0.9, "ratio": 0.9, "select": "norm_topk", "alignment": True},
    "modifier=[gsnr]": {
        "steps": 3,
        "batch": 3,
        "samples": "full",
        "variant": "alg1",
        "rounding": "floor",
        "interpolation": 0.5,
    },
    "modifier=[head_rate]": {"factor": 3.0, "layers": 1, "skip": 1},
    "modifier=[pgvc]": {"rho": "eq15", "sigma": 2.0, "layers": 1, "skip": 1},
    "modifier=[pmvr]": {"alpha": 0.5, "variant": "ema", "layers": 1, "skip": 1},
    "modifier=[prox]": {"mu": 0.5},
    "modifier=[pvr]": {"layers": 1},
    "attack=label_shift": {"attack.clients": [1], "attack.shift": 3},
    "attack=none": {},
    "attack=random_input": {"attack.clients": [1]},
    "partition=iid": {"partition.clients": 4, "partition.local_test": 0.2},
    "partition=labels partition.per_client=5": {"partition.per_client": 4},
    "partition=nonbalance": {"partition.local_test": 0.2},
    "partition=pareto": {"partition.shape": 0.2},
    "partition=ecgr_program partition.min_samples=2": {
        "partition.alpha": 1.0,
        "partition.min_samples": 18,
    },
    "partition=file partition.path=SPLIT": {
        "partition.path": "OTHER_SPLIT",
        "partition.local_test": 0.2,
    },
    "data.source=real data.root=ROOT": {
        "data.root": "OTHER_ROOT",
        "data.mean": [0.5],
        "data.std": [0.5],
    },
    "data=npz data.path=ARRAYS": {"data.path": "OTHER_ARRAYS", "data.subset": 50},
    "data=qqp model=lstm": {
        "data.length": 20,
        "data.vocabulary": 100,
        "model.embedding": 50,
        "model.hidden": 16,
    },
    "model=linear": {},
}

# Only together with other settings: (words that choose, key, value, words under which it matters).
SOMETIMES = [
    ("", "client.nesterov", True, "client.momentum=0.9"),
    ("", "client.lr_decay.every", 2, "client.lr_decay.factor=0.5"),
    ("", "client.lr_decay.first", 1, "client.lr_decay.factor=0.5 client.lr_decay.every=2"),
    ("", "data.pool", True, "partition.local_test=0.2"),
    ("", "eval.population", "cohort", "partition.local_test=0.2 cohort=1"),
    ("", "data.train_size", 61, "data.subset=null data.train_size=60"),
    ("algo=scaffold", "algo.correction", "outside", "client.momentum=0.9"),
    ("algo=fedpvr", "algo.correction", "outside", "client.momentum=0.9"),
    (
        "modifier=[control_variate]",
        "algo.modifiers.control_variate.correction",
        "outside",
        "client.momentum=0.9",
    ),
    ("modifier=[pvr]", "algo.modifiers.pvr.correction", "outside", "client.momentum=0.9"),
    ("algo=fednova", "algo.normaliser", "steps", "client.momentum=0.9"),
    ("algo=fednova", "algo.effective", "norms", "algo.mu=0.5"),
    ("algo=fedpgvc", "algo.eq16_literal", True, "server.lr=0.5"),
    ("algo=fedpgvc", "algo.sigma", "measured_mean", "algo.sigma=measured"),
    ("algo=fedpgvc", "algo.sigma_rounds", 1, "algo.sigma=measured"),
    ("modifier=[pgvc]", "algo.modifiers.pgvc.sigma", "measured", "client.lr=0.05"),
    (
        "modifier=[pgvc]",
        "algo.modifiers.pgvc.sigma_rounds",
        1,
        "algo.modifiers.pgvc.sigma=measured",
    ),
    ("algo=fedncv", "algo.beta", 0.9, "algo.variant=beta"),
    ("algo=fedncv", "algo.normalise", False, "algo.variant=beta"),
    (
        "algo=fedgsnr",
        "client.epochs",
        3,
        "partition.local_test=0.2",
    ),  # clients' own tests train by these
    ("algo=fedgsnr", "client.steps", 2, "partition.local_test=0.2"),
    ("modifier=[gsnr]", "client.epochs", 3, "partition.local_test=0.2"),
    ("", "partition.min_samples", 15, "partition.alpha=0.05"),
    ("", "data.subset_seed", 1, "data.validation=0.2"),
    ("data.source=real data.root=ROOT", "data.subset_seed", 1, "data.subset=40"),
    ("partition=file partition.path=SPLIT", "partition.seed", 1, "partition.local_test=0.2"),
    ("partition=file partition.path=SPLIT", "partition.clients", 3, ""),
]

LARGE = {
    "model=resnet18": {"model.stem": "cifar", "model.extra": False, "model.image_size": 40},
    "model=vgg16 data=cifar10": {"model.batch_norm": True},
}
# `model.pretrained` and `model.frozen` need torchvision's file: test_pretrained.py. ViT's image
# size is the ResNet's setting. `data.name` can only be the dataset's own: bad_input.py.
# `runtime.precision` needs a GPU: test_devices.py. `runtime.kernels` needs a compiler:
# test_native_kernels.py.
ELSEWHERE = (
    "model.pretrained",
    "model.frozen",
    "data.name",
    "runtime.precision",
    "runtime.kernels",
)

# Two ways to say the same: (words that choose, key, value) has the id and the numbers of the words
# alone.
ALIKE = [
    ("", "cohort", 3),
    ("algo=centralized", "cohort", 2),
    ("", "server.weights", "samples"),
    ("algo=fedncv", "algo.beta", 0.9),
    ("algo=fedncv", "algo.normalise", False),
    ("client.batch_size=full", "client.last_batch", "drop"),
    ("", "eval.population", "cohort"),
    ("partition.local_test=0.2", "eval.population", "cohort"),
    ("algo=fedgsnr", "algo.batch", 8),
    ("algo=fedpgvc", "algo.eq16_literal", True),
    ("algo=fedpgvc", "algo.sigma", 1),
    ("algo=fedpgvc", "algo.sigma_rounds", 2),
    ("algo=fedpgvc algo.rho=eq15", "algo.sigma", "measured"),
    ("algo=fedgsnr", "client.epochs", 3),
    ("", "client.lr_decay.every", 2),
    ("client.lr_decay.factor=0.5 client.lr_decay.every=2", "client.lr_decay.first", 2),
    ("client.steps=2", "client.epochs", 3),
    ("data.augment=[crop,flip]", "data.augment", ["flip", "crop"]),
    ("attack=label_shift attack.clients=[0,1]", "attack.clients", [1, 0]),
    ("attack=random_input attack.clients=[0,1]", "attack.clients", [1, 0]),
    ("algo=local", "server.lr", 0.5),
    ("", "partition.seed", 0),
    ("", "data.subset_seed", 1),  # a stand-in is the same for every seed
    ("data.validation=0.2", "data.subset_seed", 0),
    ("partition=file partition.path=SPLIT", "partition.seed", 1),
    ("", "client.weight_decay", -0.0),
    ("", "client.momentum", -0.0),
]

# The same numbers under two ids: telling that would change the ids of runs that exist.
FINER_THAN_NEEDED = [
    ("client.batch_size=full", "client.batch_size", 1000),
    (
        "attack=label_shift",
        "attack.shift",
        15,
    ),  # of 10 classes, as 5; the summary tells the number as it was given
]

# Ids of plain configurations on the embedded digits, as they have been since version 0.1.
PINNED = {
    "": "b414d71324d6",
    "algo=fedprox": "91e5f89c50fe",
    "algo=scaffold seed=3": "1588bc84fc46",
    "algo=fedgsnr": "f9f5341be873",
    "algo=fedncv": "53a9b72395a6",
    "algo=fedpgvc": "835f4bbf3f6c",
    "algo=fedecgr": "ff59d9073eaf",
    "cohort=4": "8c29858a3f38",
    "client.batch_size=full": "bcd3f3045901",
    "partition=labels": "933747ab161d",
    "data=mnist scale=smoke": "630471f23a7a",
    "data=mnist scale=smoke attack=label_shift": "813345979831",
    "algo=moon client.steps=5": "d7ae31bf804c",
    "algo=fednova client.lr_decay.factor=0.9": "4c1a97a7adf8",
    "algo=fedncv algo.variant=beta": "8c31d2007168",
    "algo=fedgsnr algo.batch=16": "f3d6635d7641",
}
