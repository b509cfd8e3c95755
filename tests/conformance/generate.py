#!/usr/bin/env python3
"""Writes ONNX's backend tests as models and protobuf files: those of single operators as the pinned onnx package computes them,
others as it has them.

  generate.py FOLDER      FOLDER/node/test_*/model.onnx, test_data_set_0/input_0.pb, …; FOLDER/simple, …
"""
import pathlib
import shutil
import sys

import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases


def proto(value, info):
    """An input or output of a case as the message of its type."""
    if isinstance(value, TensorProto):
        return value
    kinds = {"map_type": numpy_helper.from_dict, "sequence_type": numpy_helper.from_list, "optional_type": numpy_helper.from_optional}
    make = kinds.get(info.type.WhichOneof("value"), numpy_helper.from_array)
    return make(value, info.name)


def main():
    folder = pathlib.Path(sys.argv[1])
    for part in ("light", "pytorch-converted", "pytorch-operator", "simple"):
        shutil.copytree(pathlib.Path(onnx.__file__).parent / "backend/test/data" / part, folder / part)
    for case in collect_testcases():
        at = folder / "node" / case.name
        at.mkdir(parents=True, exist_ok=True)
        (at / "model.onnx").write_bytes(case.model.SerializeToString())
        for k, (inputs, outputs) in enumerate(case.data_sets):
            data = at / f"test_data_set_{k}"
            data.mkdir(exist_ok=True)
            for kind, values, infos in (("input", inputs, case.model.graph.input), ("output", outputs, case.model.graph.output)):
                for j, value in enumerate(values):
                    (data / f"{kind}_{j}.pb").write_bytes(proto(value, infos[j]).SerializeToString())


if __name__ == "__main__":
    main()
