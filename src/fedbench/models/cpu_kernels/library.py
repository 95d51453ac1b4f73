"""The C++ kernels as a library: compiled at their first use, kept in the user's cache.

The library's name is a hash of the sources, the compiler's version, its options and the kind of
processor, so a new version of any of them compiles anew. A checksum beside the library tells a
damaged file, which is compiled again. Nothing in it depends on Python's or PyTorch's interfaces: it
is called with plain addresses.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import torch

from fedbench.core.files import checksum, write_atomically

SOURCES = ("lenet.cpp", "winograd.cpp")
HEADERS = ("vectors.h",)
COMPILERS = ("g++", "clang++", "c++")  # tried in this order where CXX names none
# One kind of vectors for all processors, and no fusing of operations that the source does not
# fuse, so that bits depend on neither.
OPTIONS = (
    "-std=c++17",
    "-O3",
    "-mavx2",
    "-mfma",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
)
# After so long a compiler that hangs is given up.
COMPILE_SECONDS = 300
VERSION_SECONDS = 30

_FOLDER = Path(__file__).parent
_ADDRESS, _SIZE, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
# Every function with the types of its arguments and of its result.
_FUNCTIONS = {
    "lenet_forward_floats": ([_ADDRESS, _FLAG], _SIZE),
    "lenet_backward_floats": ([_ADDRESS], _SIZE),
    "lenet_forward": ([_ADDRESS, _FLAG] + 7 * [_ADDRESS], None),
    "lenet_backward": ([_ADDRESS, _FLAG] + 8 * [_ADDRESS], None),
    "winograd_inputs": (3 * [_ADDRESS], None),
    "winograd_outputs": (3 * [_ADDRESS], None),
    "winograd_outputs_backward": (3 * [_ADDRESS], None),
    "winograd_inputs_backward": (3 * [_ADDRESS], None),
    "winograd_transpose": ([_SIZE, _SIZE, _ADDRESS, _ADDRESS], None),
}


class Unavailable(Exception):
    """This machine cannot have the kernels. The text says why."""


def load() -> ctypes.CDLL:
    """The kernels, compiled if need be. Raises `Unavailable`.

    Processes that are forked later share them. Several processes that come here at once compile
    once: the others wait.
    """
    found = attempt()
    if isinstance(found, str):
        raise Unavailable(found)
    return found


@cache
def attempt() -> ctypes.CDLL | str:
    """The kernels, or why there are none. Each process tries once: a failure may take minutes."""
    try:
        return _compile_or_open()
    except Unavailable as error:
        return str(error)


def _compile_or_open() -> ctypes.CDLL:
    if platform.machine() not in ("x86_64", "AMD64"):
        raise Unavailable(f"native kernels need an x86-64 processor, this one is {_processor()}")
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):  # AVX2 or more
        raise Unavailable("this processor has no AVX2")
    if not torch.backends.mkldnn.is_available():
        raise Unavailable("this PyTorch has no oneDNN, which native kernels call")
    compiler = find_compiler()
    folder = cache_folder()
    file = library_file(folder, compiler)
    try:
        return open_library(file)
    except Damaged:
        pass
    from filelock import FileLock

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            try:
                return open_library(file)  # another process was faster
            except Damaged:
                compile_library(compiler, file)
            return open_library(file)
    except (OSError, NotImplementedError, Damaged) as error:  # some filesystems have no locks
        raise Unavailable(f"native kernels cannot be stored in {folder} ({error})") from error


class Damaged(Exception):
    """The library is missing, or is not what was compiled."""


def cache_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("fedbench") / "kernels"


def _processor() -> str:
    return platform.machine() or "unknown"


def find_compiler() -> list[str]:
    """The words that start the machine's C++ compiler; the environment's CXX wins."""
    named = os.environ.get("CXX", "")
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise Unavailable(f"CXX={named} is not a command ({error})") from error
    for command in [words] if words else [[name] for name in COMPILERS]:
        if shutil.which(command[0]):
            return command
    raise Unavailable(f"there is no C++ compiler here ({shlex.join(words) or 'g++ or clang++'})")


def compiler_version(compiler: list[str]) -> str:
    """What the compiler says about itself; its first line names it."""
    return _run([*compiler, "--version"], VERSION_SECONDS).stdout


def _run(command: list[str], seconds: int) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} was not ready after {seconds} s") from error
    except OSError as error:  # such as a file that is no program
        raise Unavailable(f"{command[0]} cannot be started ({error})") from error


def library_file(folder: Path, compiler: list[str]) -> Path:
    """Where the library is kept. Its name changes with everything that may change its code."""
    version = compiler_version(compiler)
    words = [shlex.join(compiler), *OPTIONS, platform.system(), _processor(), version]
    content = hashlib.blake2b("\0".join(words).encode(), digest_size=8)
    try:
        for name in SOURCES + HEADERS:
            content.update((_FOLDER / name).read_bytes())
    except OSError as error:
        raise Unavailable(f"a source file of the native kernels is missing ({error})") from error
    return folder / f"kernels-{content.hexdigest()}.so"


def compile_library(compiler: list[str], file: Path) -> None:
    """Compile beside the file and rename, so that it is there whole or not at all."""
    print(
        f"compiling the CPU kernels with {shlex.join(compiler)}, once for this machine", flush=True
    )
    temporary = file.with_suffix(f".{os.getpid()}.part")
    sources = [str(_FOLDER / name) for name in SOURCES]
    command = [*compiler, *OPTIONS, *sources, "-o", str(temporary)]
    try:
        done = _run(command, COMPILE_SECONDS)
        if done.returncode != 0:
            why = next(iter(done.stderr.strip().splitlines()), f"status {done.returncode}")
            raise Unavailable(f"{compiler[0]} does not compile the native kernels: {why}")
        write_atomically(_checksum_file(file), checksum(temporary))
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def open_library(file: Path) -> ctypes.CDLL:
    try:
        if checksum(file) != _checksum_file(file).read_text():
            raise Damaged("the checksum is another one")
        library = ctypes.CDLL(str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise Damaged(str(error)) from error
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = result
    return library


def _checksum_file(file: Path) -> Path:
    return file.with_suffix(".sha256")
