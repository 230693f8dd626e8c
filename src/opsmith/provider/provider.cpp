// The Opsmith execution provider: ONNX Runtime runs an untouched model, and regions that were compiled for it run as native code.
//
//   Factory    one per process; says that every CPU will do, and makes an Ep for each session
//   Ep         finds the folder with the model's regions (folder.hpp), claims their nodes (claim.hpp), compiles nothing
//   Compiled   one region of one session: where ORT has its inputs and outputs, and the call of its function
//
// Whatever is wrong with the folder is one line in ORT's log, and the model runs on ORT alone.
#include <stddef.h>

#include "claim.hpp"
#include "context.hpp"
#include "folder.hpp"

namespace opsmith {
namespace {

constexpr const char* kName = "OpsmithExecutionProvider";
// Session options of the provider, as ORT spells them: "ep.", the provider's name in small letters, ".", the option.
#define OPTION(name) "ep.opsmithexecutionprovider." name

// The dynamic option of a live session that puts other weights into it: a folder of regions with the same library.
constexpr const char* kSwap = "opsmith.weights";

struct Factory : OrtEpFactory {
  Api api;
  const void* const* ep_table;
};

// What became of the regions of the session that was made last, for `opsmith explain-session`.
Text* report = nullptr;
pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;

void tell(const char* text) {
  pthread_mutex_lock(&report_lock);
  if (!report) report = make<Text>();
  if (text)
    report->add(text), report->add("\n");
  else
    *report = Text();
  pthread_mutex_unlock(&report_lock);
}

struct Compiled : OrtNodeComputeInfo {
  Kernel kernel;
  const Folder* folder;
  i64 weight_offset;
  opsmith::Compute compute;
  OrtMemoryInfo* memory;
  OrtAllocator* allocator = nullptr;  // ORT's own for this session, asked for in the first run
  int* places;

  static OrtStatus* run(OrtNodeComputeInfo* info, void*, OrtKernelContext* context) {
    Compiled& self = *static_cast<Compiled*>(info);
    Kernel kernel = self.kernel;
    kernel.weights = self.folder->weights + self.weight_offset;  // they may be others than in the last run
    kernel.allocator = __atomic_load_n(&self.allocator, __ATOMIC_ACQUIRE);
    if (!kernel.allocator) {
      if (OrtStatus* s = kernel.api.call<OrtStatus*>(253, static_cast<const OrtKernelContext*>(context),
                                                     static_cast<const OrtMemoryInfo*>(self.memory), &kernel.allocator))
        return s;
      OrtAllocator* none = nullptr;
      if (!__atomic_compare_exchange_n(&self.allocator, &none, kernel.allocator, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        kernel.api.call<void>(132, kernel.allocator);  // another thread was first
        kernel.allocator = none;
      }
    }
    return self.compute(kernel, context);
  }
  static void forget_allocator(OrtNodeComputeInfo* info, void*) {
    Compiled& self = *static_cast<Compiled*>(info);
    if (self.allocator) self.kernel.api.call<void>(132, self.allocator);
    self.allocator = nullptr;
  }
};

struct Ep : OrtEp {
  Factory* factory = nullptr;
  Api api{};
  const OrtLogger* logger = nullptr;
  const OrtSessionOptions* options = nullptr;
  OrtMemoryInfo* memory = nullptr;
  Folder* folder = nullptr;  // until the first graph is seen, and if nothing was found
  bool looked = false;
  List<char> done;     // regions that are compiled
  List<char> met;      // regions whose graph was seen
  List<int> claimed;   // in the graph that was seen last
  Text compatibility;
  Text folder_option, cache, target, digest, context_file;
  bool writes_context = false;
  pthread_rwlock_t weights_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;  // runs read, `swap` writes

  void log(int level, const char* message) const {
    tell(message);
    if (OrtStatus* s = api.call<OrtStatus*>(247, logger, level, message, "provider.cpp", 0, "Opsmith")) api.release_status(s);
  }

  Text option(const char* key) const {
    int there = 0;
    if (OrtStatus* s = api.call<OrtStatus*>(237, options, key, &there)) api.release_status(s);
    if (!there) return Text();
    size_t room = 0;
    if (OrtStatus* s = api.call<OrtStatus*>(238, options, key, static_cast<char*>(nullptr), &room)) api.release_status(s);
    Text value;
    value.fill(room ? room : 1, 0);
    if (room)
      if (OrtStatus* s = api.call<OrtStatus*>(238, options, key, value.data, &room)) api.release_status(s);
    return value;
  }

