// Reading and writing numpy's .npy and .npz files: what run takes as inputs, gives as outputs, and
// what reference results come in. Read: stored and deflated zip members, either byte order, either
// memory order; written: stored, little-endian. bf16 has no numpy type: it is written as, and read
// from, the raw 2-byte type "V2", as ml_dtypes does it; 4-bit types are written one a byte.
#pragma once
#include <map>
#include <string>

#include "engine/graph/tensor.h"

namespace ferrule {

/// One array of a .npy file.  errors: file_not_found, bad_npz.
Result<Tensor> read_npy(const std::string& path);
/// All arrays of a .npz file by their keys (member names without ".npy"). A .npy file is one array
/// with the empty key.  errors: file_not_found, bad_npz.
Result<std::map<std::string, Tensor>> read_npz(const std::string& path);

/// Written to a temporary file beside `path`, then renamed.  errors: file_exists, file_not_written.
Status write_npz(const std::string& path, const std::map<std::string, Tensor>& tensors, bool force);

}  // namespace ferrule
