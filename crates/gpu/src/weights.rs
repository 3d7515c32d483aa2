//! The weights on the device: quantised matrices where they are mapped, small vectors as fp32 in one buffer.

use half::bf16;
use lily_checkpoint::{Attention, Bits, Bytes, Config, DeltaNet, Experts, GROUP, Matrices, Mixer, Moe, Weights};

use crate::device::{Buffer, Device, Range};
use crate::error::Error;
use crate::kernel::Slice;

/// Where a vector begins in its buffer: a multiple of this.
const ALIGNMENT: u64 = 256;
/// Bytes that are stored by one write.
const PIECE: usize = 64 << 10;

/// A stack of quantised matrices, `w[n][k] = q[n][k] · scale[n][k / 64] + bias[n][k / 64]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) w: Slice<u32>,
    pub(crate) scales: Slice<bf16>,
    pub(crate) biases: Slice<bf16>,
    /// Matrices in the stack.
    pub(crate) count: usize,
    /// Rows of one matrix.
    pub(crate) outputs: usize,
    /// Columns of one matrix.
    pub(crate) inner: usize,
}

impl Linear {
    /// Bytes of one matrix.
    pub(crate) fn bytes(&self) -> u64 {
        (self.w.range.bytes + self.scales.range.bytes + self.biases.range.bytes) / self.count as u64
    }

    /// Weights of one matrix.
    pub(crate) fn parameters(&self) -> u64 {
        (self.outputs * self.inner) as u64
    }
}

/// The three matrices of a SwiGLU, or stacks of them.
#[derive(Debug)]
pub(crate) struct ExpertWeights {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

/// A mixture of experts, with the norm before it.
#[derive(Debug)]
pub(crate) struct MoeWeights {
    pub(crate) norm: Slice<f32>,
    /// 8 bits, as `shared_gate`.
    pub(crate) router: Linear,
    /// One row.
    pub(crate) shared_gate: Linear,
    pub(crate) experts: ExpertWeights,
    pub(crate) shared: ExpertWeights,
}

/// Gated DeltaNet.
#[derive(Debug)]
pub(crate) struct DeltaNetWeights {
    pub(crate) qkv: Linear,
    pub(crate) z: Linear,
    pub(crate) a: Linear,
    pub(crate) b: Linear,
    /// `[channels][4]`
    pub(crate) conv: Slice<f32>,
    pub(crate) a_log: Slice<f32>,
    pub(crate) dt_bias: Slice<f32>,
    pub(crate) gain: Slice<f32>,
    pub(crate) out: Linear,
}

/// Gated attention.
#[derive(Debug)]
pub(crate) struct AttentionWeights {
    pub(crate) q_gate: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) q_gain: Slice<f32>,
    pub(crate) k_gain: Slice<f32>,
    pub(crate) out: Linear,
}

/// What moves information between positions, with its number among the layers of its kind.
#[derive(Debug)]
pub(crate) enum MixerWeights {
    DeltaNet(usize, DeltaNetWeights),
    Attention(usize, AttentionWeights),
}

/// `x += mixer(norm(x)); x += moe(norm(x))`
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) norm: Slice<f32>,
    pub(crate) mixer: MixerWeights,
    pub(crate) moe: MoeWeights,
}

/// Everything a step multiplies by.
#[derive(Debug)]
pub(crate) struct ModelWeights {
    pub(crate) embedding: Linear,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) norm: Slice<f32>,
    pub(crate) head: Linear,
}

impl ModelWeights {
    /// Brings the weights to a device.
    ///
    /// # Errors
    /// If a matrix has another width than the kernels read, or the device has no room.
    pub(crate) fn load(device: &mut impl Device, weights: &Weights) -> Result<Self, Error> {
        let mut list = List::default();
        walk(weights, &mut list)?;
        let mapped = device.map(&list.tensors)?;
        let small = device.allocate(list.floats.len() as u64 * 4, "norms and other small weights")?;
        let bytes: Vec<u8> = list.floats.iter().flat_map(|value| value.to_le_bytes()).collect();
        for (index, piece) in bytes.chunks(PIECE).enumerate() {
            device.write(small.all().part((index * PIECE) as u64, piece.len() as u64), piece)?;
        }
        walk(weights, &mut Places { tensors: mapped.into_iter(), floats: small, used: 0 })
    }

