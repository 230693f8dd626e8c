// The folder that holds a model's compiled regions, `model.onnx.opsmith` or one in the cache: read, checked, loaded.
//
//     opsmith regions 2           the file `manifest`, one fact a line; provider/folder.py writes it
//     model <digest>              of model.onnx; another model is never run with this code
//     data <digest> <file>        of each file with external data of the model
//     target <name>               one for each CPU that was built for, the best first; then of that target:
//     features <name> ...         what the CPU must have
//     library <digest> <file>
//     rest <digest>               of what ONNX Runtime computes itself; sessions swap weights only between folders with the same
//     weights <bytes> <file>      packed; if there are any
//
// Everything that is wrong comes back as one line that says what; an empty one means that all is well.
#pragma once

#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>

#include "cpu.hpp"
#include "digest.hpp"
#include "ort_abi.hpp"

namespace opsmith {

// A weights file in memory, once per process however many sessions read it.
struct Mapping {
  dev_t device;
  ino_t file;
  off_t size;
  timespec written;
  const uint8_t* data;
  int users;
};

inline pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;
inline List<Mapping>* mappings = nullptr;  // lives as long as the process

// Null if it cannot be mapped.
inline const uint8_t* take_mapping(int file, const struct stat& s) {
  pthread_mutex_lock(&mappings_lock);
  if (!mappings) mappings = static_cast<List<Mapping>*>(calloc(1, sizeof *mappings));
  Mapping* found = nullptr;
  for (Mapping& m : *mappings)
    if (m.device == s.st_dev && m.file == s.st_ino && m.size == s.st_size && m.written.tv_sec == s.st_mtim.tv_sec &&
        m.written.tv_nsec == s.st_mtim.tv_nsec)
      found = &m;
  if (!found) {
    void* data = mmap(nullptr, static_cast<size_t>(s.st_size), PROT_READ, MAP_SHARED, file, 0);
    if (data != MAP_FAILED) {
      mappings->push({s.st_dev, s.st_ino, s.st_size, s.st_mtim, static_cast<const uint8_t*>(data), 0});
      found = mappings->end() - 1;
    }
  }
  if (found) ++found->users;
  const uint8_t* data = found ? found->data : nullptr;
  pthread_mutex_unlock(&mappings_lock);
  return data;
}

inline void give_back_mapping(const uint8_t* data) {
  pthread_mutex_lock(&mappings_lock);
  for (Mapping& m : *mappings)
    if (m.data == data) {
      if (--m.users == 0) {
        munmap(const_cast<uint8_t*>(m.data), static_cast<size_t>(m.size));
        m = mappings->pop();
      }
      break;
    }
  pthread_mutex_unlock(&mappings_lock);
}

constexpr const char* kManifest = "opsmith regions 2";

struct Target {
  const char *name = "", *features = "", *library = "", *library_digest = "", *rest = "", *weights = "";
  long long weight_bytes = 0;
};

struct DataFile {
  const char *digest, *name;
};

// Where compiled regions of models are cached; settings.py has the same rule.
inline Text default_cache() {
  const char *own = getenv("OPSMITH_CACHE"), *shared = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (own && *own) return line("%s/regions", own);
  if (shared && *shared) return line("%s/opsmith/regions", shared);
  return line("%s/.cache/opsmith/regions", home ? home : "");
}

struct Folder {
  Text path;
  Digest digest;           // of the manifest
  const char* model = "";  // digest of the model it was made for
  List<DataFile> data;
  List<Target> targets;
  const Target* target = nullptr;   // the one that is loaded
  const Regions* table = nullptr;   // null: nothing of this model was worth compiling
  const uint8_t* weights = nullptr;

  Folder() = default;
  Folder(const Folder&) = delete;
  ~Folder() {
    if (weights) give_back_mapping(weights);
  }

  // Reads the manifest. FOUND says whether there is one at all.
  Text open(const char* where, bool* found) {
    path = Text(where);
    const Text file = line("%s/manifest", where);
    *found = access(file.c(), F_OK) == 0;
    if (!*found) return line("there is no %s", file.c());
    if (!digest_file(file.c(), &digest) || !read_text(file.c())) return line("%s cannot be read", file.c());
    return parse(file.c());
  }

  // Whether MODEL and its data are what the regions were compiled from.
  Text check_model(const char* model_path, const Digest& of_model) const {
    if (strcmp(model, of_model.text))
      return line("%s was compiled for another model than %s; compile again", path.c(), model_path);
    const char* slash = strrchr(model_path, '/');
    for (const DataFile& d : data) {
      const Text file = line("%.*s%s", slash ? static_cast<int>(slash + 1 - model_path) : 0, model_path, d.name);
      Digest now;
      if (!digest_file(file.c(), &now)) return line("%s, which the model needs, cannot be read", file.c());
      if (strcmp(now.text, d.digest)) return line("%s was compiled for other weights than those in %s; compile again", path.c(), file.c());
    }
    return Text();
  }

