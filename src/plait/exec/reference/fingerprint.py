"""Fingerprint: everything that decides the last bits of the reference executor's numbers, as one readable string.

Owns the list of those things: our own revision, the number scheme, NumPy and the instructions it uses here, the BLAS
that multiplies and the kernels it chose, the C library, the model. What only says how much is computed at once is none
of them.
Invariant: two processes with equal fingerprints compute with the same code on the same kinds of instructions.
"""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import PurePath

import numpy as np
from numpy.lib.introspect import opt_func_info
from threadpoolctl import threadpool_info

NUMERICS = 1
"""Revision of this executor's arithmetic: goes up with every change that moves a bit of any result."""
NUMBERS = "f32"
"""The number scheme: weights dequantised to float32, float32 activations and cache."""
OWN_FOLDERS = frozenset({"numpy", "numpy.libs"})
"""Where NumPy's wheels keep the BLAS that they bring."""
UNPACKAGED = "source"
"""Stands for the version when Plait runs from a source tree that was never installed."""


def fingerprint(weights: str) -> str:
    """For example `reference-0.1.0-r1-f32-numpy2.4.6-x86_v3-openblas0.3.31-haswell-glibc2.36-<model>`; `weights` is
    their short identity.
    """
    libc = "".join(platform.libc_ver()) or platform.system().lower()
    parts = ["reference", plait_version(), f"r{NUMERICS}", NUMBERS, f"numpy{np.__version__}", simd(), blas(), libc]
    return "-".join([*parts, weights])


def plait_version() -> str:
    try:
        return metadata.version("plait")
    except metadata.PackageNotFoundError:
        return UNPACKAGED


def simd() -> str:
    """Instructions with which NumPy computes exponentials here: it picks them by processor when it is loaded."""
    chosen = [kind["current"] for kind in opt_func_info("^exp$", "float32|float64")["exp"].values()]
    return "+".join(dict.fromkeys(_plain(name) for name in chosen))


def blas() -> str:
    """Name, version and kernels of the BLAS in use. A process may hold several: the one that came with NumPy is its."""
    loaded = [library for library in threadpool_info() if library["user_api"] == "blas"]
    own = [library for library in loaded if not OWN_FOLDERS.isdisjoint(PurePath(library["filepath"]).parts)]
    names = []
    for library in own or loaded:
        name = f"{library['internal_api']}{library['version'] or ''}"
        kernels = library.get("architecture")
        names.append(f"{name}-{_plain(kernels)}" if kernels else name)
    return "+".join(sorted(names)) or _blas_of_the_build()


def _blas_of_the_build() -> str:
    """What NumPy was linked with, where it cannot be looked at while running (Accelerate)."""
    linked = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{_plain(linked['name'])}{linked.get('version', '')}-{platform.machine().lower()}"


def _plain(name: str) -> str:
    """`baseline(X86_V2)` -> `x86_v2`: no characters that would need quoting."""
    inner = name.partition("(")[2].rstrip(")") or name
    return inner.strip().replace(" ", "+").replace("-", "_").lower()
