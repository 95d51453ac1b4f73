"""Bad input: a command, its arguments, and what its one line must say.

FILES is the folder of bad_files.py. Where another room owns a message, only the key and the value
are expected.
"""

CHOICES = {
    "algo=fedav": "algo=fedav: did you mean 'fedavg'?",
    "algo=zzz": "algo=zzz: choose from centralized, fedavg",
    "modifier=[prux]": "modifier=prux: did you mean 'prox'?",
    "experiment=nope": "experiment=nope: choose from digits/methods",
    "experiment=digits/method": "experiment=digits/method: did you mean 'digits/methods'?",
    "experiment=digits/methods scale=nope": "scale=nope: choose from",
    "logger=null": "logger=null: must be the name of a file in conf/logger",
    "data=3": "data=3: must be the name of a file in conf/data",
    "data=[digits]": "data=[digits]: must be the name of a file in conf/data",
    "algo={a:1}": "algo={a:1}: must be the name of a file in conf/algo",
    "modifier=[3]": "modifier=[3]: must be the name of a file in conf/modifier, or a list of them",
    "modifier=[[ecgr]]": "modifier=[[ecgr]]: must be the name of a file in conf/modifier",
    "modifier=[ecgr,ecgr]": "modifier=[ecgr,ecgr]: must name ecgr once",
    "~modifier": "Could not delete 'modifier'",
    "modifier=ecgr,pgvc": "modifier=ecgr,pgvc: several values are a sweep; add --multirun (or -m)",
    "--foo": "unrecognized arguments: --foo; see fedbench --help",
    "--config-name nope": "Cannot find primary config 'nope'",
}

KEYS = {
    "rouns=3": "unknown key 'rouns': did you mean 'rounds'?",
    "client.epoch=3": "unknown key 'client.epoch': did you mean 'client.epochs'?",
    "train.lr=0.1": "unknown key 'train': choose from algo, attack",
    "experimnet=digits/methods": "unknown key 'experimnet': did you mean 'experiment'?",
    "hydra.foo=3": "unknown key 'hydra.foo'",
    "+foo=3": "unknown key 'foo': choose from algo, attack, checkpoint, client",
    "+partition.beta=1": (
        "unknown key 'partition.beta': choose from alpha, cap, clients, least_share, local_test"
    ),
    "partition=nonbalance partition.alpha=1": "unknown key 'partition.alpha': choose from clients",
    "algo.mu=3": "unknown key 'algo.mu'",
    "+algo.foo=3": "algo.foo: no setting of algo=fedavg refers to it, so it has no effect",
    "algo=fedprox algo.modifiers.prox.mu=0.3": "algo.mu: no setting of algo=fedprox refers to it",
    "algo.modifiers.pvr.layers=1": "unknown key 'algo.modifiers.pvr': it needs modifier=[pvr]",
    "modifier=[ecgr] algo.modifiers.ecgr.bet=1": "did you mean 'algo.modifiers.ecgr.beta'?",
    "rounds": "cannot read 'rounds': write key=value, and quote a value that contains",
    "rounds=[": "cannot read 'rounds=['",
    "rounds=a=b": "cannot read 'rounds=a=b'",
    "rounds=ä": "cannot read 'rounds=ä'",
    "ründe=3": "cannot read 'ründe=3'",
    "rounds.x=3": "unknown key 'rounds.x'",
    "~algo": "algo=None: must be the name of a file in conf/algo",
    "~data": "data=None: must be the name of a file in conf/data",
    "~partition": "unknown key 'partition': no file of conf/partition is chosen",
    "~data.name": "data.name is missing: it must have a value",
    "~data._target_": "data._target_=None: must be the class that the files in conf/data name",
    "~algo.aggregate": "algo.aggregate=None: must be a section with a _target_",
    "~nothing": "Could not delete from config. 'nothing' does not exist.",
    "data._target_=3": "data._target_=3: must be the class that the files in conf/data name",
    "data._target_=os.system": "data._target_=os.system: must be the name of a class",
    "model._target_=subprocess.Popen": (
        "model._target_=subprocess.Popen: must be a dataclass with the method network"
    ),
    "data._target_=nowhere.Own": (
        "data._target_=nowhere.Own: cannot import nowhere (looked in the installed packages;"
    ),
    "data._target_=fedbench.data.Digit": "must be the name of a class; did you mean 'Digits'?",
    "data._target_=fedbench.data.synthetic.Own": "synthetic.Own: must be the name of a class",
    "partition._target_=fedbench.partitions.picture.Own": "must be the name of a class",
    "algo.aggregate._target_=3": "algo.aggregate._target_=3: must be the name of a class",
    "client=3": "client=3: must be a section with keys of its own, such as client.epochs",
    "client.lr_decay=3": "client.lr_decay=3: must be a section with keys of its own",
    "server=null": "server=None: must be a section with keys of its own, such as server.lr",
    "eval=[1]": "eval=[1]: ",
    "algo.modifiers=3": "algo.modifiers=3: must be a section; modifier=[...] sets it",
}

