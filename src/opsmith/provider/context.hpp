// EPContext: a model that ORT writes with `ModelCompiler`, in which each region is one node, beside a copy of the folder.
//
// The folder is always `<that model>.opsmith`: a model file cannot name code that lies elsewhere. Its nodes hold the digest of the
// manifest, which holds the digests of all else.
#pragma once

#include "claim.hpp"
#include "folder.hpp"

namespace opsmith {

// A string attribute of an EPContext node; empty if the node is none or lacks it.
inline OrtStatus* context_attribute(const Api& api, const OrtNode* node, const char* name, Text* value) {
  const char *op = nullptr, *domain = nullptr;
  if (OrtStatus* s = api.call<OrtStatus*>(350, node, &op)) return s;
  if (OrtStatus* s = api.call<OrtStatus*>(351, node, &domain)) return s;
  if (strcmp(op, "EPContext") || strcmp(domain, "com.microsoft")) return nullptr;
  const OrtOpAttr* attribute = nullptr;
  if (OrtStatus* s = api.call<OrtStatus*>(361, node, name, &attribute)) return api.release_status(s), nullptr;
  if (!attribute) return nullptr;
  size_t room = 0;
  constexpr int kString = 5;
  if (OrtStatus* s = api.call<OrtStatus*>(272, attribute, kString, static_cast<void*>(nullptr), size_t(0), &room))
    api.release_status(s);
  Text raw;
  raw.fill(room + 1, 0);
  if (OrtStatus* s = api.call<OrtStatus*>(272, attribute, kString, static_cast<void*>(raw.data), room, &room)) return s;
  *value = Text();
  value->add(raw.data, strnlen(raw.data, room));
  return nullptr;
}

// What the provider's own EPContext nodes of a graph were written with; empty if there are none.
inline OrtStatus* find_context(const Api& api, const OrtGraph* graph, const char* provider, Text* digest) {
  Graph seen;
  if (OrtStatus* s = seen.read(api, graph)) return s;
  for (const GraphNode& n : seen.nodes) {
    Text source;
    if (OrtStatus* s = context_attribute(api, n.node, "source", &source)) return s;
    if (!strcmp(source.c(), provider)) return context_attribute(api, n.node, "ep_cache_context", digest);
  }
  return nullptr;
}

inline OrtStatus* make_context(const Api& api, const char* provider, const char* name, const char* digest, const char* region,
                               const List<const char*>& reads, const List<const char*>& writes, OrtNode** out) {
  constexpr int kInt = 1, kString = 5;
  const int64_t main = 1, embedded = 0;
  struct {
    const char* name;
    const void* data;
    int size, type;
  } wanted[] = {
      {"main_context", &main, 1, kInt},
      {"embed_mode", &embedded, 1, kInt},
      {"ep_cache_context", digest, static_cast<int>(strlen(digest)), kString},
      {"partition_name", region, static_cast<int>(strlen(region)), kString},
      {"source", provider, static_cast<int>(strlen(provider)), kString},
  };
  OrtOpAttr* attributes[5] = {};
  OrtStatus* status = nullptr;
  for (int i = 0; i < 5 && !status; ++i)
    status = api.call<OrtStatus*>(211, wanted[i].name, wanted[i].data, wanted[i].size, wanted[i].type, &attributes[i]);
  const Api editor{api.call<const void* const*>(291)};
  if (!status)
    status = editor.call<OrtStatus*>(6, "EPContext", "com.microsoft", name, reads.data, reads.size, writes.data, writes.size,
                                     static_cast<OrtOpAttr**>(attributes), size_t(5), out);
  if (status)
    for (OrtOpAttr* a : attributes)
      if (a) api.call<void>(212, a);
  return status;
}

// The names of what a node reads or writes, through two slots: how many, and which.
inline OrtStatus* names_of(const Api& api, const OrtNode* node, int count_slot, int slot, List<const char*>& names) {
  size_t count = 0;
  if (OrtStatus* s = api.call<OrtStatus*>(count_slot, node, &count)) return s;
  List<const OrtValueInfo*> infos;
  infos.fill(count, nullptr);
  if (count)
    if (OrtStatus* s = api.call<OrtStatus*>(slot, node, infos.data, count)) return s;
  for (const OrtValueInfo* info : infos) {
    const char* name = "";
    if (info)
      if (OrtStatus* s = api.call<OrtStatus*>(289, info, &name)) return s;
    names.push(name);
  }
  return nullptr;
}

inline bool copy_file(const char* from, const char* to) {
  unlink(to);
  if (link(from, to) == 0) return true;  // on the same disk: no second copy
  FILE *in = fopen(from, "re"), *out = fopen(to, "we");
  bool ok = in && out;
  char* piece = static_cast<char*>(malloc(1 << 20));
  for (size_t count; ok && piece && (count = fread(piece, 1, 1 << 20, in)) > 0;) ok = fwrite(piece, 1, count, out) == count;
  free(piece);
  if (in) ok = !ferror(in) && !fclose(in) && ok;
  if (out) ok = !fclose(out) && ok;
  return ok;
}

inline Text copy_folder(const Folder& folder, const char* to) {
  mkdir(to, 0755);
  List<const char*> files;
  files.push("manifest");
  for (const Target& t : folder.targets) {
    files.push(t.library);
    if (*t.weights && !files.has(t.weights)) files.push(t.weights);
  }
  for (const char* name : files) {
    const Text a = line("%s/%s", folder.path.c(), name), b = line("%s/%s", to, name);
    if (strcmp(a.c(), b.c()) && !copy_file(a.c(), b.c())) return line("%s cannot be written: %s", b.c(), strerror(errno));
  }
  return Text();
}

}  // namespace opsmith
