# shellcheck shell=bash
# Sourced by the recipes with C++: kernel.patch applied to a copy of what it changes, built into $out/bin.
rm -rf "$out/tree" "$out/bin"
mkdir -p "$out/tree"
while read -r file; do
  mkdir -p "$out/tree/$(dirname "$file")"
  cp "$root/$file" "$out/tree/$file"
done < <(sed -n 's|^--- a/||p' kernel.patch; echo runtime/cpu/kernels/kernel_table.cpp)
cp -R "$root/rules" "$out/tree/"
patch=$PWD/kernel.patch
(cd "$out/tree" && GIT_CEILING_DIRECTORIES=$out git apply "$patch")
"$python" ../rebuild.py "$out/tree" "$out/bin"
