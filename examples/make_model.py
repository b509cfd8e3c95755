"""ONNX text -> a model file, for the recipes in this folder: make_model.py MODEL.txt MODEL.onnx"""
import pathlib
import sys

import onnx
import onnx.parser

source, target = map(pathlib.Path, sys.argv[1:])
target.parent.mkdir(parents=True, exist_ok=True)
onnx.save(onnx.parser.parse_model(source.read_text()), str(target))