  // --- finding the folder ---

  void look(const char* model_path, const Text& context) {
    looked = true;
    Text problem;
    Digest of_model = {};
    const bool by_path = *model_path;
    if (!context.empty()) {
      use(line("%s.opsmith", model_path), nullptr, nullptr, &context, &problem);
    } else if (by_path ? digest_file(model_path, &of_model) : digest.size == sizeof of_model.text) {
      if (!by_path) memcpy(of_model.text, digest.c(), sizeof of_model.text);
      const char* at = by_path ? model_path : "the model in memory";
      (!folder_option.empty() && use(folder_option.copy(), at, &of_model, nullptr, &problem)) ||
          (by_path && use(line("%s.opsmith", model_path), at, &of_model, nullptr, &problem)) ||
          use(line("%s/%s", cache.c(), of_model.text), at, &of_model, nullptr, &problem);
    } else if (!by_path) {
      problem = Text("the model was given as bytes: name its file, or the option model_digest");
    }
    if (folder && !problem.empty()) log(2, line("Opsmith: %s (%s is used instead)", problem.c(), folder->path.c()).c());
    if (folder) return;
    if (problem.empty()) problem = line("no compiled regions for %s; `opsmith compile %s --ep` makes them", model_path, model_path);
    log(2, line("Opsmith: %s. The model runs on ONNX Runtime alone.", problem.c()).c());
  }

  // Takes the folder if there is one and all is well with it; the first PROBLEM of those that are there is kept.
  bool use(Text where, const char* model_path, const Digest* of_model, const Text* context, Text* problem) {
    Folder* fresh = make<Folder>();
    bool found = false;
    Text wrong = fresh->open(where.c(), &found);
    if (wrong.empty() && context && strcmp(context->c(), fresh->digest.text))
      wrong = line("%s is not the folder that the EPContext model was written with", where.c());
    if (wrong.empty() && of_model) wrong = check(*fresh, model_path, *of_model);
    if (wrong.empty()) wrong = fresh->load(target.c());
    if (wrong.empty()) {
      folder = fresh;
      if (folder->targets.size > 1) tell(line("code for %s is used", folder->target->name).c());
      done.fill(folder->table ? folder->table->count : 0, 0);
      met.fill(done.size, 0);
      return true;
    }
    if ((found || context) && problem->empty()) *problem = static_cast<Text&&>(wrong);
    destroy(fresh);
    return false;
  }

  Text check(const Folder& fresh, const char* model_path, const Digest& of_model) const {
    if (*model_path && digest.empty()) return fresh.check_model(model_path, of_model);
    return strcmp(fresh.model, of_model.text) ? line("%s was compiled for another model; compile again", fresh.path.c()) : Text();
  }

  // --- what ORT calls ---

  OrtStatus* capability(const OrtGraph* graph, OrtEpGraphSupportInfo* info) {
    claimed.fill(0, 0);
    Text context;
    if (OrtStatus* s = find_context(api, graph, kName, &context)) return s;
    if (!looked) {
      const char* model_path = nullptr;
      if (OrtStatus* s = api.call<OrtStatus*>(334, graph, &model_path)) return s;
      look(model_path ? model_path : "", context);
    }
    if (!folder || !folder->table) return nullptr;
    Graph seen;
    if (OrtStatus* s = seen.read(api, graph)) return s;
    if (!context.empty()) return claim_contexts(seen, info);
    Text body;
    if (OrtStatus* s = body_of(graph, &body)) return s;
    List<int> present;
    for (uint32_t r = 0; r < folder->table->count; ++r)
      if (!done[r] && !strcmp(folder->table->regions[r].body, body.c())) present.push(static_cast<int>(r));
    for (int r : present) met[size_t(r)] = 1;
    if (body.empty()) tell_unmet();
    Claims claims(seen, *folder->table);
    claims.make(present);
    for (int r : present) {
      const Text* why = claims.reasons[size_t(r)];
      const char* name = folder->table->regions[r].name;
      if (why) log(2, line("Opsmith: %s stays with ONNX Runtime: %s", name, why->c()).c());
    }
    for (int r : claims.regions) {
      const List<int>& inside = *claims.inside[size_t(r)];
      if (OrtStatus* s = fuse(seen, inside, info)) return s;
      claimed.push(r);
      tell(line("%s runs natively, in place of %zu nodes", folder->table->regions[r].name, inside.size).c());
    }
    return nullptr;
  }

