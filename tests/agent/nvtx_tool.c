// A tool for the NVTX library to load: prints every push and pop with its domain.
// The tables below are NVTX 3's ABI between an application and a tool.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ETID_CALLBACKS = 1, MODULE_CORE2 = 5 };
enum { RANGE_PUSH = 4, RANGE_POP = 5, REGISTER_STRING = 10, CREATE_DOMAIN = 12 };

typedef void (*Function)(void);
typedef struct {
  size_t bytes;
  int (*functions_of)(int module, Function*** table, unsigned* size);
} Callbacks;

typedef struct {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  int64_t payload;
  int32_t message_type;
  const char* message;
} Attributes;

static FILE* out;

static void* create_domain(const char* name) { return strdup(name); }
static void* register_string(void* domain, const char* text) {
  (void)domain;
  return strdup(text);
}
static int push(void* domain, const Attributes* range) {
  fprintf(out, "push %s %s %lld\n", (char*)domain, range->message, (long long)range->payload);
  fflush(out);
  return 0;
}
static int pop(void* domain) {
  fprintf(out, "pop %s\n", (char*)domain);
  fflush(out);
  return 0;
}

int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
  const Callbacks* callbacks = export_table(ETID_CALLBACKS);
  Function** table = NULL;
  unsigned size = 0;
  if (!callbacks || !callbacks->functions_of(MODULE_CORE2, &table, &size)) return 0;
  out = fopen(getenv("NVTX_TOOL_OUT"), "a");
  *table[CREATE_DOMAIN] = (Function)create_domain;
  *table[REGISTER_STRING] = (Function)register_string;
  *table[RANGE_PUSH] = (Function)push;
  *table[RANGE_POP] = (Function)pop;
  return out != NULL;
}
