// One library, code for several CPUs: which form of the regions runs here. Compiled for any CPU of the architecture, as it runs
// before it is known what this one can do.
//
// A form is forced by the session config entry "opsmith.cpu", or by the environment's OPSMITH_CPU.
#pragma once

#include "cpu.hpp"
#include "ort_abi.hpp"

#if defined(_WIN32)
#include "windows_entry.hpp"
#endif

namespace opsmith {

struct Form {
  const char* cpu;
  const char* features;  // that it needs, separated by spaces
  RegionOp* regions;
  Regions table;
};

// The form to run, null if there is none, and then WHY.
template <size_t N>
const Form* choose(const Form (&forms)[N], const char* wanted, char (&why)[256]) {
  snprintf(why, sizeof why, "opsmith: this library has no code for the CPU %s", wanted);
  for (const Form& form : forms) {
    if (*wanted && strcmp(wanted, form.cpu)) continue;
    char missing[32];
    if (has_features(form.features, missing)) return &form;
    snprintf(why, sizeof why, "opsmith: this library was compiled for %s, a CPU with %s, which this CPU lacks", form.cpu, missing);
  }
  return nullptr;
}

// For the execution provider, whose folder has a library for each CPU.
template <size_t N>
const Regions* best_regions(const Form (&forms)[N]) {
  char why[256];
  const char* wanted = getenv("OPSMITH_CPU");
  const Form* form = choose(forms, N > 1 && wanted ? wanted : "", why);
  return form ? &form->table : nullptr;
}

// The body of RegisterCustomOps.
template <size_t N>
OrtStatus* register_best(OrtSessionOptions* options, const OrtApiBase* base, const char* domain, const Form (&forms)[N]) {
  const void* table = base->GetApi(kOrtApiVersion);
  if (!table) return register_regions(options, base, domain, nullptr, 0);  // says so
  stay_loaded();
  const Api api{static_cast<const void* const*>(table)};
  char wanted[64] = "";
  if (const char* name = getenv("OPSMITH_CPU"); name && N > 1) snprintf(wanted, sizeof wanted, "%s", name);
  int there = 0;
  if (OrtStatus* s = api.call<OrtStatus*>(237, static_cast<const OrtSessionOptions*>(options), "opsmith.cpu", &there)) return s;
  size_t room = sizeof wanted;
  if (there)
    if (OrtStatus* s = api.call<OrtStatus*>(238, static_cast<const OrtSessionOptions*>(options), "opsmith.cpu", wanted, &room)) return s;
  char why[256];
  const Form* form = choose(forms, wanted, why);
  return form ? register_regions(options, base, domain, form->regions, form->table.count) : api.error(why);
}

}  // namespace opsmith
