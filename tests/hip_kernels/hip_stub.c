/* A libamdhip64 that launches nothing: it writes down what it was called with. */
typedef struct {
  unsigned grid[3], block[3], lds;
  void *function, *stream;
  unsigned char params[64];
  int loads, launches, params_bytes, fail;
  char kernel[32];
} Calls;
Calls calls;

int hipModuleLoadData(void **module, const void *image) {
  if (((const char *)image)[1] != 'E') return 209;
  calls.loads++;
  *module = (void *)0x1000;
  return 0;
}
int hipModuleGetFunction(void **function, void *module, const char *name) {
  int k = 0;
  for (; name[k] && k < 31; k++) calls.kernel[k] = name[k];
  calls.kernel[k] = 0;
  *function = (char *)module + calls.loads;
  return name[0] == 'n' ? 500 : 0;
}
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned lds, void *stream, void **params, void **extra) {
  if (calls.fail || extra) return calls.fail;
  const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  for (int k = 0; k < 3; k++) calls.grid[k] = grid[k], calls.block[k] = block[k];
  for (int k = 0; k < calls.params_bytes; k++) calls.params[k] = ((unsigned char *)params[0])[k];
  calls.lds = lds;
  calls.function = function;
  calls.stream = stream;
  calls.launches++;
  return 0;
}
const char *hipGetErrorName(int status) {
  return status == 209 ? "hipErrorNoBinaryForGpu" : status == 500 ? "hipErrorNotFound" : "hipErrorOutOfMemory";
}
const char *hipGetErrorString(int status) { return status ? "as the runtime says it" : "no error"; }
