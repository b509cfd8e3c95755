#!/usr/bin/env bash
# Guide: a model runs slower than it should. What fusion buys, what still goes through memory, and what to try.
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh
time=(--target cpu-avx2 --threads 1 --seconds 0.5)

step "1. How long does it take?"
expect 0 "$ferrule" bench "$out/model.onnx" "${time[@]}"

step "2. And without any rule?"
expect 0 "$ferrule" bench "$out/model.onnx" "${time[@]}" --disable '*'

step "3. What is each rule worth?"
expect 0 "$ferrule" ablate "$out/model.onnx" --targets cpu-avx2

step "4. What still goes through memory?"
expect 0 "$ferrule" missed "$out/model.onnx" --target cpu-avx2 --top 1

step "5. conv_pool expects a loss here; with it all the same:"
expect 0 "$ferrule" bench "$out/model.onnx" "${time[@]}" --ignore-profit conv_pool.large
