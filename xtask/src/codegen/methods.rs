//! The names of the methods that call a table's functions.
//!
//! A method is named like its C symbol, without the prefix `cu` or `nccl`, in snake case: `ncclAllReduce` is
//! `all_reduce`. Digits and an acronym stay with their word: `cuMemcpy2DAsync_v2` is `memcpy2d_async`. The suffix of the
//! revision is left off if the table has only one revision of the function: `cuMemAlloc_v2` is `mem_alloc`, but
//! `cuCtxCreate_v3` and `cuCtxCreate_v4` are `ctx_create_v3` and `ctx_create_v4`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::render::Entry;

/// Spellings that do not show where a word ends.
const SPELLINGS: [(&str, &str); 10] = [
    ("Allto", "AllTo"),
    ("AtoA", "Atoa"),
    ("AtoD", "Atod"),
    ("AtoH", "Atoh"),
    ("DtoA", "Dtoa"),
    ("DtoD", "Dtod"),
    ("DtoH", "Dtoh"),
    ("HtoA", "Htoa"),
    ("HtoD", "Htod"),
    ("SMem", "Smem"),
];

/// Returns the method's name of each entry. `prefix` is that of the C symbols.
pub(super) fn names(entries: &[Entry], prefix: &str) -> Result<Vec<String>> {
    let mut revisions: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in entries {
        *revisions.entry(&entry.base).or_default() += 1;
    }
    let mut symbols = BTreeMap::new();
    let mut names = Vec::new();
    for entry in entries {
        let symbol = &entry.function.name;
        let kept = if revisions[entry.base.as_str()] == 1 { &entry.base } else { symbol };
        let plain = kept.strip_prefix(prefix).with_context(|| format!("{symbol} has no prefix {prefix}"))?;
        let name = snake_case(plain);
        let other = symbols.insert(name.clone(), symbol);
        ensure!(other.is_none(), "{symbol} and {other:?} would both be {name}");
        names.push(name);
    }
    Ok(names)
}

fn snake_case(name: &str) -> String {
    let mut name = name.to_owned();
    for (old, new) in SPELLINGS {
        name = name.replace(old, new);
    }
    let letters: Vec<_> = name.chars().collect();
    let mut text = String::new();
    for (at, letter) in letters.iter().enumerate() {
        let next_is_lower = letters.get(at + 1).is_some_and(char::is_ascii_lowercase);
        let starts_word = match at.checked_sub(1).map(|before| letters[before]) {
            None | Some('_') => false,
            Some(before) => before.is_ascii_lowercase() || next_is_lower,
        };
        if letter.is_ascii_uppercase() && starts_word {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::bindings::Function;

    #[test]
    fn words_are_found() {
        for (symbol, name) in [
            ("AllReduce", "all_reduce"),
            ("AlltoAllConfig", "all_to_all_config"),
            ("Bcast", "bcast"),
            ("DeviceGetPCIBusId", "device_get_pci_bus_id"),
            ("DeviceGetP2PAttribute", "device_get_p2p_attribute"),
            ("DeviceGetTexture1DLinearMaxWidth", "device_get_texture1d_linear_max_width"),
            ("FlushGPUDirectRDMAWrites", "flush_gpu_direct_rdma_writes"),
            ("LLA2ACalcSlots", "lla2a_calc_slots"),
            ("Memcpy3DBatchAsync_v2", "memcpy3d_batch_async_v2"),
            ("MemcpyDtoHAsync", "memcpy_dtoh_async"),
            ("MemcpyHtoA", "memcpy_htoa"),
            ("MemsetD2D8Async", "memset_d2d8_async"),
            ("ParamGetI16", "param_get_i16"),
            ("StreamWaitValue32", "stream_wait_value32"),
            ("TensorMapEncodeIm2col", "tensor_map_encode_im2col"),
        ] {
            assert_eq!(snake_case(symbol), name);
        }
    }

    #[test]
    fn a_revision_is_named_if_the_table_has_another() {
        let entry = |name: &str, base: &str| Entry {
            function: Function { name: name.into(), parameters: String::new(), result: String::new() },
            base: base.into(),
            since: [1, 0, 0],
            declared: None,
        };
        let table = [entry("cuA_v2", "cuA"), entry("cuB", "cuB"), entry("cuB_v2", "cuB")];
        assert_eq!(names(&table, "cu").unwrap(), ["a", "b", "b_v2"]);
        assert!(names(&table, "nccl").is_err());
        let alike = [entry("cuABc", "cuABc"), entry("cuA_bc", "cuA_bc")];
        assert!(names(&alike, "cu").unwrap_err().to_string().contains("would both be a_bc"));
    }
}
