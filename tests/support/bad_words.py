"""The table of bad input: words on the command line (FILES is the folder of bad_files.py), and what
must be told.
"""

CHOICES = {
    "attack=nope": "attack=nope: did you mean 'none'?",
    "logger=nope": "logger=nope: did you mean 'none'?",
    "logger=null": "logger=null: choose from none, wandb",
    "model=nope": "model=nope: choose from cnn5",
    "data=[digits]": "data=[digits]: the name of one file of conf/data is allowed",
    "algo={a:1}": "algo={a:1}: the name of one file of conf/algo is allowed",
    "experiment=digits/method": "experiment=digits/method: did you mean 'digits/methods'?",
    "experiment=digits/methods scale=nope": "scale=nope: choose from laptop, paper, smoke",
    "modifier=[ecgr,ecgr]": "modifier=[ecgr,ecgr]: ecgr is named twice",
    "modifier=[3]": "modifier=[3]: a list of names is allowed",
    "modifier=[[ecgr]]": "modifier=[[ecgr]]: a list of names is allowed",
    "~modifier": "~modifier: it cannot be deleted; modifier=[] is allowed",
    "modifier=ecgr,pgvc": "modifier=ecgr,pgvc: several values are a sweep",
    "--foo": "unrecognized arguments: --foo",
    "--config-name nope": "nope",
}

KEYS = {
    "client.lr=0.1,0.2": (
        "client.lr=0.1,0.2: several values are a sweep, which --multirun (or -m) asks for"
    ),
    "client.local_epochs=3": (
        "unknown key 'client.local_epochs'"
    ),  # as an older version may have had it
    "train.lr=0.1": "unknown key 'train.lr'",
    "hydra.foo=3": "unknown key 'hydra.foo'",
    "data=npz data.path=FILES/good.npz data.source=synthetic": (
        "unknown key 'data.source': choose from name, path"
    ),
    "partition=nonbalance partition.alpha=1": "unknown key 'partition.alpha': choose from clients",
    "rounds=ä": "cannot read 'rounds=ä': write key=value, and for the shell and Hydra both quote",
    "rounds='ä'": "rounds=ä: an integer is allowed",
    "rounds=a=b": "cannot read 'rounds=a=b'",
    "ründe=3": "cannot read 'ründe=3'",
    "~algo": "algo=None: choose one of the files of conf/algo",
    "~data": "data=None: choose one of conf/data",
    "~data.name": "data.name is missing: it is needed",
    "~data._target_": "data._target_=None: it is needed",
    "~partition": "unknown key 'partition.clients': ~partition deletes it",
    "~algo.aggregate": "algo.aggregate=None: a section with a _target_ is needed",
    "~nothing": "unknown key 'nothing'",
    "data._target_=os.system": "data._target_=os.system: the name of a class is allowed",
    "model._target_=subprocess.Popen": (
        "model._target_=subprocess.Popen: a dataclass with the method network"
    ),
    "data._target_=3": "data._target_=3: it is needed; choose one of conf/data",
    "data._target_=null": "data._target_=None: it is needed",
    "algo.aggregate._target_=3": "algo.aggregate._target_=3: the name of a class is allowed",
    "rounds=${rounds}": "rounds=${rounds}: it refers to itself; the name of another key is allowed",
    "rounds=${eval:1}": "rounds=${eval:1}: there is no function eval",
    "rounds=${nope}": (
        "rounds=${nope}: Interpolation key 'nope' not found; the name of another key is allowed"
    ),
    "eval=[1]": "eval=[1]: it is a section with keys of its own, such as eval.every",
    "server=null": "server=None: it is a section with keys of its own",
}

# Settings of Hydra that do not exist, and variables that are not set.
HYDRA = {
    "-m hydra/launcher=nope": "hydra/launcher=nope: choose from basic",
    "-m hydra/launcher=submitit_lokal": (
        "hydra/launcher=submitit_lokal: did you mean 'submitit_local'?"
    ),
    "-m hydra/sweeper=optun": "hydra/sweeper=optun: did you mean 'optuna'?",
    "hydra/job_logging=nope": "hydra/job_logging=nope: did you mean 'none'?",
    "data.root=${oc.env:NOT_SET}": (
        "data.root=${oc.env:NOT_SET}: Environment variable 'NOT_SET' not found; set it, or"
    ),
    "results=${oc.env:NOT_SET}": (
        "results=${oc.env:NOT_SET}: Environment variable 'NOT_SET' not found; set it, or"
    ),
    "-m results=${oc.env:NOT_SET}": (
        "results=${oc.env:NOT_SET}: Environment variable 'NOT_SET' not found; set it, or"
    ),
    "rounds=${oc.env:HOME}": "rounds=${oc.env:HOME}: an integer is allowed",
    "objective=accuracy": "objective=accuracy: did you mean 'best_accuracy'?",
    "objective=zzz": "objective=zzz: choose from best_accuracy, final_accuracy, test_loss",
}