# References between values, variables of the environment, and settings of Hydra.
HYDRA = {
    "rounds=${nope}": "rounds=${nope}: Interpolation key 'nope' not found; it must refer to",
    "rounds=${rounds}": "rounds=${rounds}: it refers to itself; it must refer to another key",
    "rounds=${eval:1}": "rounds=${eval:1}: there is no function eval",
    "data.root=${oc.env:NOT_SET}": (
        "data.root=${oc.env:NOT_SET}: Environment variable 'NOT_SET' not found; set it, or"
    ),
    "results=${oc.env:NOT_SET}": (
        "results=${oc.env:NOT_SET}: Environment variable 'NOT_SET' not found; set it, or"
    ),
    "-m results=${oc.env:NOT_SET}": (
        "results=${oc.env:NOT_SET}: Environment variable 'NOT_SET' not found; set it, or"
    ),
    "rounds=${oc.env:HOME}": "rounds=${oc.env:HOME}: must be an integer",
    "hydra/job_logging=nope": "hydra/job_logging=nope: did you mean 'none'?",
    "-m hydra/launcher=nope": "hydra/launcher=nope: choose from basic",
    "-m hydra/launcher=submitit_lokal": (
        "hydra/launcher=submitit_lokal: did you mean 'submitit_local'?"
    ),
    "objective=zzz": "objective=zzz: choose from best_accuracy, best_val_accuracy,",
}