    /// Weights that lie nowhere, for plans that are only looked at. Buffers are numbered from `first` on.
    pub(crate) fn imagine(weights: &Weights, first: u32) -> Result<Self, Error> {
        let mut list = List::default();
        walk(weights, &mut list)?;
        let tensors: Vec<Range> = (first..).zip(&list.sizes).map(|(id, &bytes)| Buffer { id, bytes }.all()).collect();
        let floats = Buffer { id: first + tensors.len() as u32, bytes: list.floats.len() as u64 * 4 };
        walk(weights, &mut Places { tensors: tensors.into_iter(), floats, used: 0 })
    }
}

/// Bytes of the small vectors, which a device holds as copies.
///
/// # Errors
/// If a matrix has another width than the kernels read.
pub(crate) fn copied_bytes(config: &Config) -> Result<u64, Error> {
    let mut list = List::default();
    walk(&config.blank_weights(), &mut list)?;
    Ok(list.floats.len() as u64 * 4)
}

/// What walks over the weights: once to see what there is, once to give out where it came to lie.
trait Visitor {
    /// The stack on the device.
    fn matrices(&mut self, matrices: &Matrices) -> Linear;
    /// The vector on the device.
    fn vector(&mut self, vector: &[f32]) -> Slice<f32>;

    /// A stack of `bits` a weight.
    fn linear(&mut self, name: &str, matrices: &Matrices, bits: Bits) -> Result<Linear, Error> {
        if matrices.bits != bits {
            let (found, expected) = (matrices.bits.count(), bits.count());
            return Err(Error::Unsupported(format!("{name} has {found} bits a weight, {expected} are needed")));
        }
        Ok(self.matrices(matrices))
    }
}

/// Takes down what there is; what it gives out is not looked at.
#[derive(Default)]
struct List {
    tensors: Vec<Bytes>,
    sizes: Vec<u64>,
    floats: Vec<f32>,
}

impl Visitor for List {
    fn matrices(&mut self, matrices: &Matrices) -> Linear {
        let Matrices { count, rows, cols, bits, weight, scales, biases } = matrices;
        self.tensors.extend([weight, scales, biases].map(Bytes::clone));
        let weights = count * rows * cols;
        let sizes = [weights * bits.count() / 8, weights / GROUP * 2, weights / GROUP * 2];
        self.sizes.extend(sizes.map(|size| size as u64));
        let [w, scales, biases] = sizes.map(|bytes| Buffer { id: 0, bytes: bytes as u64 }.all());
        linear(matrices, w, scales, biases)
    }

    fn vector(&mut self, vector: &[f32]) -> Slice<f32> {
        self.floats.extend_from_slice(vector);
        self.floats.resize(self.floats.len().next_multiple_of(ALIGNMENT as usize / 4), 0.0);
        Slice::new(Buffer { id: 0, bytes: size_of_val(vector) as u64 }.all())
    }
}

/// Gives out where the weights came to lie, in the order in which [`List`] took them down.
struct Places {
    tensors: std::vec::IntoIter<Range>,
    floats: Buffer,
    used: u64,
}

impl Visitor for Places {
    fn matrices(&mut self, matrices: &Matrices) -> Linear {
        let mut next = || self.tensors.next().unwrap_or(Buffer { id: 0, bytes: 0 }.all());
        let (w, scales, biases) = (next(), next(), next());
        linear(matrices, w, scales, biases)
    }

    fn vector(&mut self, vector: &[f32]) -> Slice<f32> {
        let bytes = size_of_val(vector) as u64;
        let range = self.floats.all().part(self.used, bytes);
        self.used = (self.used + bytes).next_multiple_of(ALIGNMENT);
        Slice::new(range)
    }
}

