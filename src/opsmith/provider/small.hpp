// The few containers that the provider needs. It links no C++ runtime, so that one build runs wherever ONNX Runtime does.
#pragma once

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Placement new, which <new> would bring together with the rest of the runtime.
struct OpsmithHere {};
inline void* operator new(size_t, void* at, OpsmithHere) noexcept { return at; }

namespace opsmith {

template <class T>
T* make() {
  void* memory = calloc(1, sizeof(T));
  if (!memory) abort();
  return new (memory, OpsmithHere{}) T{};
}

template <class T>
void destroy(T* thing) {
  thing->~T();
  free(static_cast<void*>(thing));
}

template <class T>
struct List {
  static_assert(__is_trivially_copyable(T));
  T* data = nullptr;
  size_t size = 0, room = 0;

  List() = default;
  List(List&& other) : data(other.data), size(other.size), room(other.room) { other.data = nullptr, other.size = other.room = 0; }
  List(const List&) = delete;
  List& operator=(List&& other) {
    T* d = data;
    const size_t s = size, r = room;
    data = other.data, size = other.size, room = other.room;
    other.data = d, other.size = s, other.room = r;
    return *this;
  }
  ~List() { free(data); }

  void push(const T& value) {
    const T copy = value;
    if (size == room) resize_room(room ? 2 * room : 8);
    data[size++] = copy;
  }
  void fill(size_t count, const T& value) {
    size = 0;
    while (size < count) push(value);
  }
  T pop() { return data[--size]; }
  bool has(const T& value) const {
    for (size_t i = 0; i < size; ++i)
      if (data[i] == value) return true;
    return false;
  }
  T& operator[](size_t i) { return data[i]; }
  const T& operator[](size_t i) const { return data[i]; }
  T* begin() { return data; }
  T* end() { return data + size; }
  const T* begin() const { return data; }
  const T* end() const { return data + size; }

 private:
  void resize_room(size_t wanted) {
    data = static_cast<T*>(realloc(static_cast<void*>(data), wanted * sizeof(T)));
    if (!data) abort();
    room = wanted;
  }
};

// A string; `line` writes as printf does.
struct Text : List<char> {
  Text() { push(0); }
  explicit Text(const char* text) : Text() { add(text, strlen(text)); }
  Text(Text&&) = default;
  Text& operator=(Text&&) = default;
  const char* c() const { return data; }
  bool empty() const { return size == 1; }
  void add(const char* text, size_t count) {
    --size;
    for (size_t i = 0; i < count; ++i) push(text[i]);
    push(0);
  }
  void add(const char* text) { add(text, strlen(text)); }
  Text copy() const { return Text(data); }
};

__attribute__((format(printf, 1, 2))) inline Text line(const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int count = vsnprintf(nullptr, 0, format, args);
  va_end(args);
  char* memory = static_cast<char*>(malloc(static_cast<size_t>(count) + 1));
  if (!memory) abort();
  vsnprintf(memory, static_cast<size_t>(count) + 1, format, again);
  va_end(again);
  Text text(memory);
  free(memory);
  return text;
}

// Name -> number. The names belong to somebody else.
struct Names {
  List<const char*> names;
  List<int> table;

  int find(const char* name) const {
    if (!table.size) return -1;
    for (size_t at = place(name);; at = (at + 1) % table.size) {
      if (table[at] < 0) return -1;
      if (!strcmp(names[static_cast<size_t>(table[at])], name)) return table[at];
    }
  }
  int add(const char* name) {
    if (const int known = find(name); known >= 0) return known;
    names.push(name);
    if (2 * names.size > table.size) {
      table.fill(4 * names.size + 64, -1);
      for (size_t i = 0; i < names.size; ++i) put(i);
    } else {
      put(names.size - 1);
    }
    return static_cast<int>(names.size) - 1;
  }

 private:
  size_t place(const char* name) const {
    uint64_t hash = 1469598103934665603ull;
    for (; *name; ++name) hash = (hash ^ static_cast<uint8_t>(*name)) * 1099511628211ull;
    return hash % table.size;
  }
  void put(size_t number) {
    size_t at = place(names[number]);
    while (table[at] >= 0) at = (at + 1) % table.size;
    table[at] = static_cast<int>(number);
  }
};

}  // namespace opsmith