VALUES = {
    "rounds=abc": "rounds=abc: must be an integer",
    "rounds='ä'": "rounds=ä: must be an integer",
    "rounds=0": "rounds=0: must be an integer of at least 1",
    "rounds=null": "rounds=None: must be an integer",
    "seed=-1": "seed=-1: must be an integer of at least 0",
    "seed=9223372036854775808": "must be an integer of at least 0 and at most 9223372036854775807",
    "cohort=5": "cohort=5: must be at most 4, the number of clients",
    "client.batch_size=0": "client.batch_size=0: must be `full` or an integer of at least 1",
    "client.batch_size=half": "client.batch_size=half: must be `full` or an integer",
    "client.batch_size=1.5": "client.batch_size=1.5: must be `full` or an integer",
    "client.batch_size=[32]": "client.batch_size=[32]: must be `full` or an integer",
    "client.batch_size=10000000000000": "must be `full` or an integer of at least 1",
    "client.last_batch=skip": "client.last_batch=skip: choose from drop, keep, scaled",
    "stop.accuracy=50": "stop.accuracy=50.0: must be above 0 and at most 1",
    "stop.loss_factor=1": "stop.loss_factor=1.0: must be above 1",
    "stop.patience=0": "stop.patience=0: must be an integer of at least 1",
    "eval.population=some": "eval.population=some: choose from all, cohort",
    "data=mnist scale=smoke model=lenet model.padding=3": (
        "model.padding=3: must be an integer of at least 0 and at most 2"
    ),
    "data=mnist scale=smoke model=resnet18 model.frozen=true": (
        "model.frozen=true: must be false without model.pretrained=true or model.weights"
    ),
    "client.epochs=1.5": "client.epochs=1.5: must be an integer",
    "client.epochs=100000000000000000000000": "must be an integer of at most 1000000000000",
    "client.lr=-0.1": "client.lr=-0.1: must be at least 1e-30",
    "client.lr=nan": "client.lr=nan: must be at least 1e-30",
    "client.lr=inf": "client.lr=inf: must be at most 1e+38",
    "client.lr=[0.1]": "client.lr=[0.1]: must be a number",
    "client.lr={a:1}": "client.lr={'a': 1}: must be a number",
    "client.lr=": "client.lr=: must be a number",
    "client.lr_decay.factor=0": "client.lr_decay.factor=0.0: must be above 0",
    "client.lr_decay.factor=0.001 rounds=20": (
        "client.lr_decay.factor=0.001: the last round's rate would be"
    ),
    "client.lr_decay.factor=1e30 rounds=20": "client.lr_decay.factor=1e+30: the last round's rate",
    "client.momentum=1": "client.momentum=1.0: must be at least 0 and below 1",
    "client.nesterov=true": "client.nesterov=True: must be false unless client.momentum is above",
    "client.optimizer=adam client.momentum=0.9": "client.momentum=0.9: must be 0",
    "client.optimizer=sdg": "client.optimizer=sdg: did you mean 'sgd'?",
    "runtime.device=cuda": "runtime.device=cuda: must be cpu or auto: there is no CUDA device here",
    "runtime.device=mps": (
        "runtime.device=mps: must be auto, cpu or cuda; no other device is supported"
    ),
    "runtime.precision=bf16 runtime.device=cpu": (
        "runtime.precision=bf16: must be float32 on the CPU"
    ),
    "runtime.precision=float16": "runtime.precision=float16: did you mean 'float32'?",
    "runtime.deterministic=2": "runtime.deterministic=2: must be true or false",
    "runtime.kernels=fast": "runtime.kernels=fast: choose from auto, native, torch",
    "runtime.kernels=native": "runtime.kernels=native: must be auto or torch: "
    "no layer of this network has native kernels",
    "runtime.graph=on": "runtime.graph=on: choose from auto, off",
    "runtime.workers=0": "runtime.workers=0: must be an integer of at least 1 and at most 1024",
    "results=": "results=: must be the path of a folder",
    "results=null": "results=None: must be a name",
    "hydra.run.dir=/dev/null/x hydra.output_subdir=a": "hydra.run.dir=/dev/null/x: must be a",
    "force=maybe": "force=maybe: must be true or false",
    "diagnostics.gradient_norms=3": "diagnostics.gradient_norms=3: must be true or false",
    "partition.alpha=0": "partition.alpha=0.0: must be at least 1e-06",
    "partition.clients=0": "partition.clients=0: must be an integer of at least 1",
    "partition.clients=2000": (
        "partition.clients=2000: must be at most 1438, the number of training samples"
    ),
    "partition.min_samples=1000": "partition.min_samples=1000: must be at most 359",
    "partition.seed=-1": "partition.seed=-1: must be an integer of at least 0",
    "data.subset_seed=-1": "data.subset_seed=-1: must be an integer of at least 0",
    "data.validation=1": "data.validation=1.0: must be at least 0 and below 1",
    "data.validation=0.0001": (
        "data.validation=0.0001: must leave at least one of 1,438 training examples on either side"
    ),
    "checkpoint.keep=2": "checkpoint.keep=2: must be true or false",
    "objective=best_val_accuracy": (
        "objective=best_val_accuracy: must have data.validation above 0"
    ),
    "partition.least_share=1.5": "partition.least_share=1.5: must be at least 0 and at most 1",
    "partition.least_share=1 partition.alpha=0.01": (
        "partition.least_share=1.0: must be smaller, or partition.alpha larger: of 5000 draws none"
    ),
    "partition.cap=1": "partition.cap=1: must be true or false",
    "partition.local_test=1": "partition.local_test=1.0: must be at least 0 and below 1",
    "partition=labels partition.per_client=11": "partition.per_client=11: must be at most 10",
    "partition=file": "partition.path=None: must be a JSON file",
    "model.hidden=3": "model.hidden=3: must be a list, such as [1,2]",
    "model.hidden=[a,b]": "model.hidden[0]=a: must be an integer",
    "model.hidden=[1]": "model.hidden=[1]: must be two integers of at least 1",
    "model.hidden=[1000000000,1000000000]": "too large for this machine's memory",
    "model=lenet": "model=lenet: needs images of at least 12x12 pixels",
    "model=lstm": "model=lstm: needs pairs of sentences",
    "data=qqp scale=smoke model=mlp": "model=mlp: must be lstm",
    "data=mnist scale=smoke model=resnet18 model.image_size=1000000000": (
        "model.image_size=1000000000: must be an integer of at least 8 and at most 4096"
    ),
    "data=mnist scale=smoke model=lenet model.batch_norm=true client.batch_size=1": (
        "client.batch_size=1: "
    ),
}

