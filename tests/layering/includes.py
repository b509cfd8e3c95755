#!/usr/bin/env python3
"""What includes what in engine, codegen and runtime: no circle between modules, no include of a layer above.

A module is the header and the source of one name; a table (`.def`) is a module of its own. includes.py [ROOT]
prints each fault with the lines that make it.
"""
import collections
import os
import re
import sys

# The lowest layer first; one may include itself and those below it. Layers of one line do not include each other.
# A layer is a folder and what lies below it; where this table names something below it, only the folder's own files.
# Or it is a module, which stands above or below the rest of its folder: pipeline runs all stages, and why runs it again;
# registry opens the built-in backends.
LAYERS = """
engine/base
engine/graph
engine/semantics
engine/onnx
engine/interpreter
engine/target
engine/rule
engine/contract
engine/match
engine/rewrite
engine/group
engine/plan
engine/proof
engine/pipeline
engine/why
engine/reduce
codegen/cache
codegen/program
codegen/cpu codegen/cuda
codegen/annotate_plan
runtime
runtime/reference
runtime/null
runtime/registry
runtime/place_proof
runtime/session
runtime/group_proof
runtime/answers
runtime/cpu runtime/cuda
runtime/c runtime/cli
"""

INCLUDE = re.compile(r'\s*#\s*include "((?:engine|codegen|runtime)/[^"]+)"')


def module_of(path):
    return path if path.endswith(".def") else path.rsplit(".", 1)[0]


def read_includes(root):
    """By module: what it includes, each with the first line that does."""
    includes = collections.defaultdict(dict)
    for top in ("engine", "codegen", "runtime"):
        for folder, _, files in sorted(os.walk(os.path.join(root, top))):
            for name in sorted(files):
                if not name.endswith((".h", ".cpp", ".def")):
                    continue
                file = os.path.join(folder, name)
                path = os.path.relpath(file, root)
                own = includes[module_of(path)]
                with open(file, encoding="utf-8") as text:
                    for number, line in enumerate(text, 1):
                        found = INCLUDE.match(line)
                        if found and module_of(found[1]) != module_of(path):
                            own.setdefault(module_of(found[1]), f"{path}:{number}: {line.strip()}")
    return includes


def layers_of(table):
    """By layer: its rank."""
    return {layer: rank for rank, line in enumerate(table.split("\n")) for layer in line.split()}


def layer_of(module, layers):
    """The layer that has the module; None: the table has no place for it."""
    if module in layers:
        return module
    folder = own = os.path.dirname(module)
    while folder:
        if folder in layers:
            split = any(layer.startswith(folder + "/") for layer in layers)
            return folder if folder == own or not split else None
        folder = os.path.dirname(folder)
    return None


def arrows_up(includes, layers):
    """What has no layer, and includes of a layer above or beside."""
    faults = []
    for module in sorted(includes):
        own = layer_of(module, layers)
        if own is None:
            faults.append(f"{module} is in no layer: name its folder in tests/layering/includes.py")
            continue
        for other, line in sorted(includes[module].items()):
            there = layer_of(other, layers)
            if there is None or there == own or layers[there] < layers[own]:
                continue
            where = "beside" if layers[there] == layers[own] else "above"
            faults.append(f"{own} includes {there}, which is {where} it:\n  {line}")
    return faults


def shortest_circle(start, includes):
    """From the module back to itself; none: []."""
    before, reached = {}, collections.deque([start])
    while reached:
        module = reached.popleft()
        for other in sorted(includes.get(module, ())):
            if other == start:
                path = [module]
                while path[-1] != start:
                    path.append(before[path[-1]])
                return path[::-1]
            if other not in before:
                before[other] = module
                reached.append(other)
    return []


def circles(includes):
    """The shortest circles; a module is in one of them at most."""
    found, told = [], set()
    all_of = [shortest_circle(module, includes) for module in sorted(includes)]
    for circle in sorted((c for c in all_of if c), key=len):
        if told.isdisjoint(circle):
            found.append(circle)
            told.update(circle)
    return found


def faults_of(root, table=LAYERS):
    includes = read_includes(root)
    faults = arrows_up(includes, layers_of(table))
    for circle in circles(includes):
        lines = [includes[a][b] for a, b in zip(circle, circle[1:] + circle[:1])]
        faults.append("circle of modules " + " -> ".join(circle + circle[:1]) + ":\n  " + "\n  ".join(lines))
    return faults


if __name__ == "__main__":
    faults = faults_of(sys.argv[1] if len(sys.argv) > 1 else ".")
    print("\n".join(faults))
    sys.exit(bool(faults))
