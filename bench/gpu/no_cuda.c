// What Triton and TileLink call of CUDA's driver to load and launch kernels. It loads and launches nothing. It can write
// down the launches, with all bytes of the parameters.

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MOST 128  // kernels, and parameters of a kernel

static size_t sizes[MOST][MOST];  // of the parameters of each kernel; a function's handle is its number, from 1
static int counts[MOST], loaded = 0;
static FILE *written = NULL;

// The next kernel that is loaded has `count` parameters of these sizes.
void no_cuda_expect(int count, const size_t *of) {
  counts[loaded + 1] = count;
  memcpy(sizes[loaded + 1], of, count * sizeof *of);
}

// From now on, launches are written to this file.
void no_cuda_write(const char *path) { written = fopen(path, "wb"); }

static CUresult launch(CUfunction f, const unsigned *shape, CUstream stream, void **parameters) {
  uint64_t kernel = (uint64_t)f;
  if (!written) return CUDA_SUCCESS;
  fwrite(&kernel, sizeof kernel, 1, written);
  fwrite(shape, sizeof *shape, 7, written);
  fwrite(&stream, sizeof stream, 1, written);
  for (int k = 0; k < counts[kernel]; ++k) fwrite(parameters[k], sizes[kernel][k], 1, written);
  return fflush(written) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra) {
  unsigned shape[7] = {c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes};
  return c->numAttrs || extra ? CUDA_ERROR_NOT_SUPPORTED : launch(f, shape, c->hStream, parameters);
}

CUresult cuFuncGetParamInfo(CUfunction f, size_t number, size_t *offset, size_t *size) {
  if (number >= (size_t)counts[(uint64_t)f]) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0, *size = sizes[(uint64_t)f][number];
  return CUDA_SUCCESS;
}

static uint64_t mixed(uint64_t hash, const void *bytes, size_t count) {
  for (const unsigned char *b = bytes; count--; ++b) hash = (hash ^ *b) * 1099511628211ull;
  return hash;
}

// The map has the address, and a hash of all else.
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *lengths, const cuuint64_t *strides, const cuuint32_t *block,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  uint64_t *words = memset(map, 0xff, sizeof *map), hash = 14695981039346656037ull;
  unsigned about[6] = {type, rank, interleave, swizzle, promotion, fill};
  hash = mixed(mixed(hash, about, sizeof about), lengths, rank * sizeof *lengths);
  hash = mixed(mixed(hash, strides, (rank - 1) * sizeof *strides), block, rank * sizeof *block);
  words[3] = (uint64_t)address, words[15] = mixed(hash, steps, rank * sizeof *steps);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address) {
  ((uint64_t *)map)[3] = (uint64_t)address;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name) {
  *f = (CUfunction)(uint64_t)++loaded;
  return loaded < MOST ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
  *value = which == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 232448 : 132;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction f) {
  *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr address) {
  *(CUdeviceptr *)value = address;
  return CUDA_SUCCESS;
}

#define ANSWERS(name, parameters, statement) CUresult name parameters { statement; return CUDA_SUCCESS; }
ANSWERS(cuCtxGetCurrent, (CUcontext * context), *context = (CUcontext)1)
ANSWERS(cuCtxGetDevice, (CUdevice * device), *device = 0)
ANSWERS(cuCtxGetLimit, (size_t * value, CUlimit which), *value = 0)
ANSWERS(cuCtxSetCurrent, (CUcontext context), )
ANSWERS(cuCtxSetLimit, (CUlimit which, size_t value), )
ANSWERS(cuDeviceGet, (CUdevice * device, int number), *device = number)
ANSWERS(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), *context = (CUcontext)1)
ANSWERS(cuDriverGetVersion, (int *version), *version = 12080)
ANSWERS(cuFuncSetAttribute, (CUfunction f, CUfunction_attribute which, int value), )
ANSWERS(cuFuncSetCacheConfig, (CUfunction f, CUfunc_cache which), )
ANSWERS(cuGetErrorString, (CUresult code, const char **text), *text = "an error of no_cuda.c")
ANSWERS(cuInit, (unsigned flags), )
ANSWERS(cuModuleLoadData, (CUmodule * module, const void *image), *module = (CUmodule)1)
ANSWERS(cuModuleUnload, (CUmodule module), )
ANSWERS(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *count, CUfunction f, int threads, size_t shared), *count = 1)
ANSWERS(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), *status = 0)