  // ORT shows bodies before the graph around them: once the main one is seen, those that were not met are not there.
  void tell_unmet() {
    for (uint32_t r = 0; r < folder->table->count; ++r)
      if (!met[r]) {
        met[r] = 1;
        const char* name = folder->table->regions[r].name;
        log(2, line("Opsmith: %s stays with ONNX Runtime: the body of If, Loop or Scan that it lies in is gone", name).c());
      }
  }

  OrtStatus* fuse(const Graph& seen, const List<int>& inside, OrtEpGraphSupportInfo* info) const {
    List<const OrtNode*> nodes;
    for (int n : inside) nodes.push(seen.nodes[size_t(n)].node);
    OrtNodeFusionOptions fusion{kOrtApiVersion, true};  // the originals of the packed weights need not be kept
    return Api{factory->ep_table}.call<OrtStatus*>(2, info, nodes.data, nodes.size, &fusion);
  }

  // A model that ORT wrote with EPContext nodes: each of ours is one region.
  OrtStatus* claim_contexts(const Graph& seen, OrtEpGraphSupportInfo* info) {
    for (size_t n = 0; n < seen.nodes.size; ++n) {
      Text source, region;
      if (OrtStatus* s = context_attribute(api, seen.nodes[n].node, "source", &source)) return s;
      if (strcmp(source.c(), kName)) continue;
      if (OrtStatus* s = context_attribute(api, seen.nodes[n].node, "partition_name", &region)) return s;
      for (uint32_t r = 0; r < folder->table->count; ++r)
        if (!done[r] && !strcmp(folder->table->regions[r].name, region.c())) {
          List<int> one;
          one.push(static_cast<int>(n));
          if (OrtStatus* s = fuse(seen, one, info)) return s;
          claimed.push(static_cast<int>(r));
        }
    }
    return nullptr;
  }

  // "output of the node\nattribute\n" of each body around a graph, from the outside in.
  OrtStatus* body_of(const OrtGraph* graph, Text* body) const {
    const OrtNode* parent = nullptr;
    while (graph) {
      if (OrtStatus* s = api.call<OrtStatus*>(346, graph, &parent)) return s;
      if (!parent) return nullptr;
      List<const char*> gives;
      if (OrtStatus* s = names_of(api, parent, 355, 356, gives)) return s;
      const char* name = "";
      for (size_t i = gives.size; i-- > 0;)
        if (*gives[i]) name = gives[i];
      size_t count = 0;
      if (OrtStatus* s = api.call<OrtStatus*>(365, parent, &count)) return s;
      List<const OrtGraph*> graphs;
      List<const char*> attributes;
      graphs.fill(count, nullptr), attributes.fill(count, nullptr);
      if (OrtStatus* s = api.call<OrtStatus*>(366, parent, graphs.data, count, attributes.data)) return s;
      const char* attribute = nullptr;
      for (size_t i = 0; i < count; ++i)
        if (same_graph(graphs[i], graph)) attribute = attribute ? "?" : attributes[i];  // "?": it cannot be told which
      *body = line("%s\n%s\n%s", name, attribute ? attribute : "?", body->c());
      if (OrtStatus* s = api.call<OrtStatus*>(367, parent, &graph)) return s;
    }
    return nullptr;
  }

