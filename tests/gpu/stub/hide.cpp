// Preloaded by tests: libraries whose names hold a word of $FERRULE_STUB_HIDE ("libcuda,libnvrtc")
// are not there.
#include <dlfcn.h>

#include <cstdlib>
#include <sstream>
#include <string>

extern "C" __attribute__((visibility("default"))) void* dlopen(const char* file, int flags) {
  static const auto open =
      reinterpret_cast<void* (*)(const char*, int)>(dlsym(RTLD_NEXT, "dlopen"));
  const char* hidden = std::getenv("FERRULE_STUB_HIDE");
  std::istringstream words(hidden && file ? hidden : "");
  const std::string name = file ? file : "";
  for (std::string word; std::getline(words, word, ',');)
    // What the loader says about the other name is what it would say about this one.
    if (name.find(word) != std::string::npos) return open((name + ".hidden").c_str(), flags);
  return open(file, flags);
}
