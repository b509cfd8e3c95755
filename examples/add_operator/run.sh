#!/usr/bin/env bash
# Recipe: operators that ferrule does not know, added as formulas in YAML: one element by element, one over
# rows. No rebuild, no C++: they run on every backend and fuse with their neighbours like the built-in ones.
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh

step "1. A model with com.example.SoftClamp and com.example.Share, which nothing describes:"
expect 3 "$ferrule" explain "$out/model.onnx"

step "2. The descriptions, rules/ops/com_example.yaml:"
sed 's/^/    /' rules/ops/com_example.yaml

step "3. With them, one kernel for all four nodes:"
expect 0 "$ferrule" explain "$out/model.onnx" --rules rules

step "4. The generated kernel against the interpreter, which evaluates the formulas themselves:"
expect 0 "$ferrule" verify "$out/model.onnx" --rules rules --oracle
