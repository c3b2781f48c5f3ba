"""Builds the native core. Optional: without a C compiler the pure-Python twin serves."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "topicd._native._core",
            sources=["topicd/_native/core.c"],
            depends=["topicd/_native/vendor/xxhash.h"],
            include_dirs=["topicd/_native/vendor"],
            extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra", "-fvisibility=hidden"],
            optional=True,
        )
    ]
)
