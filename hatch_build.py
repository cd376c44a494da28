"""Compile the native core of mirrorshot.softmax, for wheels and for editable installs.

`python hatch_build.py` compiles it in place. Without a compiler the package is built without it, and runs on NumPy.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program
    BuildHookInterface = object

FOLDER = Path(__file__).parent / "src" / "mirrorshot" / "softmax" / "native"
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-Wno-psabi"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),  # infinities and NaN keep their meaning
)
WINDOWS_FLAGS = ("/O2", "/std:c++17", "/fp:precise")


def _loader() -> Any:
    """`mirrorshot.softmax.native.loader` without the package, whose dependencies are not there during a build."""
    spec = importlib.util.spec_from_file_location("loader", FOLDER / "loader.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_library(*options: str) -> Path:
    """Compile the library next to its sources, with its checksum; return it.

    Raises:
        OSError: there is no compiler, or none that can compile it.
    """
    module = _loader()
    target, checksum_file = module.LIBRARY, module.checksum_file(module.LIBRARY)
    for old in (target, checksum_file):
        old.unlink(missing_ok=True)
    built = target.with_name(f"{target.stem}-{os.getpid()}{target.suffix}")
    try:
        (_compile_on_windows if os.name == "nt" else _compile)(built, options)
        checksum_file.write_text(module.checksum(built.read_bytes()), "ascii")
        built.replace(target)  # a process that has the old one loaded keeps it
    finally:
        built.unlink(missing_ok=True)
    return target


def _compile(built: Path, options: tuple[str, ...]) -> None:
    problems = []
    for command in [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]:
        compiler = shlex.split(command)
        if shutil.which(compiler[0]) is None:
            problems.append(f"no {compiler[0]}")
            continue
        last = ["-Wl,--as-needed"] if sys.platform == "linux" else _mac_architectures()
        line = [*compiler, *FLAGS, *options, str(FOLDER / "core.cpp"), "-o", str(built), *last]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode == 0:
            return
        problems.append(f"{command} failed: {done.stderr.strip()[-500:]}")
    raise OSError("; ".join(problems))


def _mac_architectures() -> list[str]:
    if sys.platform != "darwin":
        return []
    if os.environ.get("ARCHFLAGS"):
        return shlex.split(os.environ["ARCHFLAGS"])
    is_universal = sysconfig.get_platform().endswith("universal2")
    return ["-arch", "x86_64", "-arch", "arm64"] if is_universal else []


def _compile_on_windows(built: Path, options: tuple[str, ...]) -> None:
    """Compile with the compiler that setuptools finds."""
    from setuptools._distutils.ccompiler import new_compiler
    from setuptools._distutils.errors import CompileError, DistutilsError, LinkError

    compiler = new_compiler()
    folder = built.with_suffix(".objects")
    try:
        objects = compiler.compile([str(FOLDER / "core.cpp")], str(folder), extra_preargs=[*WINDOWS_FLAGS, *options])
        compiler.link_shared_object(objects, str(built))
    except (DistutilsError, CompileError, LinkError) as error:
        raise OSError(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def platform_tag() -> str:
    """Platform of a wheel with the library, which needs no version of Python."""
    tag = sysconfig.get_platform()
    architectures = _mac_architectures()[1::2]
    if sys.platform == "darwin" and len(architectures) == 1:
        tag = f"{tag.rpartition('-')[0]}-{architectures[0]}"
    return tag.replace("-", "_").replace(".", "_")


class CustomBuildHook(BuildHookInterface):
    """Adds the library to a wheel, and marks the wheel as one for this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; without a compiler, say so and go on."""
        try:
            library = compile_library()
        except OSError as error:
            self.app.display_warning(f"mirrorshot is built without its native core and will run on NumPy ({error}).")
            return
        root = Path(self.root)
        build_data["artifacts"] += [
            f"/{path.relative_to(root).as_posix()}" for path in sorted(FOLDER.glob("core.[!ch]*"))
        ]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"
        self.app.display_info(f"Compiled {library.name}.")


if __name__ == "__main__":
    print(compile_library(*sys.argv[1:]))
