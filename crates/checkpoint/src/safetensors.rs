//! The safetensors container: a length of 8 bytes, a JSON header that places each tensor, then the tensors' bytes.
//!
//! A header is data from a stranger: every number in it is checked against the file before any is used.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::directory::lfs_pointer;
use crate::{Bytes, Error, TensorInfo};

/// The longest header that is read; the 35B's has some 200 kB. The same bound as the safetensors library's.
const MAX_HEADER: u64 = 100_000_000;

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// As the header spells it: `BF16`, `U32`.
    pub dtype: String,
    /// Row-major, the slowest dimension first.
    pub shape: Vec<u64>,
    /// Exactly shape × dtype bytes.
    pub bytes: Bytes,
}

/// The tensors of a safetensors file, each within the file, none overlapping another. `file` is for error messages.
///
/// # Errors
/// If `bytes` are no such file, or not the whole of it.
pub fn parse(file: &str, bytes: &Bytes) -> Result<Vec<(String, Tensor)>, Error> {
    let corrupt = |problem: String| Error::Corrupt { file: file.to_owned(), problem };
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(lfs_pointer(file));
    }
    let Some(length) = bytes.first_chunk().map(|length| u64::from_le_bytes(*length)) else {
        return Err(corrupt(format!("only {} bytes long: is the download complete?", bytes.len())));
    };
    let room = (bytes.len() - 8) as u64;
    if length > room.min(MAX_HEADER) {
        return Err(corrupt(format!(
            "its header claims {length} bytes, the file has {room} after the first 8: not a safetensors file, or is \
             the download incomplete?"
        )));
    }
    let start = 8 + length as usize;
    let Header(mut entries) = serde_json::from_slice(&bytes[8..start])
        .map_err(|error| corrupt(format!("its header of {length} bytes is not valid: {error}")))?;

    // In the order of their bytes each tensor must begin where the one before ended; so nothing overlaps, nothing
    // is hidden between, and the last one's end is the end of the file.
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let data = bytes.slice(start..bytes.len());
    let mut tensors = Vec::with_capacity(entries.len());
    let mut previous: (&str, u64) = ("the header", 0);
    for (name, Entry { dtype, shape, data_offsets: (begin, end) }) in &entries {
        let place = || format!("tensor {name} lies at bytes {begin}..{end} of the data");
        if begin > end || *end > data.len() as u64 {
            let size = data.len();
            return Err(corrupt(format!("{}, which has {size} bytes: is the download complete?", place())));
        }
        if *begin != previous.1 {
            let relation = if *begin < previous.1 { "overlaps" } else { "leaves a gap after" };
            return Err(corrupt(format!("{}, which {relation} {} that ends at {}", place(), previous.0, previous.1)));
        }
        let Some(width) = width(dtype) else {
            return Err(corrupt(format!("tensor {name} has the unknown type {dtype:?}")));
        };
        let size = shape.iter().try_fold(width, |size, &dimension| size.checked_mul(dimension));
        if size != Some(end - begin) {
            return Err(corrupt(format!("{}, {} bytes, but is {dtype} {shape:?}", place(), end - begin)));
        }
        previous = (name, *end);
        let bytes = data.slice(*begin as usize..*end as usize);
        tensors.push((name.clone(), Tensor { dtype: dtype.clone(), shape: shape.clone(), bytes }));
    }
    if previous.1 != data.len() as u64 {
        return Err(corrupt(format!("its tensors end at byte {} of the data, which has {}", previous.1, data.len())));
    }
    Ok(tensors)
}

/// The beginning of a safetensors file of MLX's, up to where the tensors' bytes follow in the order given. Its length is
/// a multiple of 8.
///
/// # Panics
/// If a type is none of safetensors', or if the data has more than 2^64 bytes.
#[must_use]
pub fn header(tensors: &[TensorInfo]) -> Vec<u8> {
    let mut entries = Map::with_capacity(tensors.len() + 1);
    entries.insert("__metadata__".into(), json!({ "format": "mlx" }));
    let mut begin = 0u64;
    for tensor in tensors {
        let end = begin.checked_add(byte_count(tensor)).expect("the data fits in 64 bits");
        let entry = json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end] });
        entries.insert(tensor.name.clone(), entry);
        begin = end;
    }
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes()[..], &json].concat()
}

/// Bytes of a tensor's data.
pub(crate) fn byte_count(tensor: &TensorInfo) -> u64 {
    let width = width(tensor.dtype).expect("a type of safetensors'");
    tensor.shape.iter().fold(width, |size, &dimension| size.saturating_mul(dimension))
}

/// Bytes of one element.
fn width(dtype: &str) -> Option<u64> {
    match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Some(1),
        "U16" | "I16" | "F16" | "BF16" => Some(2),
        "U32" | "I32" | "F32" => Some(4),
        "U64" | "I64" | "F64" => Some(8),
        _ => None,
    }
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// A header's entries in the file's order. Read by hand because a map type would quietly keep one of two equal names.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Header, M::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Header(entries))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}