  // ORT hands out another OrtGraph for a body each time: compare what they hold.
  bool same_graph(const OrtGraph* a, const OrtGraph* b) const {
    if (a == b) return true;
    Graph left, right;
    if (OrtStatus* s = left.read(api, a)) return api.release_status(s), false;
    if (OrtStatus* s = right.read(api, b)) return api.release_status(s), false;
    if (left.nodes.size != right.nodes.size) return false;
    const auto same = [&](const List<int>& x, const List<int>& y) {
      if (x.size != y.size) return false;
      for (size_t i = 0; i < x.size; ++i)
        if (strcmp(left.values.names[size_t(x[i])], right.values.names[size_t(y[i])])) return false;
      return true;
    };
    if (!same(left.reads, right.reads) || !same(left.writes, right.writes) || !same(left.outputs, right.outputs)) return false;
    for (size_t n = 0; n < left.nodes.size; ++n) {
      const char *x = nullptr, *y = nullptr;
      if (OrtStatus* s = api.call<OrtStatus*>(350, left.nodes[n].node, &x)) return api.release_status(s), false;
      if (OrtStatus* s = api.call<OrtStatus*>(350, right.nodes[n].node, &y)) return api.release_status(s), false;
      if (strcmp(x, y)) return false;
    }
    return true;
  }

  OrtStatus* compile(const OrtNode* fused, OrtNodeComputeInfo** info, OrtNode** context) {
    List<const char*> reads, writes;
    if (OrtStatus* s = names_of(api, fused, 353, 354, reads)) return s;
    if (OrtStatus* s = names_of(api, fused, 355, 356, writes)) return s;
    const auto place = [](const List<const char*>& names, const char* name) {
      for (size_t i = 0; i < names.size; ++i)
        if (!strcmp(names[i], name)) return static_cast<int>(i);
      return -1;
    };
    const RegionOp* region = nullptr;
    for (int r : claimed)
      for (size_t i = 0; !region && i < folder->table->regions[r].outputs; ++i)
        if (place(writes, folder->table->regions[r].output_names[i]) >= 0) region = &folder->table->regions[r], done[size_t(r)] = 1;
    if (!region) return api.error("opsmith: ONNX Runtime fused nodes that are no region; please report it");
    Compiled* made = make<Compiled>();
    const size_t inputs = region->weight_input;
    int* places = static_cast<int*>(calloc(inputs + region->outputs + 1, sizeof(int)));
    if (!places) abort();
    for (size_t i = 0; i < inputs; ++i)
      if ((places[i] = place(reads, region->input_names[i])) < 0)
        return api.error(line("opsmith: ONNX Runtime does not give %s its input %s", region->name, region->input_names[i]).c());
    for (size_t i = 0; i < region->outputs; ++i) places[inputs + i] = place(writes, region->output_names[i]);
    made->ort_version_supported = kOrtApiVersion;
    made->CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) -> OrtStatus* {
      *state = self;
      return nullptr;
    };
    made->Compute = Compiled::run;
    made->ReleaseState = Compiled::forget_allocator;
    made->kernel = Kernel{api, nullptr, nullptr, hardware_threads(), places, places + inputs, region->output_types};
    made->folder = folder;
    made->weight_offset = region->weight_offset;
    made->compute = region->compute;
    made->memory = memory;
    made->places = places;
    *info = made;
    if (!writes_context) return nullptr;
    const char* name = nullptr;  // by which ORT knows what the context stands for
    if (OrtStatus* s = api.call<OrtStatus*>(349, fused, &name)) return s;
    return make_context(api, kName, name, folder->digest.text, region->name, reads, writes, context);
  }

  // Other weights between two runs: mapped and checked first, then one pointer changes while no run is under way.
  OrtStatus* swap(const char* where) {
    if (!folder || !folder->weights) return api.error("opsmith: no region of this session has weights");
    const uint8_t* fresh = nullptr;
    const Text problem = other_weights(where, &fresh);
    if (!problem.empty()) return api.error(line("opsmith: %s", problem.c()).c());
    pthread_rwlock_wrlock(&weights_lock);
    const uint8_t* old = folder->weights;
    folder->weights = fresh;
    pthread_rwlock_unlock(&weights_lock);
    give_back_mapping(old);
    return nullptr;
  }

  Text other_weights(const char* where, const uint8_t** fresh) const {
    Folder other;
    bool is_there = false;
    if (Text wrong = other.open(where, &is_there); !wrong.empty()) return wrong;
    const Target* same = nullptr;
    for (const Target& t : other.targets)
      if (!strcmp(t.name, folder->target->name)) same = &t;
    if (!same) return line("%s has no code for the target %s", where, folder->target->name);
    Text wrong = folder->map_weights(line("%s/%s", where, same->weights).c(), fresh);
    if (!wrong.empty() || !strcmp(same->rest, folder->target->rest)) return wrong;
    give_back_mapping(*fresh);
    return line("%s differs in what ONNX Runtime itself runs, too, which cannot be swapped; make a session of its model", where);
  }