DATA = {
    "data=npz": "data.path=None: ",
    "data=mnist": "data=mnist: not in",
    "data.pool=true": (
        "data.pool=true: must be false without partition.local_test, the share of examples that"
    ),
    "data.subset=0": "data.subset=0: ",
    "data.subset=5000": "data.subset=5000: ",
    "data.source=fake": "data.source=fake: choose from real, synthetic",
    "data.name=mnist": "data.name=mnist: must be digits with data=digits",
    "data.classes=9": "data.classes=9: ",
    "data.shape=[4,4,4]": "data.shape=[4, 4, 4]: ",
    "data.train_size=-1": "data.train_size=-1: ",
    "data.augment=null": "data.augment=None: must have a value other than null",
    "data.augment=[flop]": "data.augment=['flop']: ",
    "data.mean=[0.5]": "data.mean=[0.5]: ",
    "data=mnist scale=smoke data.std=[0]": "data.std=[0.0]: ",
    "data=mnist scale=smoke data.mean=[0,0]": "data.mean=[0.0, 0.0]: ",
    "data=mnist scale=smoke data.shape=[]": "data.shape=[]: ",
    "data=mnist scale=smoke data.shape=[0,28,1]": "data.shape=[0, 28, 1]: ",
    "data=mnist scale=smoke data.classes=100000000000": "too large for this machine's memory",
    "data=mnist scale=smoke data.classes=100000000000000000000": "must be an integer of at most",
    "data=qqp scale=smoke data.classes=1": "data.classes=1: ",
    "data=qqp scale=smoke data.train_size=0": "data.train_size=0: ",
    "data=npz data.path=FILES/good.npz scale=smoke": "scale=smoke: data=npz has no synthetic",
    "data=npz data.path=FILES/good.npz data.source=synthetic": "unknown key 'data.source'",
    "attack=label_shift attack.shift=10": "attack.shift=10: ",
    "attack=label_shift attack.clients=[9]": "attack.clients=[9]: ",
    "attack=label_shift attack.clients=0": "attack.clients=0: must be a list, such as [1,2]",
    "logger=wandb logger.project=a/b": "logger.project=a/b: ",
    "logger=wandb logger.project=": "logger.project=: ",
    "logger=wandb logger.entity=a/b": "logger.entity=a/b: ",
    "logger=wandb logger.mode=disabled": "logger.mode=disabled: choose from auto, offline, online",
}

