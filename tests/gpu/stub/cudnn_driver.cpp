// A driver that holds no device: what the real cuDNN looks up before it answers which engines it
// has for a device that it was told about. Every function succeeds and does nothing.
#include <dlfcn.h>

#define API extern "C" __attribute__((visibility("default"))) int

namespace {
int absent() { return 801; }
}  // namespace

#define NOTHING(name) \
  API name() { return 0; }
NOTHING(cuInit)
NOTHING(cuLaunchKernel)
NOTHING(cuLaunchCooperativeKernel)
NOTHING(cuLaunchKernelEx)
NOTHING(cuStreamGetCtx)
NOTHING(cuLinkCreate)
NOTHING(cuLinkCreate_v2)
NOTHING(cuLinkAddData)
NOTHING(cuLinkAddData_v2)
NOTHING(cuLinkComplete)
NOTHING(cuLinkDestroy)
NOTHING(cuDeviceGet)
NOTHING(cuCtxPushCurrent)
NOTHING(cuCtxPushCurrent_v2)
NOTHING(cuCtxPopCurrent)
NOTHING(cuCtxPopCurrent_v2)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxGetCurrent)
NOTHING(cuLibraryLoadData)
NOTHING(cuLibraryLoadFromFile)
NOTHING(cuLibraryUnload)
NOTHING(cuLibraryGetKernel)
NOTHING(cuLibraryGetModule)
NOTHING(cuKernelSetAttribute)
NOTHING(cuKernelGetAttribute)
NOTHING(cuKernelGetFunction)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncGetAttribute)
NOTHING(cuFuncGetName)
NOTHING(cuModuleLoadData)
NOTHING(cuModuleUnload)
NOTHING(cuModuleGetFunction)

API cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
API cuDeviceGetCount(int* count) {
  *count = 0;
  return 0;
}
API cuOccupancyMaxActiveClusters(int* clusters, void*, const void*) {
  *clusters = 16;
  return 0;
}
API cuOccupancyMaxPotentialClusterSize(int* size, void*, const void*) {
  *size = 8;
  return 0;
}
API cuGetErrorString(int, const char** text) {
  *text = "none";
  return 0;
}
API cuGetErrorName(int, const char** text) {
  *text = "none";
  return 0;
}
API cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return 801;
}
API cuGetProcAddress_v2(const char* name, void** function, int, unsigned long, int* found) {
  void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* f = self ? dlsym(self, name) : nullptr;
  *function = f ? f : reinterpret_cast<void*>(absent);
  if (found) *found = 0;
  return 0;
}
API cuGetProcAddress(const char* name, void** function, int version, unsigned long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
