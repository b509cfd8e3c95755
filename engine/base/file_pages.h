// Files mapped read-only, and their pages: the system may take those back at any time, but until it
// needs them they count as this process's memory.
#pragma once
#include <cstddef>
#include <memory>

namespace ferrule {

/// `size` bytes (at least one) of the open file, mapped until the last owner is gone; null and
/// errno where the system refuses.
std::shared_ptr<const void> map_file_pages(int fd, size_t size);

/// These bytes were read and are not wanted for now. Does nothing where they are not of such a
/// file. Their content stays the same: who reads them again waits for the file (mostly, its cache).
void let_go_file_pages(const void* at, size_t bytes);

}  // namespace ferrule
