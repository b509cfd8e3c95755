#!/usr/bin/env bash
# Guide: two layers are not one, and one wants to know why. In this model Conv_0 and Relu_1 are not fused, though Conv_2
# and Relu_3 are.
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh

step "1. Which layers are there?"
expect 0 "$ferrule" explain "$out/model.onnx" --target cpu-avx2

step "2. Which tensors between layers cost most?"
expect 0 "$ferrule" missed "$out/model.onnx" --target cpu-avx2 --top 2

step "3. Why are these two not one layer?"
expect 0 "$ferrule" why "$out/model.onnx" --pair Conv_0 Relu_1 --target cpu-avx2

step "4. The reason names the output c. Without it:"
expect 0 "$ferrule" why "$out/mended.onnx" --pair Conv_0 Relu_1 --target cpu-avx2
