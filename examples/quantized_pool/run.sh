#!/usr/bin/env bash
# A convolution and the MaxPool behind it are one layer, unless a quantization pair stands between them. `why` names the
# pair, and the placement that allows the fusion.
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh

step "1. Without quantization:"
expect 0 "$ferrule" why "$out/plain.onnx" --pair Conv_0 MaxPool_2 --target cpu-avx2

step "2. With a pair between them, and without the rule that would move it:"
expect 0 "$ferrule" why "$out/between.onnx" --pair Conv_0 MaxPool_2 --target cpu-avx2 --disable maxpool_first

step "3. What the MaxPool says, about one rule:"
expect 0 "$ferrule" why "$out/between.onnx" --node MaxPool_2 --rule conv_pool --target cpu-avx2 --disable maxpool_first

step "4. The placement that allows it:"
expect 0 "$ferrule" why "$out/behind.onnx" --pair Conv_0 MaxPool_2 --target cpu-avx2