ALGORITHMS = {
    "modifier=[head_rate] algo.modifiers.head_rate.factor=-1": (
        "algo.modifiers.head_rate.factor=-1.0: must be at least 0"
    ),
    "algo=fedprox algo.mu=-1": "algo.mu=-1.0: ",
    "algo=fedprox algo.mu=x": "algo.mu=x: must be a number",
    "algo=fedavgm algo.momentum=1": "algo.momentum=1.0: ",
    "algo=fedavgm algo.variant=heavy": "algo.variant=heavy: did you mean 'heavy-ball'?",
    "algo=fedpmvr algo.variant=null": "algo.variant=None: must be a name",
    "algo=fedpgvc algo.sigma=0": (
        "algo.sigma=0: must be above 0 and at most 1e+06, or measured or measured_mean"
    ),
    "algo=fedpgvc algo.sigma=mesured": (
        "algo.sigma=mesured: must be a number above 0, or measured or measured_mean"
    ),
    "algo=fedpgvc algo.sigma=null": "algo.sigma=None: must be a number or a name",
    "algo=fedpgvc algo.sigma_rounds=0": "algo.sigma_rounds=0: must be an integer of at least 1",
    "algo=feddyn algo.alpha=1e-45": "algo.alpha=1e-45: ",
    "algo=fedlc algo.tau=1e308": "algo.tau=1e+308: ",
    "algo=moon algo.temperature=1e-40": "algo.temperature=1e-40: ",
    "algo=moon algo.projection=128": "algo.projection=128: must be true or false",
    "algo=fedgen algo.batch=1000000000": "algo.batch=1000000000: ",
    "algo=fedncv algo.beta=1": "algo.beta=1.0: ",
    "algo=fedgsnr algo.steps=0": "algo.steps=0: ",
    "algo=fedgsnr algo.interpolation=1.5": "interpolation=1.5: ",
    "algo=fedgsnr algo.variant=first algo.interpolation=0.5": "interpolation=0.5: ",
    "algo=fedpvr algo.layers=7": "algo.layers=7: must be 0 to 3: the model has 3 layers",
    "algo=fednova algo.mu=20": "client.lr=0.1: ",
    "algo=fedbn algo.scoring=mean": "algo.scoring=mean: did you mean 'mean_acc'?",
    "+algo.scoring=global": "algo.scoring=global: choose from avg_bn, mean_acc, per_client",
    "algo.local=head +algo.scoring=avg_bn": "algo.scoring=avg_bn: ",
    "algo.weights=null": "algo.weights=None: must be a name",
    "algo.pooled=banana": "algo.pooled=banana: must be true or false",
    "algo=local modifier=[prox]": "modifier=prox: ",
    "algo=fedrep model=linear": "algo=fedrep: ",
    "algo=fedper model=linear": "algo=fedper: ",
    "algo=fedecgr algo.select=exact client.steps=30": "client.steps=30: ",
    "modifier=[ecgr,gsnr] algo.modifiers.ecgr.select=exact": "number of local steps",
    "modifier=[ecgr] client.steps=1000000000000": "client.steps=1000000000000: ",
    "modifier=[ecgr] client.epochs=1000000000000": "client.epochs=1000000000000: ",
    "algo=fedecgr algo.memory=1000000000 client.steps=1000000000000": "client.steps=1000000000000",
}

# What the rooms' own tests do not read: tests/data/test_npz.py, tests/partitions and tests/models.
ARRAYS = ("missing", "identifiers", "objects", "pickle", "cut", "spoilt", "raw", "folder", "pipe")
FILES = {
    **{f"data=npz data.path=FILES/{name}.npz": f"{name}.npz: " for name in ARRAYS},
    "data=npz data.path=nowhere.npz": "data.path=nowhere.npz: no such file",
    "data=npz data.path=/dev/zero": "data.path=/dev/zero: ",
    "data=npz data.path=FILES/good.npz partition.clients=61": (
        "partition.clients=61: must be at most 60"
    ),
    "data=mnist data.root=/nowhere": "data=mnist: not in /nowhere/mnist",
    "data=mnist data.root=FILES/text.txt": "text.txt: ",
    "partition=file partition.path=nowhere.json": "partition.path=nowhere.json: no such file",
    "partition=file partition.path=FILES/text.json": "text.json: must be a JSON file",
    "partition=file partition.path=FILES/two_clients.json": (
        "partition.clients=4: must be null or 2, the number of clients in partition.path"
    ),
    "partition=file partition.clients=null partition.path=FILES/two_clients.json": (
        "1435 of 1438 training examples are in no client, the first is 3; if that is meant, set"
        " partition.incomplete=true"
    ),
    "partition=file partition.path=FILES/pipe.npz": "pipe.npz: ",
    "partition=file partition.path=/dev/zero": "partition.path=/dev/zero: ",
    "model.weights=nowhere": "model.weights=nowhere: no such file",
    "model.weights=FILES/missing.safetensors": "lacks fc3.weight, fc3.bias; the model's tensors",
    "model.weights=FILES/nan.safetensors": "fc1.bias has NaN or infinite values",
    "model.weights=FILES/pickle.safetensors": "must be a safetensors file",
    "model.weights=FILES/folder.npz": "is a directory",
    "model.weights=FILES/pipe.npz": "pipe.npz: ",
    "model.weights=/dev/zero": "model.weights=/dev/zero: ",
    "data=mnist scale=smoke model=resnet18_pretrained model.weights=/dev/zero": "/dev/zero: ",
    "results=FILES/text.txt": "text.txt: ",
    # Clients' own models are scored on their own classes, which this test set does not have.
    **{
        f"data=npz data.path=FILES/strangers.npz {words}": "algo.scoring=per_client: "
        for words in (
            "algo=fedper",
            "algo=pfedsim",
            "algo=local algo.scoring=per_client",
            "algo=fedper runtime.workers=2",
            "algo=fedper attack=label_shift attack.shift=2",
        )
    },
}

