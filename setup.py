"""Builds the native core and compiles the hot modules. Both are optional: without a C compiler the pure-Python twin and
the modules' sources serve."""

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
    sources = [str(compiled.source_of(name, Path())) for name in compiled.MODULES]
    arguments = ["--ignore-missing-imports", "--no-warn-unused-ignores", *sources]
    try:
        from mypyc.build import mypycify

        made = mypycify(arguments, group_name=compiled.GROUP, opt_level="2", debug_level="0", multi_file=True)
    except (Exception, SystemExit) as exc:
        sys.stderr.write(f"the hot modules are not compiled: {exc}\n")
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
        for place in ("topicd", "ipc", "shards"):
            for old in (root / place).rglob("*.so"):
                old.unlink()  # perhaps of a module that is compiled no longer
        super().run()
        wanted = [extension.name for extension in self.extensions if extension.name != "topicd._native._core"]
        if wanted and all(Path(self.get_ext_fullpath(name)).exists() for name in wanted):
            compiled.note_built(root)


setup(ext_modules=[native_core(), *hot_modules()], cmdclass={"build_ext": BuildExt})
