"""`fedbench-data`: prepare datasets once, and list what is there."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from fedbench.core.errors import BadInput, OneLineParser, nearest, spelled_out
from fedbench.data.files import data_root, one_line
from fedbench.data.prepare.catalog import ENTRIES
from fedbench.data.prepare.inventory import describe, table
from fedbench.data.prepare.preparation import FAILURES, Wish, facts_of, prepare

FINISHED, BAD_INPUT, INTERRUPTED = 0, 2, 130
_DESCRIPTION = """\
Prepare a dataset once. It goes to the data root: --root, else $FEDBENCH_DATA, else a cache folder.

  fedbench-data list                               what is there: size, shapes, source
  fedbench-data svhn --download                    fetch the original files and prepare them
  fedbench-data cinic10 --from CINIC-10.tar.gz     prepare your files: an archive or a folder

An interrupted command goes on when it is repeated. docs/datasets.md tells about every dataset.
"""


def main() -> None:
    """`fedbench-data ...`: see `fedbench-data --help`."""
    try:
        run(sys.argv[1:])
    except BadInput as error:
        _end(BAD_INPUT, str(error))
    except FAILURES as error:
        _end(
            BAD_INPUT,
            f"failed ({one_line(error)}); the same command (without --force) goes on where it"
            " stopped",
        )
    except KeyboardInterrupt:
        _end(
            INTERRUPTED, "interrupted; the same command (without --force) goes on where it stopped"
        )
    sys.exit(FINISHED)


def _end(status: int, message: str) -> NoReturn:
    print(f"fedbench-data: {spelled_out(message)}", file=sys.stderr, flush=True)
    sys.exit(status)


def run(words: list[str]) -> None:
    asked = _parser().parse_args(words)
    root = data_root(asked.root)
    if asked.name == "list":
        print(f"data root: {root}")
        print(table(root))
        return
    if asked.name not in ENTRIES:
        raise BadInput(f"unknown dataset '{asked.name}': {nearest(asked.name, [*ENTRIES, 'list'])}")
    wish = _wish(asked)
    done = prepare(wish, root / asked.name)
    state = "prepared" if done else "there already (--force prepares it again)"
    print(f"{asked.name}: {state}: {root / asked.name}, {describe(asked.name, root / asked.name)}")


def _wish(asked: argparse.Namespace) -> Wish:
    given = None if asked.given is None else Path(asked.given).expanduser()
    if given is not None and asked.download:
        raise BadInput("--from and --download: only one of them is allowed")
    if given is not None and not given.exists():
        raise BadInput(f"--from {given}: no such file or folder")
    if asked.size is not None:
        resized = ", ".join(name for name, entry in ENTRIES.items() if entry.resized)
        if not ENTRIES[asked.name].resized:
            raise BadInput(f"--size {asked.size}: only for {resized}; {asked.name} keeps its own")
        if not 8 <= asked.size <= 768:
            raise BadInput(f"--size {asked.size}: a number from 8 to 768 is allowed")
    return Wish(asked.name, given, asked.download, asked.force, asked.any_size, asked.size)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        "fedbench-data",
        usage="fedbench-data NAME [--from FILE_OR_FOLDER | --download] [options]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    size = facts_of("lc25000").shape[0]
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


if __name__ == "__main__":
    main()