VALUES = {
    "client.lr=nan": "client.lr=nan: must be at least 1e-30",
    "client.lr=1e-50": "client.lr=1e-50: must be at least 1e-30",
    "client.lr=[0.1]": "client.lr=[0.1]: a number is allowed",
    "client.lr={a:1}": "client.lr={'a': 1}: a number is allowed",
    "client.lr=": "client.lr=: a number is allowed",
    "client.momentum=nan": "client.momentum=nan: must be at least 0 and below 1",
    "client.epochs=1.5": "client.epochs=1.5: an integer is allowed",
    "client.epochs=100000000000000000000000": "must be an integer of at most 1000000000000",
    "client.batch_size=10000000000000": "must be `full` or an integer of at least 1",
    "client.batch_size=[32]": "client.batch_size=[32]: must be `full` or an integer",
    "seed=9223372036854775808": "must be an integer of at least 0 and at most",
    "runtime.device=tpu": "runtime.device=tpu: did you mean 'cpu'?",
    "runtime.timeout=0": "runtime.timeout=0: must be an integer of at least 1",
    "runtime.workers=100000": "must be an integer of at least 1 and at most 1024",
    "checkpoint.every=never": "checkpoint.every=never: an integer is allowed",
    "results=null": "results=None: a name is allowed",
    "partition.alpha=nan": "partition.alpha=nan: a finite number from 1e-6",
    "partition.alpha=-1": "partition.alpha=-1.0: a finite number from 1e-6",
    "partition.local_test=1": "partition.local_test=1.0: a number from 0 to below 1",
    "partition=labels partition.per_client=0": "partition.per_client=0: from 1 to 10",
    "partition=pareto partition.shape=0": "partition.shape=0.0: a finite number above 0",
    "model.hidden=3": "model.hidden=3: a list is allowed",
    "model.hidden=[a,b]": "model.hidden[0]=a: an integer is allowed",
    "model.hidden=[1000000000,1000000000]": "too large for this machine's memory",
    "model=lstm": "model=lstm: needs pairs of sentences",
    "data.classes=9": "data.classes=9: must be 10",
    "data.shape=[4,4,4]": "data.shape=[4, 4, 4]: must be [8, 8, 1]",
    "data.name=mnist": "data.name=mnist: data=digits is digits; only digits is allowed",
    "data=mnist scale=smoke data.name=fmnist": (
        "data.name=fmnist: data=mnist is mnist; only mnist is allowed"
    ),
    "data.train_size=-1": "data.train_size=-1: must be an integer of at least 1",
    "data=mnist scale=smoke data.std=[0]": "data.std=[0.0]: must be above 0",
    "data=mnist scale=smoke data.mean=[0,0]": (
        "data.mean=[0.0, 0.0]: must be 1 finite numbers, one for each channel, or null"
    ),
    "data=mnist scale=smoke data.shape=[]": "data.shape=[]: must be height, width and channels",
    "data=qqp scale=smoke data.classes=1": (
        "data.classes=1: must be 2: pairs mean the same or not"
    ),
    "data=qqp scale=smoke data.classes=0": (
        "data.classes=0: must be 2: pairs mean the same or not"
    ),
    "data=qqp scale=smoke data.classes=-1": (
        "data.classes=-1: must be 2: pairs mean the same or not"
    ),
    "data=qqp scale=smoke data.train_size=0": "data.train_size=0: must be an integer of at least 1",
    "data=mnist scale=smoke model=resnet18 model.image_size=1000000000": (
        "null or 8 to 4096 pixels are allowed"
    ),
    "data=mnist scale=smoke model=vit_b32 model.image_size=32000000": (
        "a multiple of 32, at most 4096, is allowed"
    ),
    "modifier=[ecgr] client.steps=1000000000000": (
        "client.steps=1000000000000: ecgr keeps all of 1000000000000 local"
    ),
    "modifier=[ecgr] client.epochs=1000000000000": "client.epochs=1000000000000: ecgr keeps all of",
    "algo=fedecgr algo.memory=1000000000 client.steps=1000000000000": (
        "local steps; the memory of this machine can"
    ),
    "algo=feddyn algo.alpha=1e-45": "algo.alpha=1e-45: a number from 1e-30 to 1e38 is allowed",
    "algo=fedlc algo.tau=1e308": "algo.tau=1e+308: a number from 0 to 1e30 is allowed",
    "algo=moon algo.temperature=1e-40": (
        "algo.temperature=1e-40: a number from 1e-30 to 1e30 is allowed"
    ),
    "data.augment=null": "data.augment=None: a value is needed",
    "data.augment=[flop]": "data.augment=['flop']: must be a list of crop and flip",
    "data.mean=[0.5]": "data.mean=[0.5]: must be null",
    "data=mnist scale=smoke data.shape=[0,28,1]": (
        "data.shape=[0, 28, 1]: must be height, width and channels"
    ),
    "data=mnist scale=smoke data.classes=100000000000": "too large for this machine's memory",
    "data=mnist scale=smoke data.classes=100000000000000000000": "an integer below 2^63 is allowed",
    "data=qqp scale=smoke model=mlp": "model=mlp: this data is sentences of word numbers",
    "scale=laptop": (
        "data.subset=10000: must be from 1 to 1438, the number of training examples;"
        " data.subset=null"
    ),
    "data=npz data.path=FILES/good.npz scale=smoke": (
        "scale=smoke: data=npz has no stand-in; rounds=2 data.subset=300"
    ),
    "data=npz data.path=FILES/good.npz partition.clients=61": (
        "partition.clients=61: from 1 to 60, the training"
    ),
    "attack=label_shift attack.shift=10": (
        "attack.shift=10: must not be a multiple of the 10 classes"
    ),
    "attack=label_shift attack.clients=[9]": (
        "attack.clients=[9]: must be different numbers from 0 to 3"
    ),
    "attack=label_shift attack.clients=0": "attack.clients=0: a list is allowed",
    "algo=fedgen algo.batch=1000000000": "algo.batch=1000000000: an integer from 2 to 1000000",
    "algo=fedpvr algo.layers=7": "the model has 3 layers",
    "algo=fedncv algo.beta=1": "algo.beta=1.0: a number from 0 to below 1",
    "algo=fedgsnr algo.steps=0": "algo.steps=0: an integer from 1 to",
    "logger=wandb logger.project=a/b": "logger.project=a/b: a name of 1 to 128 characters",
    "logger=wandb logger.project=": "logger.project=: a name of 1 to 128 characters",
    "logger=wandb logger.entity=a/b": "logger.entity=a/b: a name of 1 to 128 characters",
    "logger=wandb logger.mode=disabled": "logger.mode=disabled: choose from auto, offline, online",
}