  OrtStatus* compile_all(const OrtNode** fused, size_t count, OrtNodeComputeInfo** infos, OrtNode** contexts) {
    for (size_t i = 0; i < count; ++i)
      if (OrtStatus* s = compile(fused[i], &infos[i], writes_context ? &contexts[i] : nullptr)) return s;
    // A region may give nothing but what another one takes. If ORT took one and not the other, nothing can be relied upon.
    for (int r : claimed)
      if (!done[size_t(r)]) return api.error("opsmith: ONNX Runtime left out a region that was claimed; please report it");
    if (!writes_context || !folder) return nullptr;
    const Text problem = copy_folder(*folder, line("%s.opsmith", context_file.c()).c());
    return problem.empty() ? nullptr : api.error(line("opsmith: %s", problem.c()).c());
  }
};

// What an EPContext model says about itself, and what a machine must have to run it.
constexpr const char* kCompatible = "opsmith regions 2; features ";

OrtStatus* create_ep(OrtEpFactory* base, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*, size_t,
                     const OrtSessionOptions* options, const OrtLogger* logger, OrtEp** out) {
  Factory& factory = *static_cast<Factory*>(base);
  Ep* ep = make<Ep>();
  tell(nullptr);
  ep->factory = &factory;
  ep->api = factory.api;
  ep->logger = logger;
  ep->options = options;
  ep->folder_option = ep->option(OPTION("folder"));
  ep->cache = ep->option(OPTION("cache"));
  ep->target = ep->option(OPTION("target"));
  if (const char* name = getenv("OPSMITH_CPU"); name && ep->target.empty()) ep->target = Text(name);
  ep->digest = ep->option(OPTION("model_digest"));
  ep->context_file = ep->option("ep.context_file_path");
  ep->writes_context = !strcmp(ep->option("ep.context_enable").c(), "1");
  ep->options = nullptr;  // they need not outlive this call
  if (ep->cache.empty()) ep->cache = default_cache();
  if (OrtStatus* s = ep->api.call<OrtStatus*>(69, 1 /* arena */, 0 /* default */, &ep->memory)) return s;
  ep->ort_version_supported = kOrtApiVersion;
  ep->GetName = [](const OrtEp*) { return kName; };
  ep->GetCapability = [](OrtEp* e, const OrtGraph* graph, OrtEpGraphSupportInfo* info) {
    return static_cast<Ep*>(e)->capability(graph, info);
  };
  ep->Compile = [](OrtEp* e, const OrtGraph**, const OrtNode** fused, size_t count, OrtNodeComputeInfo** infos, OrtNode** contexts) {
    return static_cast<Ep*>(e)->compile_all(fused, count, infos, contexts);
  };
  ep->OnRunStart = [](OrtEp* e, const OrtRunOptions*) -> OrtStatus* {
    pthread_rwlock_rdlock(&static_cast<Ep*>(e)->weights_lock);
    return nullptr;
  };
  ep->OnRunEnd = [](OrtEp* e, const OrtRunOptions*, bool) -> OrtStatus* {
    pthread_rwlock_unlock(&static_cast<Ep*>(e)->weights_lock);
    return nullptr;
  };
  ep->SetDynamicOptions = [](OrtEp* e, const char* const* keys, const char* const* values, size_t count) -> OrtStatus* {
    Ep& self = *static_cast<Ep*>(e);
    for (size_t i = 0; i < count; ++i)
      if (!strcmp(keys[i], kSwap))
        if (OrtStatus* s = self.swap(values[i])) return s;
    return nullptr;
  };
  ep->ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      free(static_cast<Compiled*>(infos[i])->places);
      destroy(static_cast<Compiled*>(infos[i]));
    }
  };
  ep->GetCompiledModelCompatibilityInfo = [](OrtEp* e, const OrtGraph*) -> const char* {
    Ep& self = *static_cast<Ep*>(e);
    if (!self.folder || !self.folder->target) return nullptr;
    self.compatibility = line("%s%s", kCompatible, self.folder->target->features);
    return self.compatibility.c();
  };
  *out = ep;
  return nullptr;
}

