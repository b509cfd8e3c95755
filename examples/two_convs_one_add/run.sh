#!/usr/bin/env bash
# Two convolutions in front of an Add: why are they not one layer, and what would it cost if they were?
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh

step "1. The layers:"
expect 0 "$ferrule" explain "$out/model.onnx" --target cpu-avx2

step "2. Why are Conv_0 and Conv_3 not one layer?"
expect 0 "$ferrule" why "$out/model.onnx" --pair Conv_0 Conv_3 --target cpu-avx2

step "3. And Conv_0 by itself: which rule came nearest?"
expect 0 "$ferrule" why "$out/model.onnx" --node Conv_0 --target cpu-avx2 --top 1

step "4. Both choices, timed (one thread, least of many short runs):"
"$python" ../compare.py "$out/model.onnx" \
  "Conv_3 takes the Add" "" \
  "the Add is a kernel of its own" "--disable conv_residual" \
  "nothing is fused" "--disable *"
