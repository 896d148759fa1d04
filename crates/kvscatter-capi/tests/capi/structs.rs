//! Compares structs, constants and functions with the header, as a C compiler reads it.

use std::mem::offset_of;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use kvscatter_capi::*;

/// Writes `_Static_assert`s that a struct has its size in Rust and its fields have their offsets.
macro_rules! assertions {
    ($into:ident, $($name:ident { $($field:ident),* })*) => {$(
        $into.push_str(&format!("SIZE({}, {}, {});\n", stringify!($name), size_of::<$name>(), align_of::<$name>()));
        $($into.push_str(&format!(
            "OFFSET({}, {}, {});\n",
            stringify!($name),
            stringify!($field).trim_start_matches("r#"),
            offset_of!($name, $field),
        ));)*
    )*};
}

#[test]
fn lie_as_the_header_says() {
    let mut source = String::from(
        "#include <kvscatter.h>\n\
         #define SIZE(type, size, align) _Static_assert(sizeof(type) == size && _Alignof(type) == align, #type)\n\
         #define OFFSET(type, field, at) _Static_assert(offsetof(type, field) == at, #type \".\" #field)\n",
    );
    assertions! { source,
        kvs_tensor { struct_size, data, r#type, rank, shape, strides }
        kvs_indices { values, count, bits }
        kvs_executor { broadcast, user }
        kvs_call {
            struct_size, write_indices, slot_mapping, lengths, update_lengths, layer_id, token_offset, seq_len,
            executor
        }
        kvs_tensor_scatter_options { struct_size, axis, mode, out_of_range, negative_index }
        kvs_kv_cache_update_options { struct_size, cache_mode, update_form, out_of_range }
        kvs_kv_cache_operation_options { struct_size, out_of_range }
        kvs_paged_write_options { struct_size, axis, skip_negative }
        kvs_block_tables { struct_size, block_tables, seq_lens, new_tokens, max_blocks, block_size, num_blocks }
        kvs_pair { cache, update }
        kvs_written { struct_size, skipped }
        kvs_loop { count, dst_stride, src_stride }
        kvs_block { dst_offset, src_offset, len, loops }
        kvs_ring { capacity, window }
        kvs_attention_options {
            struct_size, is_causal, mode, has_sinks, scale, softcap, window_left, window_right, blocks_per_sample
        }
        kvs_attention_call {
            struct_size, lengths, starts, block_table, query_positions, mask, sinks, key_scales, value_scales,
            executor
        }
        kvs_error { struct_size, code, fields, argument, index, value, limit, message }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("structs.c");
    fs::write(&path, &source).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"]);
    let output = compile.arg(include).arg(&path).output().unwrap();
    assert!(output.status.success(), "{source}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// The `struct_size` that programs of the first version set. A struct that grows keeps this number as its
/// `Versioned::MIN_SIZE`. A tensor must not grow, because pairs contain two tensors.
#[cfg(target_pointer_width = "64")]
#[test]
fn stay_as_they_were() {
    let sizes = [
        size_of::<kvs_tensor>(),
        size_of::<kvs_indices>(),
        size_of::<kvs_call>(),
        size_of::<kvs_tensor_scatter_options>(),
        size_of::<kvs_kv_cache_update_options>(),
        size_of::<kvs_kv_cache_operation_options>(),
        size_of::<kvs_pair>(),
        size_of::<kvs_written>(),
        size_of::<kvs_block>(),
        size_of::<kvs_ring>(),
        size_of::<kvs_error>(),
        size_of::<kvs_attention_options>(),
        size_of::<kvs_attention_call>(),
        size_of::<kvs_paged_write_options>(),
        size_of::<kvs_block_tables>(),
    ];
    assert_eq!(sizes, [40, 24, 184, 32, 24, 16, 80, 16, 96, 16, 304, 56, 128, 24, 104]);
}
