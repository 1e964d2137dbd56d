//! Parses the text of PyTorch's environment variable `PYTORCH_CUDA_ALLOC_CONF` into settings.

use super::rounding::{Fraction, Rounding};
use super::settings::Settings;
use super::size::MAX_BLOCK;

const MIB: u64 = 1 << 20;

/// The settings in a text of the form that PyTorch reads from `PYTORCH_CUDA_ALLOC_CONF`.
///
/// ```
/// use std::sync::Arc;
/// use caching_alloc::core::{Allocator, TorchConf};
/// use caching_alloc::host::{HostSource, HostStreams};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let conf = TorchConf::parse("max_split_size_mb:256,garbage_collection_threshold:0.8,expandable_segments:True")?;
/// assert_eq!(conf.settings.max_split, Some(256 << 20));
/// let (source, events) = (Arc::new(HostSource::new(1 << 30)), Arc::new(HostStreams::new()));
/// let allocator = if conf.expandable_segments {
///     Allocator::remapping(source, events, conf.settings)?
/// } else {
///     Allocator::new(source, events, conf.settings)
/// };
/// if let Some(fraction) = conf.memory_fraction {
///     allocator.set_memory_fraction(fraction)?;
/// }
/// for (key, value) in &conf.without_meaning {
///     eprintln!("{key}:{value} has no meaning here");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TorchConf {
    /// The settings of the allocator. Those that the text does not mention are the defaults.
    pub settings: Settings,
    /// `expandable_segments`: whether the default pool is to be re-mappable.
    pub expandable_segments: bool,
    /// `per_process_memory_fraction`: the memory limit, as a fraction of the device's memory.
    pub memory_fraction: Option<Fraction>,
    /// Keys that PyTorch knows but that have no effect here, with their values.
    pub without_meaning: Vec<(String, String)>,
}

/// The reason why a text could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfError {
    /// A key that neither this crate nor PyTorch knows.
    #[error("{key:?} is no setting; known are {}", KNOWN.join(", "))]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A value that is invalid for its key.
    #[error("{key}:{value} cannot be: {key} takes {expected}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },
    /// A part without a key or a value, or unbalanced or nested brackets.
    #[error("{part:?} is not of the form key:value, or key:[key:value,…]")]
    Form {
        /// The part.
        part: String,
    },
}

/// All keys that PyTorch knows. Those that this crate evaluates come first.
const KNOWN: [&str; 23] = [
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
    "expandable_segments_handle_type",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "pinned_max_cached_size",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom",
];

impl TorchConf {
    /// Parses a text of the form `key:value,key:[…]`. Settings that it does not mention are those of
    /// [`Settings::default`].
    ///
    /// # Errors
    /// [`ConfError`] if any part of the text is invalid.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let mut conf = Self::default();
        for part in parts(text)? {
            let (key, value) =
                part.split_once(':').ok_or_else(|| ConfError::Form { part: part.to_owned() })?;
            let (key, value) = (key.trim(), value.trim());
            if key.is_empty() || value.is_empty() {
                return Err(ConfError::Form { part: part.to_owned() });
            }
            conf.set(key, value)?;
        }
        Ok(conf)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfError> {
        let wrong = |expected| ConfError::Value { key: key.to_owned(), value: value.to_owned(), expected };
        let settings = &mut self.settings;
        match key {
            "backend" if value == "native" => {}
            "backend" => return Err(wrong("native: this is the one allocator there is")),
            "expandable_segments" => {
                self.expandable_segments = match value {
                    "True" => true,
                    "False" => false,
                    _ => return Err(wrong("True or False")),
                }
            }
            "garbage_collection_threshold" => {
                let part = value.parse().ok().filter(|part| *part > 0.0 && *part < 1.0);
                let part = part.and_then(Fraction::new);
                settings.collect_above = Some(part.ok_or_else(|| wrong("a number between 0 and 1"))?);
            }
            "per_process_memory_fraction" => {
                let part = value.parse().ok().and_then(Fraction::new);
                self.memory_fraction = Some(part.ok_or_else(|| wrong("a number from 0 to 1"))?);
            }
            "large_segment_size_mb" => settings.large_segment = mib(value).ok_or_else(|| wrong(SIZE))?,
            "max_non_split_rounding_mb" => {
                settings.max_unsplit_waste = mib(value).ok_or_else(|| wrong(SIZE))?;
            }
            "max_split_size_mb" => settings.max_split = Some(mib(value).ok_or_else(|| wrong(SIZE))?),
            "roundup_power2_divisions" => {
                settings.rounding = divisions(value).ok_or_else(|| wrong(DIVISIONS))?;
            }
            key if KNOWN.contains(&key) => self.without_meaning.push((key.to_owned(), value.to_owned())),
            key => return Err(ConfError::UnknownKey { key: key.to_owned() }),
        }
        Ok(())
    }
}

const SIZE: &str = "a whole number of MiB, from 1 to 1048576";
const DIVISIONS: &str = "a power of two (or 0), or a list such as [256:1,512:2,>:4] of MiB and such numbers; MiB are powers of two";