void release_ep(OrtEpFactory*, OrtEp* base) {
  Ep* ep = static_cast<Ep*>(base);
  if (ep->folder) destroy(ep->folder);
  if (ep->memory) ep->api.call<void>(94, ep->memory);
  destroy(ep);
}

OrtStatus* devices(OrtEpFactory* base, const OrtHardwareDevice* const* all, size_t count, OrtEpDevice** out, size_t most,
                   size_t* made) {
  Factory& factory = *static_cast<Factory*>(base);
  *made = 0;
  for (size_t i = 0; i < count && *made < most; ++i) {
    if (factory.api.call<int>(307, all[i]) != 0) continue;  // not a CPU
    if (OrtStatus* s = Api{factory.ep_table}.call<OrtStatus*>(0, base, all[i], static_cast<OrtKeyValuePairs*>(nullptr),
                                                              static_cast<OrtKeyValuePairs*>(nullptr), &out[*made]))
      return s;
    ++*made;
  }
  return nullptr;
}

OrtStatus* compatible(OrtEpFactory*, const OrtHardwareDevice* const*, size_t, const char* info, int* answer) {
  constexpr int kNotOurs = 0, kBest = 1, kUnsupported = 3;
  const size_t head = strlen(kCompatible);
  char missing[32];
  *answer = strncmp(info, "opsmith regions ", 16) ? kNotOurs
            : strncmp(info, kCompatible, head) || !has_features(info + head, missing) ? kUnsupported
                                                                                      : kBest;
  return nullptr;
}

}  // namespace
}  // namespace opsmith

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base, const OrtLogger*, OrtEpFactory** factories, size_t most,
                                      size_t* count) {
  using namespace opsmith;
  const void* table = base->GetApi(kOrtApiVersion);
  if (!table) {  // the oldest table has CreateStatus in the same slot
    const Api oldest{static_cast<const void* const*>(base->GetApi(1))};
    return oldest.error("opsmith: the execution provider needs ONNX Runtime 1.24 or newer");
  }
  const Api api{static_cast<const void* const*>(table)};
  if (most < 1) return api.error("opsmith: there is no room for the provider");
  Factory* factory = make<Factory>();
  factory->api = api;
  factory->ep_table = api.call<const void* const*>(317);
  factory->ort_version_supported = kOrtApiVersion;
  factory->GetName = [](const OrtEpFactory*) { return kName; };
  factory->GetVendor = [](const OrtEpFactory*) { return "Opsmith"; };
  factory->GetVendorId = [](const OrtEpFactory*) { return uint32_t(0); };
  factory->GetVersion = [](const OrtEpFactory*) { return OPSMITH_VERSION; };
  factory->GetSupportedDevices = devices;
  factory->CreateEp = create_ep;
  factory->ReleaseEp = release_ep;
  factory->ValidateCompiledModelCompatibilityInfo = compatible;
  factory->CreateAllocator = [](OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*, OrtAllocator** out) -> OrtStatus* {
    *out = nullptr;
    return nullptr;
  };
  factory->ReleaseAllocator = [](OrtEpFactory*, OrtAllocator*) {};
  factory->CreateDataTransfer = [](OrtEpFactory*, void** out) -> OrtStatus* {
    *out = nullptr;
    return nullptr;
  };
  factory->IsStreamAware = [](const OrtEpFactory*) { return false; };
  *factories = factory;
  *count = 1;
  return nullptr;
}

EXPORTED OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  opsmith::destroy(static_cast<opsmith::Factory*>(factory));
  return nullptr;
}

// For Python: the digest of a file, in 33 characters; 0 if it cannot be read.
EXPORTED int OpsmithDigest(const char* path, char* out) {
  opsmith::Digest digest;
  if (!opsmith::digest_file(path, &digest)) return 0;
  memcpy(out, digest.text, sizeof digest.text);
  return 1;
}

// For Python: what became of the regions of the session that was made last; the bytes that this takes.
EXPORTED size_t OpsmithReport(char* out, size_t room) {
  opsmith::tell("");
  pthread_mutex_lock(&opsmith::report_lock);
  const size_t needed = opsmith::report->size;
  if (needed <= room) memcpy(out, opsmith::report->c(), needed);
  pthread_mutex_unlock(&opsmith::report_lock);
  return needed;
}