fn linear(matrices: &Matrices, w: Range, scales: Range, biases: Range) -> Linear {
    let &Matrices { count, rows: outputs, cols: inner, .. } = matrices;
    Linear { w: Slice::new(w), scales: Slice::new(scales), biases: Slice::new(biases), count, outputs, inner }
}

fn walk(weights: &Weights, to: &mut impl Visitor) -> Result<ModelWeights, Error> {
    let embedding = to.linear("embed_tokens", &weights.embed_tokens, Bits::Four)?;
    let mut layers = Vec::with_capacity(weights.layers.len());
    let (mut delta_nets, mut attentions) = (0, 0);
    for layer in &weights.layers {
        layers.push(LayerWeights {
            norm: to.vector(&layer.input_layernorm),
            mixer: match &layer.mixer {
                Mixer::DeltaNet(mixer) => MixerWeights::DeltaNet(count(&mut delta_nets), delta_net(mixer, to)?),
                Mixer::Attention(mixer) => MixerWeights::Attention(count(&mut attentions), attention(mixer, to)?),
            },
            moe: moe(&layer.post_attention_layernorm, &layer.moe, to)?,
        });
    }
    let norm = to.vector(&weights.norm);
    let head = to.linear("lm_head", &weights.lm_head, Bits::Four)?;
    Ok(ModelWeights { embedding, layers, norm, head })
}

/// The number, and one more the next time.
fn count(number: &mut usize) -> usize {
    *number += 1;
    *number - 1
}

fn delta_net(mixer: &DeltaNet, to: &mut impl Visitor) -> Result<DeltaNetWeights, Error> {
    Ok(DeltaNetWeights {
        qkv: to.linear("in_proj_qkv", &mixer.in_proj_qkv, Bits::Four)?,
        z: to.linear("in_proj_z", &mixer.in_proj_z, Bits::Four)?,
        a: to.linear("in_proj_a", &mixer.in_proj_a, Bits::Four)?,
        b: to.linear("in_proj_b", &mixer.in_proj_b, Bits::Four)?,
        conv: to.vector(&mixer.conv1d),
        a_log: to.vector(&mixer.a_log),
        dt_bias: to.vector(&mixer.dt_bias),
        gain: to.vector(&mixer.norm),
        out: to.linear("out_proj", &mixer.out_proj, Bits::Four)?,
    })
}

fn attention(mixer: &Attention, to: &mut impl Visitor) -> Result<AttentionWeights, Error> {
    Ok(AttentionWeights {
        q_gate: to.linear("q_proj", &mixer.q_proj, Bits::Four)?,
        k: to.linear("k_proj", &mixer.k_proj, Bits::Four)?,
        v: to.linear("v_proj", &mixer.v_proj, Bits::Four)?,
        q_gain: to.vector(&mixer.q_norm),
        k_gain: to.vector(&mixer.k_norm),
        out: to.linear("o_proj", &mixer.o_proj, Bits::Four)?,
    })
}

fn moe(norm: &[f32], moe: &Moe, to: &mut impl Visitor) -> Result<MoeWeights, Error> {
    Ok(MoeWeights {
        norm: to.vector(norm),
        router: to.linear("mlp.gate", &moe.gate, Bits::Eight)?,
        shared_gate: to.linear("mlp.shared_expert_gate", &moe.shared_expert_gate, Bits::Eight)?,
        experts: experts(&moe.experts, to)?,
        shared: experts(&moe.shared_expert, to)?,
    })
}

fn experts(experts: &Experts, to: &mut impl Visitor) -> Result<ExpertWeights, Error> {
    Ok(ExpertWeights {
        gate: to.linear("gate_proj", &experts.gate_proj, Bits::Four)?,
        up: to.linear("up_proj", &experts.up_proj, Bits::Four)?,
        down: to.linear("down_proj", &experts.down_proj, Bits::Four)?,
    })
}