ARRAYS = {
    "missing": "lacks x_test",
    "empty": "x_train has shape [0, 8, 8]",
    "words": "x_train is <U1, must be numbers",
    "nan": "x_train has NaN or infinite values",
    "short": "x_train has 60 examples and y_train 50 labels",
    "other_shape": "examples have shape [8, 8] in x_train and [7, 8] in x_test",
    "negative": "y_train has the label -1",
    "identifiers": "have the label 1000002, must be classes numbered from 0",
    "fractions": "y_train is float64 [60], must be a list of integers",
    "objects": "it holds Python objects or is no such file",
    "pickle": "it holds Python objects or is no such file",
    "text": "it holds Python objects or is no such file",
    "cut": "not a readable .npz file",
    "spoilt": "not a readable .npz file (Bad CRC-32",
    "raw": "x_train is no array (.npy); needs x_train, y_train, x_test, y_test",
}
# Readable presets in whose values something is wrong, and presets that no YAML reader takes.
PRESETS = {
    "experiment=old": (
        "unknown key 'client.local_epochs': did you mean 'epochs'?"
    ),  # of an older version
    "algo=old": "unknown key 'algo.muu': did you mean 'mu'?",
    "algo=mien": "algo=mien: did you mean 'mine'?",
    "data=lie": "data.name=mnist: must be digits, the embedded data",
    "data=escape": "data.name=../x: must be the name of a folder in the data root",
    "experiment=nul_results": "results=a\\x00b: text without a NUL character is allowed",
    "experiment=nul_results -m seed=0,1": (
        "results=a\\x00b: a folder that can be written is allowed"
    ),
    "experiment=nul_weights": "model.weights=a\\x00b: text without a NUL character is allowed",
    "experiment=syntax": (
        "experiment/syntax.yaml, line 3: a YAML file in UTF-8 is allowed (expected ',' or ']'"
    ),
    "experiment=twice": (
        "experiment/twice.yaml, line 3: a YAML file in UTF-8 is allowed (found duplicate key"
        " rounds)"
    ),
    "experiment=tag": (
        "experiment/tag.yaml, line 2: a YAML file in UTF-8 is allowed (could not determine a"
        " constructor"
    ),
    "experiment=control": (
        "experiment/control.yaml: a YAML file in UTF-8 is allowed (unacceptable character #x0001"
    ),
    "experiment=latin": (
        "experiment/latin.yaml: a YAML file in UTF-8 is allowed ('utf-8' codec can't decode"
    ),
}
SPLITS = {
    "repeated": "index 1 is in client 0 and again in client 1",
    "outside": "client 1 has index 1438, needs 0 to 1437",
    "negative": "client 0 has index -1",
    "map": "needs a JSON file: a list with a list of training indices for each client",
    "empty_clients": "no client has any index",
    "left_out": (
        "1436 of 1438 training examples are in no client, the first is 1; partition.incomplete=true"
        " allows"
    ),
    "fractions": "client 0 has 1.5, needs whole numbers",
    "text": "not JSON",
}
WEIGHTS = {
    "missing": "lacks fc3.weight, fc3.bias; the model's tensors are fc1.weight",
    "extra": "has the unknown fc4.bias",
    "shape": "fc1.weight is 200x65, the model needs 200x64",
    "integers": "fc1.weight is int32, the model needs float32",
    "nan": "fc1.bias has NaN or infinite values",
    "pickle": "not a safetensors file",
    "text": "not a safetensors file",
}
FILES = {
    **{f"data=npz data.path=FILES/{name}.npz": told for name, told in ARRAYS.items()},
    **{
        f"partition=file partition.clients=null partition.path=FILES/{name}.json": told
        for name, told in SPLITS.items()
    },
    **{f"model.weights=FILES/{name}.safetensors": told for name, told in WEIGHTS.items()},
    "data=npz data.path=FILES/folder": "is a directory",
    "partition=file partition.path=FILES/two_clients.json": "partition.clients=4: null or 2",
    "model.weights=FILES/folder": "is a directory",
    "data=mnist data.root=/nowhere": (
        "data=mnist: not in /nowhere/mnist; `fedbench-data mnist --root /nowhere"
    ),
    "data=mnist data.root=FILES/text.txt": "text.txt: must be a folder; it is a file",
    "results=FILES/text.txt": "text.txt: a folder that can be written is allowed",
    **{f"--config-dir FILES/own {words}": told for words, told in PRESETS.items()},
    # What would be waited for, or read without end.
    "data=npz data.path=FILES/pipe": (
        "pipe: must be an ordinary file, neither a pipe nor a device"
    ),
    "data=npz data.path=/dev/zero": "data.path=/dev/zero: must be an ordinary file",
    "partition=file partition.path=FILES/pipe": "neither a pipe nor a device",
    "partition=file partition.path=/dev/zero": (
        "partition.path=/dev/zero: must be an ordinary file"
    ),
    "model.weights=FILES/pipe": "neither a pipe nor a device",
    "model.weights=/dev/zero": "model.weights=/dev/zero: must be an ordinary file",
    "data=mnist scale=smoke model=resnet18_pretrained model.weights=/dev/zero": (
        "neither a pipe nor a device"
    ),
    # Clients' own models are scored on their own classes, which this test set has not.
    **{
        f"data=npz data.path=FILES/strangers.npz {words}": (
            "algo.scoring=per_client: no client has a class of the test"
        )
        for words in (
            "algo=fedper",
            "algo=fedrep",
            "algo=pfedsim",
            "algo=local algo.scoring=per_client",
            "algo=fedper runtime.workers=2",
            "algo=fedper attack=label_shift attack.shift=2",
        )
    },
}

SWEEPS = {  # each has one job, so that one line is told
    "-m client.lr=-1": "client.lr=-1.0: must be at least 1e-30",
    "-m seed=0,1 rouns=3": "unknown key 'rouns': did you mean 'rounds'?",
    "-m seed=0,1 results=FILES/text.txt": "text.txt: a folder that can be written is allowed",
    "-m rounds=glob(*)": "a sweep without jobs",
    "-m rounds=interval(1,3)": "INTERVAL",
    "-m seed=0,1 modifier=[],[ecgr,ecgr]": "ecgr is named twice",
    "-m seed=0,1 algo=fedavg,fedav": "algo=fedav: did you mean 'fedavg'?",
}

TABLE = {**CHOICES, **KEYS, **HYDRA, **VALUES, **FILES, **SWEEPS}
