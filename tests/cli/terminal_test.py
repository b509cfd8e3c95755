"""What the commands print on terminals of 80 and of 200 columns: no line is longer, and the words are those that a pipe
gets; colours on terminals alone, and not under NO_COLOR. Last line: "N passed, N failed, N skipped"."""
import fcntl
import os
import pathlib
import re
import struct
import subprocess
import sys
import termios

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import harness  # noqa: E402
from harness import OK, run  # noqa: E402

MNIST = HERE.parent / "models/real/mnist_cntk/model.onnx"
COLOUR = re.compile(r"\x1b\[\d+m")
# Names as exporters write them, sizes that are open, a reader too many, a layer for another device.
LONG = """agraph (float[batch,8,height,width] pixel_values) => (float[batch,8,P,Q] logits, float[batch,8,R,S] hidden)
<float[8,8,1,1] W = {%s}> {
  [encoder_stages_0_blocks_0_convolution] a = Conv (pixel_values, W)
  [encoder_stages_0_blocks_0_activation] hidden = Relu (a)
  [encoder_stages_0_blocks_1_convolution] b = Conv <pads = [0, 0, 1, 1]> (hidden, W)
  [encoder_stages_0_blocks_1_maximum] c = Clip (b)
  [encoder_stages_0_pool] logits = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
}""" % ", ".join(["0.5"] * 64)


def on_terminal(columns, *arguments, env=None):
    """What a terminal of so many columns gets, stderr too; bars of progress taken out."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    surroundings = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen([harness.PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=follower, stderr=follower,
                               env={**surroundings, **harness.libraries(), "TERM": "xterm-256color", **(env or {})})
    os.close(follower)
    text = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece
    os.close(leader)
    process.wait()
    return re.sub(r"\r[^\r\n]*\x1b\[K", "", text.decode().replace("\r\n", "\n"))


def too_long(text, columns):
    """A line that is longer, though it could be folded; None: there is none."""
    for line in COLOUR.sub("", text).splitlines():
        if len(line) > columns and len(line.split()) > 1:
            return line
    return None


def words(text):
    return re.sub(r"\d+", "0", COLOUR.sub("", text)).split()


def commands(folder, long):
    """Commands, and whether their words are the same each time."""
    plan, reduced, written = folder / "plan.yaml", folder / "reduced.onnx", folder / "written.onnx"
    asked = ["--rule", "conv_activation"]
    for stage in ("graph", "journal", "kernels", "launches", "memory"):
        yield True, ["explain", MNIST, "--stage", stage]
    for model in (MNIST, long):
        for command in (["explain"], ["explain", "--log"], ["missed"], ["verify"], ["ablate"], ["run"], ["fuse", "--dry-run"]):
            yield True, [command[0], model, *command[1:]]
    yield True, ["why", MNIST, "--node", "Times212"]
    yield True, ["why", long, "--node", "encoder_stages_0_blocks_1_convolution"]
    yield True, ["why", long, "--pair", "encoder_stages_0_blocks_0_convolution", "encoder_stages_0_blocks_1_convolution", *asked]
    yield False, ["bench", MNIST, "none", "--seconds", "0.05"]
    yield False, ["bench", MNIST, "--seconds", "0.05", "--layers"]
    yield False, ["tune", MNIST, "--seconds", "0.05", "-o", plan, "--force"]
    yield True, ["reduce", MNIST, "-o", reduced, "--check", "true", "--force"]
    yield True, ["fuse", MNIST, "-o", written, "--force"]
    yield True, ["compile", MNIST, "--target", "cpu-avx2"]
    for words_of in (["doctor"], ["cache", "stat"], ["rules", "list"],
                     ["rules", "check", "--all"], ["rules", "test", "conv_activation"], ["rules", "vocabulary"], ["rules", "coverage", "cast_noop"],
                     ["help"], ["help", "fuse"], ["bench", "--help"], ["explain", folder / "no such model with a long name.onnx"],
                     ["explain", MNIST, "--shapes", "x"], ["why", MNIST, "--node", "Times213"]):
        yield True, words_of


def main():
    report = harness.Report()
    if report.ready:
        long = harness.model(report.folder / "long.onnx", LONG)
        for same, command in commands(report.folder, long):
            name = " ".join(str(w).rsplit("/", maxsplit=1)[-1] for w in command)
            piped = run(*command, env={"TERM": "xterm-256color", "COLUMNS": "80"})
            report.check(f"{name}: into a pipe", harness.crash(piped))
            for columns in (80, 200):
                text = on_terminal(columns, *command)
                line = too_long(text, columns)
                report.check(f"{name}: {columns} columns", None if text and line is None else f"{len(line or '')} characters: {line}")
                if same:
                    got, wanted = sorted(words(text)), sorted(words(piped.out + piped.err))
                    report.check(f"{name}: the words at {columns}", None if got == wanted else f"{len(got)} words, a pipe gets {len(wanted)}: {text[:400]}")
        narrow, wide = on_terminal(200, "help", env={"COLUMNS": "80"}), on_terminal(80, "help")
        report.check("$COLUMNS wins", None if narrow == wide else narrow[:400])
        report.check("colours", None if COLOUR.search(on_terminal(80, "doctor")) else "none on a terminal")
        wrong = on_terminal(80, "explain", report.folder / "nowhere.onnx")
        report.check("an error's kind in colour", None if wrong.startswith("\x1b[31merror[file_not_found]\x1b[0m: ") else wrong[:400])
        wrong = on_terminal(80, "explain", report.folder / "nowhere.onnx", env={"NO_COLOR": "1"})
        report.check("an error without colours", None if wrong.startswith("error[file_not_found]: ") else wrong[:400])
        for variable in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            text = on_terminal(80, "doctor", env=variable)
            report.check(f"no colours: {variable}", None if "\x1b" not in text and "ok " in text else text[:400])
        for data in (["completion", "bash"], ["man"], ["rules", "schema"], ["rules", "show", "attention"], ["explain", MNIST, "--json"]):
            done, text = run(*data), on_terminal(80, *data)
            report.check(f"{' '.join(map(str, data[:2]))} is as it is", None if done.code == OK and text == done.out else text[:400])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