/// Parses a size in MiB, and returns it in bytes. Returns `None` if it is invalid.
fn mib(value: &str) -> Option<u64> {
    let mib: u64 = value.parse().ok()?;
    mib.checked_mul(MIB).filter(|bytes| (MIB..=MAX_BLOCK).contains(bytes))
}

/// Parses the value of `roundup_power2_divisions`: the number of steps into which [`Rounding`] divides the sizes
/// between two powers of two. The value is one number of steps for all sizes, or a list of entries `MiB:steps`. An
/// entry applies to sizes from its MiB up to twice that. The first entry also applies to all smaller sizes. An entry
/// `>:steps` applies to all sizes above those of the entry before it. Returns `None` if the value is invalid.
fn divisions(value: &str) -> Option<Rounding> {
    let Some(list) = value.strip_prefix('[') else {
        return Rounding::divisions(value.parse().ok()?);
    };
    let mut rounding = Rounding::none();
    let mut last = None;
    for entry in list.strip_suffix(']')?.split(',') {
        let (from, steps) = entry.split_once(':')?;
        let steps = steps.trim().parse().ok()?;
        if from.trim() == ">" {
            rounding = rounding.from_power(last? + 1, steps)?;
            continue;
        }
        let from: u64 = from.trim().parse().ok()?;
        let power = from.is_power_of_two().then(|| from.ilog2() + MIB.ilog2())?;
        if last.is_none() {
            rounding = rounding.below_power(power, steps)?;
        }
        rounding = rounding.for_power(power, steps)?;
        last = Some(power);
    }
    Some(rounding)
}

/// Splits the text at the commas that are not in brackets.
fn parts(text: &str) -> Result<Vec<&str>, ConfError> {
    let mut parts = Vec::new();
    let (mut begin, mut inside) = (0, false);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' | ']' if inside == (letter == '[') => {
                return Err(ConfError::Form { part: text[begin..=at].to_owned() });
            }
            '[' | ']' => inside = !inside,
            ',' if !inside => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(ConfError::Form { part: text[begin..].to_owned() });
    }
    parts.push(&text[begin..]);
    if text.trim().is_empty() {
        parts.clear();
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_key_is_understood_or_reported() {
        let text = "backend:native, large_segment_size_mb:40,max_split_size_mb:128,max_non_split_rounding_mb:30,\
                    garbage_collection_threshold:0.75,roundup_power2_divisions:[256:1,512:2,1024:4,>:8],\
                    expandable_segments:True,per_process_memory_fraction:0.5,release_lock_on_cudamalloc:True,\
                    pinned_num_register_threads:8";
        let conf = TorchConf::parse(text).unwrap();
        let settings = &conf.settings;
        assert_eq!((settings.large_segment, settings.max_split), (40 * MIB, Some(128 * MIB)));
        assert_eq!(settings.max_unsplit_waste, 30 * MIB);
        assert_eq!(settings.collect_above, Fraction::new(0.75));
        assert_eq!((conf.expandable_segments, conf.memory_fraction), (true, Fraction::new(0.5)));
        let round = |mib: u64| settings.rounding.round(mib * MIB + 1);
        assert_eq!([round(100), round(300)], [100 * MIB + 1, 300 * MIB + 1]);
        assert_eq!([round(600), round(1100), round(2048)], [768 * MIB, 1280 * MIB, (2048 + 256) * MIB]);
        let reported: Vec<&str> = conf.without_meaning.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(reported, ["release_lock_on_cudamalloc", "pinned_num_register_threads"]);
        assert_eq!(TorchConf::parse(" ").unwrap(), TorchConf::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text| TorchConf::parse(text).unwrap_err().to_string();
        assert!(error("max_split_size:20").contains("max_split_size_mb"), "{}", error("max_split_size:20"));
        for (text, parts) in [
            ("max_split_size_mb:much", ["max_split_size_mb", "much", "MiB"]),
            ("max_split_size_mb:0", ["max_split_size_mb", "0", "from 1"]),
            ("garbage_collection_threshold:1.0", ["garbage_collection_threshold", "1.0", "between 0 and 1"]),
            ("roundup_power2_divisions:3", ["roundup_power2_divisions", "3", "power of two"]),
            ("roundup_power2_divisions:[300:2]", ["roundup_power2_divisions", "[300:2]", "powers of two"]),
            ("roundup_power2_divisions:[>:2]", ["roundup_power2_divisions", "[>:2]", "list"]),
            ("backend:cudaMallocAsync", ["backend", "cudaMallocAsync", "native"]),
            ("expandable_segments:yes", ["expandable_segments", "yes", "True or False"]),
            ("a:[1:2", ["a:[1:2", "form", "key:value"]),
            ("a:1]", ["a:1]", "form", "key:value"]),
            ("max_split_size_mb", ["max_split_size_mb", "form", "key:value"]),
        ] {
            assert!(parts.iter().all(|part| error(text).contains(part)), "{text}: {}", error(text));
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in "[a-z_0-9:,\\[\\]>. ]{0,60}|max_split_size_mb:[0-9]{1,25}") {
            let _ = TorchConf::parse(&text);
        }
    }
}
