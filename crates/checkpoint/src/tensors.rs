//! The tensors of all files by name, and how the model takes its own out of them: each once, checked, none left over.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use half::{bf16, f16};

use crate::assemble::Source;
use crate::layout::Quantised;
use crate::safetensors::{self, Tensor};
use crate::{Bits, Bytes, Error, Matrices, TensorInfo};

/// Prefixes of tensors that a checkpoint may hold and that Lily does not use yet: the image encoder and the draft head.
const SKIPPED: [&str; 3] = ["vision_tower.", "mtp.", "language_model.mtp."];

/// True for a tensor or module that is not loaded.
pub(crate) fn is_skipped(name: &str) -> bool {
    SKIPPED.iter().any(|prefix| name.starts_with(prefix))
}

/// What a checkpoint holds besides what is used: the image encoder (`vision_tower.`) and the draft head (`mtp.`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub tensors: usize,
    /// Their size in the files.
    pub bytes: u64,
}

/// Tensors that have not been taken yet.
#[derive(Default)]
pub(crate) struct Tensors {
    /// With the index of the file in `files`.
    by_name: HashMap<String, (usize, Tensor)>,
    files: Vec<String>,
    skipped: Skipped,
}

impl Tensors {
    /// Adds the tensors of a file.
    pub(crate) fn add_file(&mut self, file: &str, bytes: &Bytes) -> Result<(), Error> {
        let index = self.files.len();
        self.files.push(file.to_owned());
        for (name, tensor) in safetensors::parse(file, bytes)? {
            if is_skipped(&name) {
                self.skipped.tensors += 1;
                self.skipped.bytes += tensor.bytes.len() as u64;
            }
            if let Some((earlier, _)) = self.by_name.insert(name.clone(), (index, tensor)) {
                let where_else =
                    if earlier == index { "twice".into() } else { format!("and so does {}", self.files[earlier]) };
                return Err(Error::Corrupt {
                    file: file.to_owned(),
                    problem: format!("it holds tensor {name} {where_else}"),
                });
            }
        }
        Ok(())
    }

    /// The index must tell the truth: each tensor it names lies in the file it says.
    pub(crate) fn check_index(&self, index: &BTreeMap<String, String>) -> Result<(), Error> {
        for (name, file) in index {
            if self.by_name.get(name).is_none_or(|(found, _)| self.files[*found] != *file) {
                return Err(Error::Incomplete {
                    path: file.into(),
                    what: format!("the index puts tensor {name} there, but it is not"),
                });
            }
        }
        Ok(())
    }

    /// True if some tensor's name begins so.
    pub(crate) fn any_starts_with(&self, prefix: &str) -> bool {
        self.by_name.keys().any(|name| name.starts_with(prefix))
    }

    /// The shape of a tensor that has not been taken.
    pub(crate) fn shape(&self, name: &str) -> Option<&[u64]> {
        self.by_name.get(name).map(|(_, tensor)| tensor.shape.as_slice())
    }

    fn take(&mut self, expected: &TensorInfo, dtypes: &[&str]) -> Result<Tensor, Error> {
        let TensorInfo { name, shape, .. } = expected;
        let Some((_, tensor)) = self.by_name.remove(name) else {
            return Err(Error::Tensor(format!("{} is missing", label(name))));
        };
        if tensor.shape != *shape {
            return Err(Error::Tensor(format!("{} is {:?}, expected {shape:?}", label(name), tensor.shape)));
        }
        if !dtypes.contains(&tensor.dtype.as_str()) {
            let (found, expected) = (&tensor.dtype, dtypes.join(" or "));
            return Err(Error::Tensor(format!("{} is of type {found}, expected {expected}", label(name))));
        }
        Ok(tensor)
    }

    /// Nothing may be left but what is skipped on purpose.
    pub(crate) fn finish(self) -> Result<Skipped, Error> {
        let mut unexpected: Vec<_> = self.by_name.iter().filter(|(name, _)| !is_skipped(name)).collect();
        unexpected.sort_by_key(|(name, _)| name.as_str());
        let Some((name, (file, tensor))) = unexpected.first() else {
            return Ok(self.skipped);
        };
        let mut problem = format!("tensor {name} {:?} has no place in this model", tensor.shape);
        if unexpected.len() > 1 {
            let _ = write!(problem, ", and {} more", unexpected.len() - 1);
        }
        Err(Error::Corrupt { file: self.files[*file].clone(), problem })
    }
}

impl Source for Tensors {
    type Error = Error;

    fn matrices(&mut self, part: Quantised) -> Result<Matrices, Error> {
        let [weight, scales, biases] = part.tensors();
        let other = Quantised { bits: other(part.bits), ..part.clone() };
        let [other_weight, ..] = other.tensors();
        if self.shape(&weight.name) == Some(&other_weight.shape) {
            return Err(Error::Tensor(format!(
                "{} has {} bits, config.json says {}",
                label(&part.module),
                other.bits.count(),
                part.bits.count()
            )));
        }
        Ok(Matrices {
            count: part.count.unwrap_or(1),
            rows: part.rows,
            cols: part.cols,
            bits: part.bits,
            weight: self.take(&weight, &[weight.dtype])?.bytes,
            scales: self.take(&scales, &[scales.dtype])?.bytes,
            biases: self.take(&biases, &[biases.dtype])?.bytes,
        })
    }

    fn floats(&mut self, part: TensorInfo) -> Result<Vec<f32>, Error> {
        let tensor = self.take(&part, &["BF16", "F32", "F16"])?;
        let halves = || tensor.bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
        let floats: Vec<f32> = match tensor.dtype.as_str() {
            "F32" => tensor.bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
            "F16" => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
            _ => halves().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        };
        match floats.iter().position(|value| !value.is_finite()) {
            Some(index) => Err(Error::Tensor(format!("{} holds {} at {index}", label(&part.name), floats[index]))),
            None => Ok(floats),
        }
    }
}

const fn other(bits: Bits) -> Bits {
    match bits {
        Bits::Four => Bits::Eight,
        Bits::Eight => Bits::Four,
    }
}

/// `layer 3: mlp.gate.scales` for `language_model.model.layers.3.mlp.gate.scales`.
fn label(name: &str) -> String {
    let inner = name.strip_prefix("language_model.").unwrap_or(name);
    let inner = inner.strip_prefix("model.").unwrap_or(inner);
    match inner.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => format!("layer {layer}: {rest}"),
        None => inner.to_owned(),
    }
}