  // Chooses a target and loads it. WANTED: its name, or empty for the first that this CPU can run.
  Text load(const char* wanted) {
    if (!targets.size) return Text();
    char missing[32] = "";
    for (const Target& t : targets) {
      if (*wanted && strcmp(wanted, t.name)) continue;
      if (has_features(t.features, missing)) {
        target = &t;
        break;
      }
    }
    if (!target && !*missing) return line("%s has no code for the target %s", path.c(), wanted);
    if (!target) return line("%s was compiled for a CPU with %s, which this CPU lacks", path.c(), missing);
    Text problem = load_library();
    return problem.empty() ? map_weights() : static_cast<Text&&>(problem);
  }

 private:
  Text memory;  // that the names above point into

  bool read_text(const char* file) {
    FILE* in = fopen(file, "re");
    if (!in) return false;
    char piece[4096];
    for (size_t count; (count = fread(piece, 1, sizeof piece, in)) > 0;) memory.add(piece, count);
    const bool ok = !ferror(in);
    fclose(in);
    return ok;
  }

  Text parse(const char* file) {
    Text damaged = line("%s is damaged; compile again", file);
    bool first = true;
    for (char* save = nullptr, *row = strtok_r(memory.data, "\n", &save); row; row = strtok_r(nullptr, "\n", &save)) {
      if (first && strcmp(row, kManifest))
        return strncmp(row, "opsmith regions ", 16)
                   ? static_cast<Text&&>(damaged)
                   : line("%s was written by another version of Opsmith; compile again", path.c());
      char* value = first ? nullptr : strchr(row, ' ');
      if (!first && !value && strcmp(row, "features")) return damaged;
      if (value) *value++ = 0;
      char* rest = value ? strchr(value, ' ') : nullptr;
      Target* last = targets.size ? &targets[targets.size - 1] : nullptr;
      const auto is = [row](const char* word) { return !strcmp(row, word); };
      if (first) {
        first = false;
      } else if (is("model")) {
        model = value;
      } else if (is("target")) {
        Target t;
        t.name = value;
        targets.push(t);
      } else if (is("features") && last) {
        last->features = value ? value : "";
      } else if (is("rest") && last) {
        last->rest = value;
      } else if ((is("data") || (last && (is("library") || is("weights")))) && rest && inside(rest + 1, is("data"))) {
        *rest++ = 0;
        if (is("data")) data.push({value, rest});
        if (is("library")) last->library_digest = value, last->library = rest;
        if (is("weights")) last->weight_bytes = atoll(value), last->weights = rest;
      } else {
        return damaged;
      }
    }
    for (const Target& t : targets)
      if (!*t.library) return damaged;
    return first || !*model ? static_cast<Text&&>(damaged) : Text();
  }

  // A manifest names files of its own folder; external data of the model may lie in folders within the model's.
  static bool inside(const char* name, bool folders) {
    if (!*name || *name == '/' || (!folders && strchr(name, '/'))) return false;
    for (const char* at = name; (at = strstr(at, "..")); at += 2)
      if ((at == name || at[-1] == '/') && (!at[2] || at[2] == '/')) return false;
    return true;
  }

  Text load_library() {
    const Text file = line("%s/%s", path.c(), target->library);
    Digest now;
    if (!digest_file(file.c(), &now)) return line("%s is missing; compile again", file.c());
    if (strcmp(now.text, target->library_digest)) return line("%s is damaged or was changed; compile again", file.c());
    void* library = dlopen(file.c(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return line("%s cannot be loaded: %s", file.c(), dlerror());
    using Door = const Regions* (*)();
    const Door door = reinterpret_cast<Door>(dlsym(library, "OpsmithRegions"));
    table = door ? door() : nullptr;
    if (!table || table->version != kRegionsVersion) {
      table = nullptr;
      return line("%s is a library of another version of Opsmith; compile again", file.c());
    }
    return Text();
  }

  Text map_weights() {
    return *target->weights ? map_weights(line("%s/%s", path.c(), target->weights).c(), &weights) : Text();
  }

 public:
  // Maps a file of weights for the library that is loaded, and checks it.
  Text map_weights(const char* name, const uint8_t** mapped) const {
    const Text file(name);
    const uint8_t* fresh = nullptr;
    const int opened = ::open(file.c(), O_RDONLY | O_CLOEXEC);
    if (opened < 0) return line("%s is missing; compile again", file.c());
    struct stat s;
    Text problem;
    if (fstat(opened, &s) || s.st_size != target->weight_bytes)
      problem = line("%s is cut off or was changed; compile again", file.c());
    else if (!(fresh = take_mapping(opened, s)))
      problem = line("%s cannot be mapped: %s", file.c(), strerror(errno));
    close(opened);
    for (uint32_t i = 0; problem.empty() && i < table->count; ++i) {
      const RegionOp& r = table->regions[i];
      if (!r.weight_bytes) continue;
      if (r.weight_offset + r.weight_bytes > target->weight_bytes)
        problem = line("%s is too short for its library; compile again", file.c());
      else if (const char* wrong = wrong_weights(r, fresh + r.weight_offset))
        problem = line("%s: %s", file.c(), wrong);
    }
    if (problem.empty())
      *mapped = fresh;
    else if (fresh)
      give_back_mapping(fresh);
    return problem;
  }
};

}  // namespace opsmith
