"""`fedbench-data`: prepare datasets once, and list what is there."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from rich.filesize import decimal

from fedbench.core.errors import (
    BAD_INPUT,
    FINISHED,
    INTERRUPTED,
    BadInput,
    OneLineParser,
    nearest,
    one_line,
    spelled_out,
)
from fedbench.core.terminal import escape_what_the_terminal_cannot_show, streams_without_readers
from fedbench.data.arrays import read_npz
from fedbench.data.prepare.catalog import ENTRIES, dataset_spec, is_prepared, prepared_files
from fedbench.data.prepare.preparation import PrepareRequest, prepare
from fedbench.data.prepared import Info, data_root, npz_files, read_info

_COLUMNS = ("dataset", "size", "training", "test", "classes", "source")
_DESCRIPTION = """\
Prepare a dataset once. It goes to the data root: --root, else $FEDBENCH_DATA, else a cache folder.

  fedbench-data list                               what is there: size, shapes, source
  fedbench-data svhn --download                    fetch the original files and prepare them
  fedbench-data cinic10 --from CINIC-10.tar.gz     prepare your files: an archive or a folder

After an interruption, repeat the command; finished downloads are kept until the dataset is
prepared. docs/datasets.md describes every dataset.
"""


def main() -> None:
    """`fedbench-data ...`: see `fedbench-data --help`."""
    escape_what_the_terminal_cannot_show()
    with streams_without_readers():
        try:
            run(sys.argv[1:])
        except BadInput as error:
            _end(BAD_INPUT, str(error))
        except OSError as error:  # no network, a full or read-only disk
            _end(BAD_INPUT, f"failed ({one_line(error)}); repeat the command to try again")
        except KeyboardInterrupt:
            _end(INTERRUPTED, "interrupted; repeat the command to start again")
    sys.exit(FINISHED)


def _end(status: int, message: str) -> NoReturn:
    print(f"fedbench-data: {spelled_out(message)}", file=sys.stderr, flush=True)
    sys.exit(status)


def run(words: list[str]) -> None:
    arguments = _parser().parse_args(words)
    root = data_root(arguments.root)
    if arguments.name == "list":
        print(f"data root: {root}")
        print(_table(root))
        return
    request = _request(arguments)
    folder = root / request.name
    prepared = prepare(request, folder)
    state = "prepared" if prepared else "there already (--force prepares it again)"
    _, size, train, test, classes, _ = _row(request.name, folder)
    content = f"{train} training and {test} test examples, {classes} classes, {size}"
    print(f"{request.name}: {state}: {folder}, {content}")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        "fedbench-data",
        usage="fedbench-data NAME [--from FILE_OR_FOLDER | --download] [options]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    size = dataset_spec("lc25000").shape[0]
    parser.add_argument("name", metavar="NAME", help=f"list, or one of {', '.join(ENTRIES)}")
    parser.add_argument(
        "--from", dest="given", metavar="FILE_OR_FOLDER", help="the dataset's original files"
    )
    parser.add_argument(
        "--download", action="store_true", help="fetch the original files from their publisher"
    )
    parser.add_argument("--root", help="the data root")
    parser.add_argument(
        "--force", action="store_true", help="prepare it again, although it is there"
    )
    parser.add_argument(
        "--any-size", action="store_true", help="accept fewer or more examples than the dataset has"
    )
    parser.add_argument(
        "--size", type=int, help=f"stored height and width of lc25000's images (default {size})"
    )
    return parser


def _request(arguments: argparse.Namespace) -> PrepareRequest:
    name = arguments.name
    if name not in ENTRIES:
        raise BadInput(f"unknown dataset '{name}': {nearest(name, [*ENTRIES, 'list'])}")
    given = None if arguments.given is None else Path(arguments.given).expanduser()
    if given is not None and arguments.download:
        raise BadInput("--from and --download: must be only one of them")
    if given is not None and not given.exists():
        raise BadInput(f"--from {given}: no such file or folder")
    size = arguments.size
    if size is not None and not ENTRIES[name].resized:
        resized = ", ".join(known for known, entry in ENTRIES.items() if entry.resized)
        raise BadInput(f"--size {size}: only for {resized}; {name} keeps its own")
    if size is not None and not 8 <= size <= 768:
        raise BadInput(f"--size {size}: must be from 8 to 768")
    return PrepareRequest(
        name, given, arguments.download, arguments.force, arguments.any_size, size
    )


def _table(root: Path) -> str:
    """A line for each dataset: size on the disk, number and shape of examples, classes, source."""
    rows = [_COLUMNS, *(_row(name, root / name) for name in ENTRIES)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _row(name: str, folder: Path) -> tuple[str, ...]:
    classes = str(dataset_spec(name).classes)
    if not is_prepared(name, folder):
        how = "--download" if ENTRIES[name].published else "--from FILE_OR_FOLDER"
        return name, "-", "-", "-", classes, f"not there: fedbench-data {name} {how}"
    try:
        info = read_info(folder) or _info_from_labels(name, folder)
    except BadInput as error:
        return name, "-", "-", "-", classes, f"damaged ({error})"
    shape = "x".join(map(str, info.shape))
    train, test = (
        f"{count:,} x {shape}" if shape else f"{count:,} pairs" for count in (info.train, info.test)
    )
    size = sum(path.stat().st_size for path in prepared_files(name, folder))
    return name, decimal(size), train, test, classes, info.source


def _info_from_labels(name: str, folder: Path) -> Info:
    """For arrays that another program wrote."""
    train, test = (len(read_npz(path, ["labels"], str(path))[0]) for path in npz_files(folder))
    return Info("unknown (no info.json)", list(dataset_spec(name).shape), train, test)


if __name__ == "__main__":
    main()
