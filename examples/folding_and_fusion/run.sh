#!/usr/bin/env bash
# What folding gives, and what fusion gives, on four pieces of networks: a convolution and a depthwise one, each with
# BatchNormalization and Relu; a linear layer with its Relu; an LSTM cell written in primitives.
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh

for net in conv depthwise linear lstm_cell; do
  step "$net:"
  expect 0 "$ferrule" explain "$out/$net.onnx" --target cpu-avx2
  "$python" ../compare.py "$out/$net.onnx" \
    "neither folding nor fusion" "--no-fold --disable *" \
    "fusion, no folding" "--no-fold no:fold" \
    "folding, no fusion" "no:groups" \
    "both" ""
done

step "Where the BatchNormalization went, and the Relu:"
expect 0 "$ferrule" why "$out/conv.onnx" --node Norm_1 --target cpu-avx2 --top 0
expect 0 "$ferrule" why "$out/conv.onnx" --pair Conv_0 Relu_2 --target cpu-avx2