# Files of one's own configuration: wrong values in them, and files that are not YAML.
PRESETS = {
    "experiment=old": "unknown key 'client.local_epochs': did you mean 'client.epochs'?",
    "algo=old": "algo.muu: no setting of algo=fedprox refers to it, so it has no effect; did you",
    "algo=mien": "algo=mien: did you mean 'mine'?",
    "data=lie": "data.name=mnist: ",
    "data=escape": "data.name=../x: ",
    "experiment=nul_results": "results=a\\x00b: must be text without a NUL character",
    "experiment=nul_results -m seed=0,1": "results=a\\x00b: must be a folder that can be written",
    "experiment=nul_weights": "model.weights=a\\x00b: must be text without a NUL character",
    "experiment=syntax": "syntax.yaml, line 3: must be YAML in UTF-8 (expected ',' or ']'",
    "experiment=twice": "twice.yaml, line 3: must be YAML in UTF-8 (found duplicate key rounds)",
    "experiment=tag": "tag.yaml, line 2: must be YAML in UTF-8 (could not determine a constructor",
    "experiment=control": "control.yaml: must be YAML in UTF-8 (unacceptable character #x0001",
    "experiment=latin": "must be YAML in UTF-8 ('utf-8' codec can't decode",
}

SWEEPS = {  # each has one job, so that there is one line
    "-m client.lr=-1": "client.lr=-1.0: must be at least 1e-30",
    "-m seed=0,1 rouns=3": "unknown key 'rouns': did you mean 'rounds'?",
    "-m seed=0,1 results=FILES/text.txt": "text.txt: must be a folder that can be written",
    "-m seed=0,1 hydra.sweep.dir=/dev/null/x": "hydra.sweep.dir=/dev/null/x: must be a folder that",
    "-m rounds=glob(*)": "a sweep without jobs",
    "-m rounds=interval(1,3)": "INTERVAL",
    "-m seed=0,1 modifier=[],[ecgr,ecgr]": "must name ecgr once",
    "-m seed=0,1 algo=fedavg,fedav": "algo=fedav: did you mean 'fedavg'?",
}

TABLES = {
    "": "fedbench-tables: the following arguments are required: COMMAND; see ",
    "rendr": "invalid choice: 'rendr'",
    "render --foo": "fedbench-tables: unrecognized arguments: --foo; see fedbench-tables --help",
    "render --scale huge": "argument --scale: invalid choice: 'huge'",
    "render --only": "argument --only: expected one argument",
    "render nowhere": "results=nowhere: ",
    "render a b": "unrecognized arguments: b",
    "render . --only fedpgvc/table99": "--only=fedpgvc/table99: did you mean",
    "render . --only digits/methods": "results=.: no plan of digits/methods there",
    "run --foo": "unrecognized arguments: --foo; see fedbench-tables --help",
    "run --jobs 0": "--jobs=0: must be an integer of at least 1",
    "run --jobs many": "argument --jobs: invalid int value: 'many'",
    "run --only nope": "--only=nope: choose from",
}

PREPARE = {
    "": "fedbench-data: the following arguments are required: NAME",
    "mnits": "did you mean 'mnist'?",
    "--foo": "fedbench-data: ",
    "svhn --from nowhere": "--from nowhere: ",
    "svhn --from . --download": "--from and --download: ",
    "mnist --size 64": "--size 64: ",
    "lc25000 --size 3 --from .": "--size 3: ",
    "lc25000 --size big": "invalid int value: 'big'",
    "svhn --from FILES/text.txt": "must be a folder, or a zip or tar archive that can be read",
    "svhn --from FILES/cut.tar.gz": "damaged",
    "cifar10 --from FILES/text.txt": "must be the published cifar-10-python.tar.gz",
}

OVERRIDES = {
    **CHOICES,
    **KEYS,
    **HYDRA,
    **VALUES,
    **DATA,
    **ALGORITHMS,
    **FILES,
    **{f"--config-dir FILES/own {words}": message for words, message in PRESETS.items()},
    **SWEEPS,
}
