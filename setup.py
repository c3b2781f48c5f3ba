"""Builds the native core. Optional: without a C compiler the pure-Python twin serves."""

from setuptools import Extension, setup

NATIVE = "topicd/_native"

setup(
    ext_modules=[
        Extension(
            "topicd._native._core",
            sources=[f"{NATIVE}/{name}.c" for name in ("core", "write", "scan", "read", "columns", "runs")],
            depends=[f"{NATIVE}/core.h", f"{NATIVE}/checksum.h", f"{NATIVE}/vendor/xxhash.h"],
            include_dirs=[f"{NATIVE}/vendor"],
            extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra", "-fvisibility=hidden"],
            optional=True,
        )
    ]
)
