"""Builds a patched copy of a few source files against the build that is there: rebuild.py TREE OUT

TREE holds the changed and new files under their paths in the repository; OUT gets the program, libferrule.so and
libferrule_cpu.so. Whoever applies the patch for good just runs `ninja -C build`; this is for trying it without
touching the sources. Every command is ninja's own with the changed paths put in.
"""
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"


def run(command):
    done = subprocess.run(command, shell=True, cwd=BUILD, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command}\n{done.stdout}{done.stderr}")


def main():
    tree, out = (pathlib.Path(a).resolve() for a in sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    commands, together = {}, {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"])
        commands.setdefault(file, entry["command"])
        if file.is_relative_to(BUILD / "together"):  # some files of a folder, compiled as one
            together.update({ROOT / name: file for name in re.findall(r'#include "(.*)"', file.read_text())})
    links = {name: subprocess.run(["ninja", "-t", "commands", name], cwd=BUILD, capture_output=True, text=True,
                                  check=True).stdout.splitlines()[-1] for name in ("libferrule_core.so", "libferrule_cpu.so")}
    changed, done = set(), set()
    # New files first: they are linked beside an object that may be replaced.
    for source in sorted(tree.rglob("*.cpp"), key=lambda s: ((ROOT / s.relative_to(tree)).exists(), s)):
        path = ROOT / source.relative_to(tree)
        # A new file is compiled like its neighbours, and linked beside one of them.
        known = path in commands or path in together
        like = together.get(path, path) if known else next(f for p, f in together.items() if p.parent == path.parent)
        if known and like in done:
            continue
        done.add(like if known else path)
        # Files that are compiled as one are found in the tree first.
        what = like if path in together else source
        words = shlex.split(commands[like])
        old = words[words.index("-o") + 1]
        new = str(out / (source.name + ".o"))
        command = commands[like].replace(str(like), str(what)).replace(f"-o {old}", f"-o {new}")
        run(command.replace(f"-I{ROOT} ", f"-I{tree} -I{ROOT} ", 1))
        for name, link in links.items():
            replaced = re.sub(rf"(?<=\s){re.escape(old)}(?=\s)", new if known else f"{old} {new}", link)
            if replaced != link:
                changed.add(name)
                links[name] = replaced
    for name, link in links.items():
        if name in changed:
            run(link.replace(f"-o {name}", f"-o {out / name}"))
        else:
            shutil.copy2(BUILD / name, out)
    shutil.copy2(BUILD / "ferrule", out)


if __name__ == "__main__":
    main()
