"""includes.py on small trees: it must see what it is there for."""
import os
import tempfile

import includes

TABLE = """
engine/base
engine/graph
engine/plan
codegen/cpu codegen/cuda
runtime
runtime/cpu
"""
CLEAN = {
    "engine/base/messages.def": [],
    "engine/base/messages.h": ["engine/base/result.h"],
    "engine/base/result.h": ["engine/base/messages.def"],
    "engine/graph/graph.h": ["engine/base/result.h"],
    "engine/graph/text.cpp": ["engine/graph/graph.h"],
    "runtime/cpu/kernels/copy.cpp": ["runtime/kernel_call.h"],
    "runtime/kernel_call.h": ["engine/graph/graph.h"],
}


def faults_with(files):
    with tempfile.TemporaryDirectory() as root:
        for path, included in {**CLEAN, **files}.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as text:
                text.write("#pragma once\n" + "".join(f'#include "{other}"\n' for other in included))
        return includes.faults_of(root, TABLE)


def check(what, files, expected):
    """Each of `expected` is the whole text of a fault, but for spaces."""
    found = [" ".join(fault.split()) for fault in faults_with(files)]
    assert found == expected, f"{what}: {found}"


def run():
    check("a clean tree", {}, [])
    check(
        "a circle through a source file",
        {"engine/plan/a.h": [], "engine/plan/a.cpp": ["engine/plan/b.h"], "engine/plan/b.h": ["engine/plan/a.h"]},
        [
            "circle of modules engine/plan/a -> engine/plan/b -> engine/plan/a:"
            ' engine/plan/a.cpp:2: #include "engine/plan/b.h" engine/plan/b.h:2: #include "engine/plan/a.h"'
        ],
    )
    check(
        "the shortest of two circles",
        {
            "engine/plan/a.h": ["engine/plan/b.h", "engine/plan/c.h"],
            "engine/plan/b.h": ["engine/plan/c.h"],
            "engine/plan/c.h": ["engine/plan/a.h"],
        },
        [
            "circle of modules engine/plan/a -> engine/plan/c -> engine/plan/a:"
            ' engine/plan/a.h:3: #include "engine/plan/c.h" engine/plan/c.h:2: #include "engine/plan/a.h"'
        ],
    )
    check(
        "a folder that includes one above it",
        {"engine/plan/plan.h": [], "engine/graph/verify.cpp": ["engine/plan/plan.h"]},
        [
            "engine/graph includes engine/plan, which is above it:"
            ' engine/graph/verify.cpp:2: #include "engine/plan/plan.h"'
        ],
    )
    check(
        "neighbours",
        {"codegen/cpu/a.h": [], "codegen/cuda/b.h": ["codegen/cpu/a.h"]},
        ['codegen/cuda includes codegen/cpu, which is beside it: codegen/cuda/b.h:2: #include "codegen/cpu/a.h"'],
    )
    check(
        "a folder that the table does not name",
        {"runtime/tpu/a.h": []},
        ["runtime/tpu/a is in no layer: name its folder in tests/layering/includes.py"],
    )


if __name__ == "__main__":
    run()
