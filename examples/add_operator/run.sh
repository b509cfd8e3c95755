#!/usr/bin/env bash
# Recipe: an operator that ferrule does not know, added as a formula in YAML. No rebuild, no C++: it runs on
# every backend and fuses with its neighbours like the built-in ones.
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh

step "1. A model with com.example.SoftClamp, which nothing describes:"
expect 3 "$ferrule" explain "$out/model.onnx"

step "2. The description, rules/ops/soft_clamp.yaml:"
sed 's/^/    /' rules/ops/soft_clamp.yaml

step "3. With it, one kernel for both nodes:"
expect 0 "$ferrule" explain "$out/model.onnx" --rules rules

step "4. The generated kernel against the interpreter, which evaluates the formula itself:"
expect 0 "$ferrule" verify "$out/model.onnx" --rules rules --oracle
