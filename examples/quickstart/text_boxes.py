"""What the quickstart does around ferrule: makes a picture and a tensor of it, sums up answers of
ferrule, and turns the detector's probability map into boxes. Needs numpy and Pillow."""
import collections
import json
import sys

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIZE = (736, 480)  # width, height: multiples of 32, which the detector's five halvings want
LINES = [  # x, y, font size, text
    (48, 36, 44, "Every fusion is a rule"),
    (48, 120, 28, "that you can read, edit and measure."),
    (400, 215, 36, "Conv + BN + Relu"),
    (60, 230, 24, "matched by a pattern"),
    (60, 300, 30, "Total    41.90"),
    (420, 330, 52, "ferrule"),
    (60, 410, 22, "Apache-2.0"),
]


def draw(picture_path, input_path):
    """Makes the picture and, beside it, the detector's input."""
    width, height = SIZE
    ramp = np.linspace(0, 40, width)[None, :] + np.linspace(0, 25, height)[:, None]
    background = np.stack([235 - ramp, 240 - ramp * 0.7, 245 - ramp * 0.4], axis=-1)
    picture = Image.fromarray(background.astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    pen.rectangle([388, 300, 640, 400], fill=(40, 70, 120))
    for x, y, size, text in LINES:
        colour = (250, 250, 250) if text == "ferrule" else (25, 25, 35)
        pen.text((x, y), text, fill=colour, font=ImageFont.load_default(size))
    picture.save(picture_path)
    # The normalisation that the detector was trained with: (value / 255 - 0.5) / 0.5, channels BGR first.
    pixels = np.asarray(picture, np.float32)[:, :, ::-1] / 255.0
    tensor = np.ascontiguousarray(((pixels - 0.5) / 0.5).transpose(2, 0, 1)[None], np.float32)
    np.savez(input_path, x=tensor)
    with open(input_path + ".shape", "w", encoding="utf-8") as out:
        out.write("x:" + "x".join(map(str, tensor.shape)))
    print(f"picture: {picture_path} ({width}x{height}, {len(LINES)} lines of text)")


def fused(explain_path):
    """Which rules made which layers."""
    with open(explain_path, encoding="utf-8") as file:
        plan = json.load(file)
    layers = plan["layers"]
    made = collections.defaultdict(list)
    for layer in layers:
        made[layer["rule"]].append(layer)
    nodes = sum(len(layer["nodes"]) for layer in layers)
    kernels = sum(layer["kernels"] for layer in layers)
    print(f"{nodes} nodes run as {len(layers)} layers, {kernels} kernels:\n")
    print(f"  {'rule':<28} {'layers':>6} {'nodes':>6}   for instance")
    for rule, group in sorted(made.items(), key=lambda item: (item[0] is None, -len(item[1]))):
        longest = max(group, key=lambda layer: len(layer["nodes"]))
        name = longest["name"] if len(longest["name"]) <= 70 else longest["name"][:67] + "..."
        print(f"  {rule or '(none)':<28} {len(group):>6} {sum(len(x['nodes']) for x in group):>6}   {name}")
    print()


def times(unfused_path, fused_path, threads):
    """The two medians and their ratio."""
    medians = []
    for label, path in (("every rule off", unfused_path), ("every rule on", fused_path)):
        with open(path, encoding="utf-8") as file:
            answer = json.load(file)
        medians.append(answer["latency_ms"]["median"])
        print(f"  {label:<15} {medians[-1]:9.2f} ms   (median; load {answer['load_ms']:.0f} ms, "
              f"plan {answer['plan_ms']:.0f} ms, compile {answer['compile_ms']:.0f} ms)")
    print(f"  fusion makes it {medians[0] / medians[1]:.2f} times faster, with {threads} threads")


def regions(mask):
    """Connected regions of a mask (4 neighbours): a list of (rows, columns) index arrays."""
    parent = []

    def root(label):
        while parent[label] != label:
            parent[label] = parent[parent[label]]
            label = parent[label]
        return label

    # Runs of ones row by row, each joined with the runs above that it touches.
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    runs, above = [], []
    for row in range(mask.shape[0]):
        here = []
        for begin, end in zip(np.flatnonzero(edges[row] == 1), np.flatnonzero(edges[row] == -1)):
            label = len(parent)
            parent.append(label)
            for other_begin, other_end, other in above:
                if other_begin < end and begin < other_end:
                    parent[root(other)] = root(label)
            here.append((begin, end, label))
            runs.append((row, begin, end, label))
        above = here
    grouped = collections.defaultdict(list)
    for row, begin, end, label in runs:
        grouped[root(label)].append((row, begin, end))
    for parts in grouped.values():
        yield (np.concatenate([np.full(end - begin, row) for row, begin, end in parts]),
               np.concatenate([np.arange(begin, end) for _, begin, end in parts]))


def boxes(picture_path, output_path, found_path):
    """Probability map -> boxes -> picture. The detector marks shrunken text, so that lines stay apart;
    a box grows back by area * 1.6 / perimeter, as its authors do it."""
    with np.load(output_path) as outputs:
        probability = next(iter(outputs.values()))[0, 0]
    picture = Image.open(picture_path).convert("RGB")
    pen = ImageDraw.Draw(picture)
    found = []
    for rows, columns in regions(probability > 0.3):
        score = float(probability[rows, columns].mean())
        top, bottom = int(rows.min()), int(rows.max()) + 1
        left, right = int(columns.min()), int(columns.max()) + 1
        width, height = right - left, bottom - top
        if min(width, height) < 3 or score < 0.5:
            continue
        grow = 1.6 * width * height / (2 * (width + height))
        found.append((max(left - grow, 0), max(top - grow, 0),
                      min(right + grow, probability.shape[1] - 1),
                      min(bottom + grow, probability.shape[0] - 1), score))
    found.sort(key=lambda box: (box[1], box[0]))
    for left, top, right, bottom, score in found:
        print(f"  text at x {left:4.0f} to {right:4.0f}, y {top:4.0f} to {bottom:4.0f}   ({score:.2f})")
        pen.rectangle([left, top, right, bottom], outline=(220, 30, 30), width=3)
    picture.save(found_path)
    print(f"{len(found)} pieces of text found; the picture with the boxes: {found_path}")
    return 0 if found else 1


if __name__ == "__main__":
    commands = {"draw": draw, "fused": fused, "times": times, "boxes": boxes}
    sys.exit(commands[sys.argv[1]](*sys.argv[2:]))
