// Reads from a compiled image which kernels it has and for which devices it is compiled.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <elf.h>
#include <set>
#include <string>

namespace fake {

struct Image {
    int error = 0; // the driver's error code
    std::set<std::string> kernels;
    bool is_compressed = false; // if so, `kernels` is not known

    bool has(const char* kernel) const { return is_compressed || kernels.count(kernel); }
};

static constexpr int INVALID_IMAGE = 200, NO_BINARY_FOR_GPU = 209, INVALID_PTX = 218, UNSUPPORTED_PTX_VERSION = 222;

inline Image failed(int error) {
    Image image;
    image.error = error;
    return image;
}

// A cubin runs on devices of its major version, from its minor version on.
inline bool runs_on(int architecture, int device) {
    return architecture / 10 == device / 10 && architecture <= device;
}

inline Image read_cubin(const char* bytes, int device) {
    Image image;
    Elf64_Ehdr header;
    memcpy(&header, bytes, sizeof header);
    static constexpr unsigned CUDA_MACHINE = 190;
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != CUDA_MACHINE) return failed(INVALID_IMAGE);
    // The position of the architecture in the flags has changed once.
    const unsigned flags = header.e_ident[EI_ABIVERSION] >= 8 ? header.e_flags >> 8 : header.e_flags;
    if (!runs_on((int)(flags & 0xFF), device)) return failed(NO_BINARY_FOR_GPU);
    auto section = [&](unsigned index) {
        Elf64_Shdr found;
        memcpy(&found, bytes + header.e_shoff + index * sizeof found, sizeof found);
        return found;
    };
    const char* const names = bytes + section(header.e_shstrndx).sh_offset;
    for (unsigned index = 0; index < header.e_shnum; ++index) {
        const char* name = names + section(index).sh_name;
        if (!strncmp(name, ".text.", 6) && section(index).sh_size) image.kernels.insert(name + 6);
    }
    return image;
}

// Reads PTX, which is compiled when it is loaded. It runs on its device or a later one, with a driver that
// knows its version.
inline Image read_ptx(const char* text, int device, double newest_ptx) {
    Image image;
    const char *version = strstr(text, "\n.version "), *target = strstr(text, "\n.target sm_");
    if (!version || !target) return failed(INVALID_PTX);
    if (strtod(version + 10, nullptr) > newest_ptx) return failed(UNSUPPORTED_PTX_VERSION);
    char* end;
    const long architecture = strtol(target + 12, &end, 10);
    // "sm_90a" is only for that architecture, not for later ones.
    if (architecture > device || (*end == 'a' && architecture != device)) return failed(NO_BINARY_FOR_GPU);
    static constexpr char ENTRY[] = ".entry ";
    for (const char* at = text; (at = strstr(at, ENTRY));) {
        at += sizeof ENTRY - 1;
        image.kernels.emplace(at, strcspn(at, "( \n"));
    }
    return image;
}

// Reads the newest cubin that fits the device, from a file with cubins for several devices. Drivers know the
// compression from CUDA 12.4 on, whose PTX is 8.4.
inline Image read_fatbin(const char* bytes, int device, double newest_ptx) {
    struct {
        uint32_t magic;
        uint16_t version, bytes;
        uint64_t entries;
    } header;
    struct {
        uint16_t kind, version;
        uint32_t header;
        uint64_t bytes;
        uint32_t compressed, unknown;
        uint16_t minor, major;
        uint32_t architecture;
    } entry;
    memcpy(&header, bytes, sizeof header);
    const char *at = bytes + header.bytes, *end = at + header.entries, *found = nullptr;
    for (int best = 0; at < end; at += entry.header + entry.bytes) {
        static constexpr uint16_t CUBIN = 2;
        memcpy(&entry, at, sizeof entry);
        const int architecture = (int)entry.architecture;
        if (entry.kind != CUBIN || !runs_on(architecture, device) || architecture <= best) continue;
        best = architecture;
        found = at + entry.header;
    }
    if (!found) return failed(NO_BINARY_FOR_GPU);
    if (!memcmp(found, ELFMAG, SELFMAG)) return read_cubin(found, device);
    if (newest_ptx < 8.4) return failed(INVALID_IMAGE);
    Image image;
    image.is_compressed = true;
    return image;
}

inline Image read_image(const void* bytes, int device, double newest_ptx) {
    const char* text = (const char*)bytes;
    if (!memcmp(text, ELFMAG, SELFMAG)) return read_cubin(text, device);
    if (!memcmp(text, "//", 2) || !memcmp(text, ".version", 8)) return read_ptx(text, device, newest_ptx);
    if (!memcmp(text, "\x50\xED\x55\xBA", 4)) return read_fatbin(text, device, newest_ptx);
    return failed(INVALID_IMAGE);
}

} // namespace fake
