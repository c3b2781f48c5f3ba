"""Builds the native core and compiles the hot modules. Both are optional: without a C compiler the pure-Python twin and
the modules' sources serve, and `topicctl version` says why."""

import os
import sys
from glob import glob
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
NATIVE = "topicd/_native"

spec = spec_from_file_location("compiled", ROOT / "topicd/compiled.py")
compiled = module_from_spec(spec)
spec.loader.exec_module(compiled)
failures: list[str] = []  # why something is not compiled


def native_core() -> Extension:
    return Extension(
        "topicd._native._core",
        sources=sorted(glob(f"{NATIVE}/*.c")),
        depends=[*glob(f"{NATIVE}/*.h"), f"{NATIVE}/vendor/xxhash.h"],
        include_dirs=[f"{NATIVE}/vendor"],
        extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra", "-fvisibility=hidden"],
        optional=True,
    )


def hot_modules() -> list[Extension]:
    if not {"build_ext", "develop", "editable_wheel", "bdist_wheel", "install", "build"} & set(sys.argv):
        return []
    if os.environ.get("TOPICD_COMPILED") == "0":
        failures.append("TOPICD_COMPILED=0 was set when it was installed")
        return []
    if os.environ.get("TOPICD_COMPILED") == "later":
        failures.append("left for later; `make setup` compiles them")
        return []
    sources = [str(compiled.source_of(name, Path())) for name in compiled.MODULES]
    level = os.environ.get("TOPICD_OPT_LEVEL", "2")
    try:
        from mypyc.build import mypycify

        given = [*compiled.MYPY_ARGUMENTS, *sources]
        made = mypycify(given, group_name=compiled.GROUP, opt_level=level, debug_level="0", multi_file=True)
    except (Exception, SystemExit) as exc:
        failures.append(f"mypyc refused: {exc}")
        return []
    for extension in made:
        extension.optional = True
    return made


class BuildExt(build_ext):
    """Two at a time, and a note of what the machine code was made from, if all of it could be made."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or 2
        self.force = True  # a change in one of the modules changes what the others must know of it

    def run(self) -> None:
        root = Path() if self.inplace else Path(self.build_lib)
        stale = [old for place in ("topicd", "ipc", "shards") for old in (root / place).rglob("*.so")]
        for old in [*stale, *root.glob(f"{compiled.GROUP}*.so")]:
            old.unlink()  # perhaps of a module that is compiled no longer
        super().run()
        compiled.note_failure(root, "")
        wanted = [extension.name for extension in self.extensions if extension.name != "topicd._native._core"]
        if wanted and all(Path(self.get_ext_fullpath(name)).exists() for name in wanted):
            compiled.note_built(root)
        else:
            why = "; ".join(dict.fromkeys(failures)) or "the C compiler failed"
            sys.stderr.write(f"the hot modules are not compiled: {why}\n")
            compiled.note_failure(root, why)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as exc:  # it is optional: its caller goes on
            failures.append(str(exc).strip().splitlines()[-1])
            raise


setup(ext_modules=[native_core(), *hot_modules()], cmdclass={"build_ext": BuildExt})
