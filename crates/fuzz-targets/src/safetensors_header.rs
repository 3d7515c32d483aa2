//! The reader of safetensors files.

use std::collections::HashSet;

use lily_checkpoint::{Bytes, Tensor, TensorInfo, safetensors_header as header, safetensors_tensors as tensors};

/// Ends the header of a file that is put together.
const END: u8 = 0xff;

/// An even first byte is followed by a whole file, an odd one by a header, a byte 255 and the tensors' bytes.
///
/// What is read lies in the file, in order, without gaps, each tensor as large as its shape says; and a file that is written of
/// it is read as the same.
pub fn safetensors_header(data: &[u8]) {
    let Some((&flags, rest)) = data.split_first() else { return };
    let file = if flags & 1 == 0 { rest.to_vec() } else { assembled(rest) };
    let file = Bytes::from(file);
    let Ok(read) = tensors("a.safetensors", &file) else { return };
    let begins = 8 + u64::from_le_bytes(*file.first_chunk().expect("a length")) as usize;
    let mut at = file[begins..].as_ptr_range().start;
    for (name, tensor) in &read {
        let size = tensor.shape.iter().try_fold(width(&tensor.dtype) as u64, |size, &length| size.checked_mul(length));
        assert_eq!(size, Some(tensor.bytes.len() as u64), "{name}");
        let range = tensor.bytes.as_ptr_range();
        assert_eq!(range.start, at, "{name} follows the one before");
        at = range.end;
    }
    assert_eq!(at, file.as_ptr_range().end, "all of the file is some tensor's");
    let names: HashSet<&str> = read.iter().map(|(name, _)| name.as_str()).collect();
    if names.len() == read.len() {
        comes_back(&read);
    }
}

fn assembled(parts: &[u8]) -> Vec<u8> {
    let mut parts = parts.splitn(2, |&byte| byte == END);
    let [json, data] = [parts.next().unwrap_or_default(), parts.next().unwrap_or_default()];
    [&(json.len() as u64).to_le_bytes(), json, data].concat()
}

fn comes_back(read: &[(String, Tensor)]) {
    let info = |(name, tensor): &(String, Tensor)| TensorInfo {
        name: name.clone(),
        dtype: TYPES.iter().flat_map(|(_, names)| *names).find(|name| **name == tensor.dtype).expect("a known type"),
        shape: tensor.shape.clone(),
    };
    let mut file = header(&read.iter().map(info).collect::<Vec<_>>());
    read.iter().for_each(|(_, tensor)| file.extend_from_slice(&tensor.bytes));
    let again = tensors("again.safetensors", &Bytes::from(file)).expect("what was written can be read");
    let whole = |tensors: &[(String, Tensor)]| -> Vec<(String, String, Vec<u64>, Vec<u8>)> {
        let parts = |(name, tensor): &(String, Tensor)| {
            (name.clone(), tensor.dtype.clone(), tensor.shape.clone(), tensor.bytes.to_vec())
        };
        tensors.iter().map(parts).collect()
    };
    assert_eq!(whole(&again), whole(read));
}

/// Bytes of an element of each type.
const TYPES: [(usize, &[&str]); 4] = [
    (1, &["BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"]),
    (2, &["U16", "I16", "F16", "BF16"]),
    (4, &["U32", "I32", "F32"]),
    (8, &["U64", "I64", "F64"]),
];

fn width(dtype: &str) -> usize {
    TYPES.iter().find(|(_, names)| names.contains(&dtype)).expect("a known type").0
}
